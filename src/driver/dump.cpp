#include "driver/dump.h"

#include <filesystem>
#include <fstream>

#include "support/log.h"

namespace heddle::driver {

void Dumper::write(std::string_view level, const std::string& name, const std::string& text) {
  if (!wants(level)) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::string safe = name;
  for (char& c : safe)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' && c != '_') c = '_';
  const std::string path = fmt::format("{}/{:03}-{}-{}{}", folder_, number_++, level,
                                       safe.substr(0, 80), safe.ends_with(".ll") ? "" : ".txt");
  std::ofstream file(path);
  file << text;
  if (!file) log(LogLevel::warning, "dump {}: cannot write", path);
}

}  // namespace heddle::driver
