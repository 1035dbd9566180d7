#include "codegen/cuda/units.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <regex>
#include <set>

#include "codegen/cuda/nvrtc_library.h"
#include "support/hash.h"
#include "support/log.h"
#include "support/process.h"

namespace heddle::codegen::cuda {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Written under another name first, so that nobody reads half of it.
bool write(const fs::path& path, std::string_view bytes) {
  static std::atomic<int> unique{0};
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path temporary = fmt::format("{}.{}.{}.tmp", path.string(), ::getpid(), unique++);
  std::ofstream file(temporary, std::ios::binary);
  file << bytes;
  file.close();
  if (file) fs::rename(temporary, path, error);
  if (file && !error) return true;
  fs::remove(temporary, error);
  return false;
}

/// "4.2.0" of the CUTLASS in a folder.
std::optional<std::string> cutlass_version(const fs::path& folder) {
  const auto text = contents(folder / "include/cutlass/version.h");
  if (!text) return std::nullopt;
  std::string version;
  for (const char* part : {"MAJOR", "MINOR", "PATCH"}) {
    std::smatch match;
    if (!std::regex_search(*text, match, std::regex(fmt::format("CUTLASS_{} +([0-9]+)", part))))
      return std::nullopt;
    version += (version.empty() ? "" : ".") + match[1].str();
  }
  return version;
}

/// `wanted`, or the first of `places` that is there.
template <class Is>
std::optional<std::string> first(const std::string& wanted, const std::vector<fs::path>& places,
                                 Is&& is) {
  if (!wanted.empty()) return is(fs::path(wanted)) ? std::optional(wanted) : std::nullopt;
  for (const fs::path& place : places)
    if (is(place)) return place.string();
  return std::nullopt;
}

/// What a unit is compiled by, and from besides its text.
std::string surroundings(const UnitOptions& options) {
  std::string all =
      fmt::format("{}\n{}\n{}\n", options.tools.nvcc, options.tools.version, options.arch);
  for (const Header& header : unit_headers()) all += header.text;
  return all;
}

/// First line: the checksum of the rest, the object.
std::shared_ptr<const std::string> read_unit(const fs::path& path) {
  const auto file = contents(path);
  const std::size_t end = file ? file->find('\n') : std::string::npos;
  if (end == std::string::npos) return nullptr;
  std::string object = file->substr(end + 1);
  if (file->substr(0, end) != to_string(hash_bytes(object))) return nullptr;
  return std::make_shared<const std::string>(std::move(object));
}

/// Removed at the end.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "heddle-unit-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path = name;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

Result<std::string> compile(const std::string& text, const UnitOptions& options) {
  const Folder folder;
  bool written = !folder.path.empty() && write(folder.path / "unit.cu", text);
  for (const Header& header : unit_headers())
    written = written && write(folder.path / header.name, header.text);
  if (!written) return fail("unit: cannot write to a temporary folder");
  const fs::path made = folder.path / "unit.so";
  const std::string number = options.arch.substr(options.arch.find('_') + 1);
  // Only the device's code is worth optimising; asserts would call functions between products.
  const auto ran = HEDDLE_TRY(
      run_process({options.tools.nvcc,
                   "-shared",
                   "-cudart",
                   "static",
                   "-gencode",
                   fmt::format("arch=compute_{0},code=sm_{0}", number),
                   "-std=c++17",
                   "-O3",
                   "-DNDEBUG",
                   "--expt-relaxed-constexpr",
                   "-Xcompiler",
                   "-O0,-fPIC,-fvisibility=hidden",
                   "-Xptxas",
                   "-v",
                   "-I",
                   folder.path.string(),
                   "-I",
                   options.tools.cutlass + "/include",
                   "-L",
                   (fs::path(options.tools.nvcc).parent_path().parent_path() / "lib").string(),
                   "-o",
                   made.string(),
                   (folder.path / "unit.cu").string()}));
  if (ran.status != 0) return fail("unit: nvcc refuses the text: {}", ran.output);
  if (options.compiled) options.compiled(ran.output);
  auto object = contents(made);
  if (!object || object->empty()) return fail("unit: nvcc made nothing");
  return *std::move(object);
}

/// Units of this process and of the cache, by product.
class Known {
 public:
  explicit Known(const UnitOptions& options)
      : options_(options), surroundings_(surroundings(options)) {}

  std::shared_ptr<const std::string> find(const UnitEntry& product) const {
    const std::string key = key_of(product);
    {
      const std::lock_guard lock(mutex());
      if (const auto at = all().find(key); at != all().end()) return at->second;
    }
    if (options_.cache_dir.empty()) return nullptr;
    const auto unit = contents(path_of(key + ".product"));
    auto object = unit ? read_unit(path_of(*unit + ".unit")) : nullptr;
    if (object) {
      const std::lock_guard lock(mutex());
      all()[key] = object;
    }
    return object;
  }

  void add(std::span<const UnitEntry> products, std::shared_ptr<const std::string> object) const {
    const std::string hash = to_string(hash_bytes(*object));
    const bool kept =
        !options_.cache_dir.empty() && write(path_of(hash + ".unit"), hash + "\n" + *object);
    for (const UnitEntry& product : products) {
      if (kept) write(path_of(key_of(product) + ".product"), hash);
      const std::lock_guard lock(mutex());
      all()[key_of(product)] = object;
    }
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<std::string, std::shared_ptr<const std::string>>& all() {
    static std::map<std::string, std::shared_ptr<const std::string>> map;
    return map;
  }
  std::string key_of(const UnitEntry& product) const {
    return to_string(hash_bytes(surroundings_ + product.group + product.name));
  }
  fs::path path_of(const std::string& name) const {
    return fs::path(options_.cache_dir) / "units" / name;
  }
  const UnitOptions& options_;
  std::string surroundings_;
};

/// One unit; where the compiler refuses it, its halves, so that one product does not cost the rest.
void compile_all(std::span<const UnitEntry> products, const Known& known,
                 const UnitOptions& options) {
  const auto object = compile(unit_text(products), options);
  if (object) {
    known.add(products, std::make_shared<const std::string>(*object));
    return;
  }
  log(products.size() == 1 ? LogLevel::warning : LogLevel::info, "{} products: {}", products.size(),
      object.error().message);
  if (products.size() == 1 || object.error().code == ErrorCode::missing) return;
  compile_all(products.first(products.size() / 2), known, options);
  compile_all(products.subspan(products.size() / 2), known, options);
}

}  // namespace

Result<UnitTools> find_unit_tools(const std::string& nvcc, const std::string& cutlass) {
  std::vector<fs::path> compilers, folders_of;
  for (const fs::path& toolkit : toolkit_folders()) compilers.push_back(toolkit / "bin/nvcc");
  for (const fs::path& build : build_folders()) folders_of.push_back(build / "cutlass");
  folders_of.insert(folders_of.end(), {"/usr/local/cutlass", "/opt/cutlass", "/usr/local", "/usr"});
  for (const fs::path& packages : package_folders()) {
    for (const fs::path& package : folders(packages / "nvidia", ""))
      compilers.push_back(package / "bin/nvcc");
    folders_of.push_back(packages / "cutlass_library/source");
  }
  std::error_code error;
  UnitTools tools;
  auto compiler =
      first(nvcc, compilers, [&](const fs::path& p) { return fs::is_regular_file(p, error); });
  if (!compiler && nvcc.empty())  // on the path
    if (const auto ran = run_process({"nvcc", "--version"}); ran && ran->status == 0)
      compiler = "nvcc";
  if (!compiler)
    return fail(ErrorCode::missing, "nvcc: {}; --nvcc PATH tells where it is",
                nvcc.empty() ? "not in the toolkit's folders, on the path, or in nvidia's packages"
                             : fmt::format("found no file '{}'", nvcc));
  const auto folder =
      first(cutlass, folders_of, [](const fs::path& p) { return cutlass_version(p).has_value(); });
  if (!folder)
    return fail(ErrorCode::missing,
                "CUTLASS: no include/cutlass/version.h in {}; --cutlass DIR tells where it is",
                cutlass.empty() ? "the folders looked in" : cutlass);
  return UnitTools{*compiler, *folder, cutlass_version(*folder).value()};
}

std::string unit_text(std::span<const UnitEntry> products) {
  std::string text =
      fmt::format("#include \"unit.cuh\"\n\nusing Group = {};\n", products.front().group);
  std::string rows;
  std::set<std::string> names;
  for (const UnitEntry& p : products) {
    if (!names.insert(p.name).second) continue;
    text += "\n" + p.text;
    rows += fmt::format("    {{\"{0}\", &{0}::P::create}},\n", p.name);
  }
  return text + fmt::format(
                    "\nstatic constexpr hdu::Entry kEntries[] = {{\n{}    {{nullptr, nullptr}}}};\n"
                    "extern \"C\" __attribute__((visibility(\"default\"))) const HeddleUnit* "
                    "heddle_unit() {{\n  return hdu::unit<kEntries>();\n}}\n",
                    rows);
}

UnitObjects compile_units(std::span<const UnitEntry> products, const UnitOptions& options) {
  const Known known(options);
  std::map<std::string, std::vector<UnitEntry>> groups;
  std::set<std::string> wanted;
  for (const UnitEntry& product : products)
    if (wanted.insert(product.name).second && !known.find(product))
      groups[product.group].push_back(product);
  int done = 0;
  for (const auto& [group, members] : groups) {
    if (options.progress) options.progress(done++, static_cast<int>(groups.size()));
    compile_all(members, known, options);
  }
  UnitObjects out;
  for (const UnitEntry& product : products)
    if (auto object = known.find(product)) out[product.name] = std::move(object);
  return out;
}

bool cached_unit_is_sound(const std::string& path) {
  if (!path.ends_with(".unit")) return true;  // names a unit
  return read_unit(path) != nullptr;
}

}  // namespace heddle::codegen::cuda
