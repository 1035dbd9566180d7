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

void Dumper::write(const std::string& name, const prim::Graph& graph) {
  if (!wants("prim")) return;
  write("prim", name, prim::print(graph));
  const std::size_t before = constants_.size();
  constants_.merge(prim::large_constants(graph));
  if (constants_.size() == before) return;
  const std::string path = prim::constants_beside(folder_ + "/prim");
  if (const Status status = prim::save_constants(constants_, path); !status)
    log(LogLevel::warning, "dump: {}", status.error().message);
}

}  // namespace heddle::driver
