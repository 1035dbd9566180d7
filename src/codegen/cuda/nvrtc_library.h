#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "support/result.h"

namespace heddle::codegen::cuda {

/// The folders under `base` whose names begin so, the highest version first.
std::vector<std::filesystem::path> folders(const std::filesystem::path& base,
                                           const std::string& name);
/// Where CUDA toolkits are, the folders build/ that this program may be of, and site-packages of
/// their and the system's Python environments; they need not exist.
std::vector<std::filesystem::path> toolkit_folders();
std::vector<std::filesystem::path> build_folders();
std::vector<std::filesystem::path> package_folders();

struct NvrtcProgram;
/// NVRTC's entry points, loaded at run time.
struct Nvrtc {
  int (*Version)(int* major, int* minor);
  const char* (*GetErrorString)(int code);
  int (*CreateProgram)(NvrtcProgram** program, const char* text, const char* name, int headers,
                       const char* const* header_texts, const char* const* header_names);
  int (*CompileProgram)(NvrtcProgram* program, int options, const char* const* option_texts);
  int (*DestroyProgram)(NvrtcProgram** program);
  int (*GetProgramLogSize)(NvrtcProgram* program, std::size_t* bytes);
  int (*GetProgramLog)(NvrtcProgram* program, char* log);
  int (*GetCUBINSize)(NvrtcProgram* program, std::size_t* bytes);
  int (*GetCUBIN)(NvrtcProgram* program, char* cubin);
  std::string path, version;
};
/// The library at `wanted`, or the one found; loaded once for each path and never unloaded (NVRTC
/// keeps threads).
Result<std::shared_ptr<const Nvrtc>> load_nvrtc(const std::string& wanted);

}  // namespace heddle::codegen::cuda
