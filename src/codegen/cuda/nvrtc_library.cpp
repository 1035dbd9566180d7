#include "codegen/cuda/nvrtc_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "codegen/cuda/nvrtc.h"

namespace heddle::codegen::cuda {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> library_folders() {
  std::vector<fs::path> out;
  for (const fs::path& toolkit : toolkit_folders()) out.push_back(toolkit / "lib64");
  out.insert(out.end(), {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"});
  for (const fs::path& packages : package_folders())
    for (const fs::path& package : folders(packages / "nvidia", "")) out.push_back(package / "lib");
  return out;
}

/// The newest "lib<stem>.so.N" in a folder; "libnvrtc.so" alone only where nothing else is.
std::optional<std::string> newest(const fs::path& folder, const std::string& stem) {
  const std::vector<fs::path> found = folders(folder, "lib" + stem + ".so");
  if (found.empty()) return std::nullopt;
  return found.front().string();
}

/// NVRTC opens its builtins by bare name, which fails outside the system's folders unless they are
/// loaded already.
void load_builtins(const std::string& nvrtc) {
  for (const fs::path& path : folders(fs::path(nvrtc).parent_path(), "libnvrtc-builtins.so"))
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
}

Result<Nvrtc> load(const std::string& path) {
  load_builtins(path);
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::missing, "NVRTC {}: {}", path, ::dlerror());
  Nvrtc out{};
  const auto bind = [&](auto& field, const char* name) {
    field = reinterpret_cast<std::decay_t<decltype(field)>>(::dlsym(handle, name));
    return field != nullptr;
  };
  if (!bind(out.Version, "nvrtcVersion") || !bind(out.GetErrorString, "nvrtcGetErrorString") ||
      !bind(out.CreateProgram, "nvrtcCreateProgram") ||
      !bind(out.CompileProgram, "nvrtcCompileProgram") ||
      !bind(out.DestroyProgram, "nvrtcDestroyProgram") ||
      !bind(out.GetProgramLogSize, "nvrtcGetProgramLogSize") ||
      !bind(out.GetProgramLog, "nvrtcGetProgramLog") ||
      !bind(out.GetCUBINSize, "nvrtcGetCUBINSize") || !bind(out.GetCUBIN, "nvrtcGetCUBIN"))
    return fail(ErrorCode::missing,
                "NVRTC {}: an entry point is not there; want version 11.1 or newer", path);
  int major = 0, minor = 0;
  out.Version(&major, &minor);
  out.path = path;
  out.version = fmt::format("{}.{}", major, minor);
  return out;
}

}  // namespace

std::vector<fs::path> folders(const fs::path& base, const std::string& name) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator i(base, error), end; !error && i != end; i.increment(error))
    if (i->path().filename().string().starts_with(name)) out.push_back(i->path());
  std::sort(out.rbegin(), out.rend());  // cuda-13.0 before cuda-12.4
  return out;
}

std::vector<fs::path> toolkit_folders() {
  std::vector<fs::path> out = {"/usr/local/cuda", "/opt/cuda"};
  for (const fs::path& toolkit : folders("/usr/local", "cuda-")) out.push_back(toolkit);
  return out;
}

/// The environments of this checkout: beside the program (build/bin/heddle) or below the folder.
std::vector<fs::path> build_folders() {
  std::vector<fs::path> out;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) out.push_back(self.parent_path().parent_path());
  out.push_back(fs::current_path(error) / "build");
  return out;
}

std::vector<fs::path> package_folders() {
  std::vector<fs::path> out, roots;
  for (const fs::path& build : build_folders())
    roots.insert(roots.end(), {build / "venv", build / "cutlass"});
  roots.insert(roots.end(), {"/usr/local", "/usr"});
  for (const fs::path& root : roots)
    for (const fs::path& python : folders(root / "lib", "python"))
      for (const char* packages : {"site-packages", "dist-packages"})
        out.push_back(python / packages);
  return out;
}

std::string find_library(const std::string& stem, const std::string& wanted,
                         std::vector<std::string>* tried) {
  if (!wanted.empty()) return wanted;
  for (const fs::path& folder : library_folders()) {
    if (tried != nullptr) tried->push_back(folder.string());
    if (auto path = newest(folder, stem)) return *path;
  }
  return {};
}

Result<std::shared_ptr<const Nvrtc>> load_nvrtc(const std::string& wanted) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Nvrtc>> loaded;
  const std::lock_guard lock(mutex);
  if (const auto it = loaded.find(wanted); it != loaded.end()) return it->second;
  std::vector<std::string> tried;
  const std::string path = find_library("nvrtc", wanted, &tried);
  if (path.empty())
    return fail(ErrorCode::missing,
                "NVRTC (libnvrtc.so) is not installed: looked in {}; set HEDDLE_NVRTC to its path",
                fmt::join(tried, ", "));
  return loaded[wanted] = std::make_shared<const Nvrtc>(HEDDLE_TRY(load(path)));
}

Result<std::string> nvrtc_version(const std::string& path) {
  return (HEDDLE_TRY(load_nvrtc(path)))->version;
}

Result<std::string> cublaslt_version(const std::string& path) {
  if (path.empty()) return fail(ErrorCode::missing, "libcublasLt.so is not installed");
  void* handle = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::missing, "cuBLASLt {}: {}", path, ::dlerror());
  const auto version = reinterpret_cast<std::size_t (*)()>(::dlsym(handle, "cublasLtGetVersion"));
  if (version == nullptr)
    return fail(ErrorCode::missing, "cuBLASLt {}: found no cublasLtGetVersion", path);
  const std::size_t number = version();
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace heddle::codegen::cuda
