// NVRTC: text is compiled by the C++ compiler; a cubin holds the text, which the driver loads.
#include <cstring>

#include "codegen/cuda/nvrtc.h"
#include "emulation/fake/state.h"

namespace heddle::emulation::fake {

struct Program {
  std::string text, log, cubin;
  bool headers_known = true;
};

namespace {

constexpr int kCompilation = 6, kInvalidOption = 5, kInvalidInput = 3;

/// "sm_90a" of "--gpu-architecture=sm_90a".
std::string arch_of(int count, const char* const* options) {
  constexpr std::string_view kFlag = "--gpu-architecture=";
  for (int i = 0; i < count; ++i)
    if (std::string_view(options[i]).starts_with(kFlag)) return options[i] + kFlag.size();
  return {};
}

int size_of(const std::string& text, std::size_t* bytes) { return *bytes = text.size() + 1, 0; }
int copy(const std::string& text, char* to) {
  return std::memcpy(to, text.c_str(), text.size() + 1), 0;
}

}  // namespace
}  // namespace heddle::emulation::fake

using heddle::emulation::fake::Program;
using namespace heddle::emulation;

HEDDLE_FAKE int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
HEDDLE_FAKE const char* nvrtcGetErrorString(int code) {
  return code == fake::kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
HEDDLE_FAKE int nvrtcCreateProgram(Program** program, const char* text, const char*, int headers,
                                   const char* const* texts, const char* const* names) {
  if (const fake::Call call("nvrtcCreateProgram", fake::Call::nothing); call.code) return call.code;
  auto* p = new Program{text, {}, {}, true};
  // The emulator brings its own prelude: it must be the one that the text was written for.
  for (int i = 0; i < headers; ++i)
    for (const auto& h : heddle::codegen::cuda::prelude())
      if (std::strcmp(h.name, names[i]) == 0 && std::strcmp(h.text, texts[i]) != 0)
        p->headers_known = false;
  return *program = p, 0;
}
HEDDLE_FAKE int nvrtcCompileProgram(Program* p, int count, const char* const* options) {
  if (const fake::Call call("nvrtcCompileProgram", fake::Call::nothing); call.code) {
    p->log = "injected failure";
    return call.code;
  }
  if (!p->headers_known) return fake::kInvalidInput;
  const std::string arch = fake::arch_of(count, options);
  if (!arch.starts_with("sm_")) return fake::kInvalidOption;
  const auto module = compile(p->text, fake::compile_options());
  if (!module) {
    p->log = module.error().message;
    return fake::kCompilation;
  }
  p->cubin = fake::pack_cubin(arch, p->text);
  return 0;
}
HEDDLE_FAKE int nvrtcDestroyProgram(Program** p) {
  delete *p;
  return *p = nullptr, 0;
}
HEDDLE_FAKE int nvrtcGetProgramLogSize(Program* p, std::size_t* bytes) {
  const fake::Call call("nvrtcGetProgramLogSize", fake::Call::nothing);
  if (call.code) return call.code;
  return fake::size_of(p->log, bytes);
}
HEDDLE_FAKE int nvrtcGetProgramLog(Program* p, char* to) {
  const fake::Call call("nvrtcGetProgramLog", fake::Call::nothing);
  if (call.code) return call.code;
  return fake::copy(p->log, to);
}
HEDDLE_FAKE int nvrtcGetCUBINSize(Program* p, std::size_t* bytes) {
  const fake::Call call("nvrtcGetCUBINSize", fake::Call::nothing);
  if (call.code) return call.code;
  return fake::size_of(p->cubin, bytes);
}
HEDDLE_FAKE int nvrtcGetCUBIN(Program* p, char* to) {
  const fake::Call call("nvrtcGetCUBIN", fake::Call::nothing);
  if (call.code) return call.code;
  return fake::copy(p->cubin, to);
}
