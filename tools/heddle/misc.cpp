#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "common.h"
#include "driver/cache.h"
#include "driver/code_cache.h"
#include "onnx/reader.h"
#include "ops/ops.h"
#include "runtime/artefact.h"

namespace heddle::tool {
namespace {

using nlohmann::json;

Status list_ops(bool as_json) {
  std::map<std::string, std::vector<int>> versions;
  for (const auto& family : ops::families())
    for (const ops::OpDef& op : family) versions[std::string(op.name)].push_back(op.since);
  for (auto& [name, since] : versions) std::sort(since.begin(), since.end());
  if (as_json) {
    fmt::print("{}\n", json{{"count", versions.size()}, {"ops", versions}}.dump(2));
    return Ok{};
  }
  for (const auto& [name, since] : versions) {
    std::string text;
    for (int version : since) text += fmt::format("{}{}", text.empty() ? "" : ", ", version);
    fmt::print("{:<28} since opset {}\n", name, text);
  }
  fmt::print(
      "{} operators; types f32 f64 f16 bf16 (stored, computed in f32) i8 i16 i32 i64 u8 u16 u32 "
      "u64 bool\n",
      versions.size());
  return Ok{};
}

struct LibraryRow {
  const char *name, *file, *purpose;
};
constexpr LibraryRow kOptionalLibraries[] = {
    {"CUDA driver", "libcuda.so.1", "the CUDA target"},
    {"NVRTC", "libnvrtc.so", "compiling CUDA kernels"},
    {"cuBLASLt", "libcublasLt.so", "library candidates on CUDA"},
};

Status doctor(bool as_json) {
  const codegen::cpu::Machine machine = HEDDLE_TRY(driver::machine_for(global_options()));
  json j = {{"build", driver::build_id()},
            {"cpu",
             {{"name", machine.cpu},
              {"triple", machine.triple},
              {"vector_bytes", machine.vector_bytes},
              {"threads", driver::machine_threads()}}},
            {"llvm", codegen::cpu::llvm_version()},
            {"cache", global_options().cache_dir},
            {"optional", json::array()}};
  for (const LibraryRow& row : kOptionalLibraries) {
    void* handle = ::dlopen(row.file, RTLD_LAZY | RTLD_LOCAL);
    j["optional"].push_back({{"name", row.name},
                             {"file", row.file},
                             {"found", handle != nullptr},
                             {"for", row.purpose}});
    if (handle != nullptr) ::dlclose(handle);
  }
  if (as_json) {
    fmt::print("{}\n", j.dump(2));
    return Ok{};
  }
  fmt::print("build    {}\nLLVM     {}\nCPU      {}, {}-bit vectors, {} threads\ncache    {}\n",
             driver::build_id(), codegen::cpu::llvm_version(), machine.cpu,
             8 * machine.vector_bytes, driver::machine_threads(),
             global_options().cache_dir.empty() ? "none" : global_options().cache_dir);
  for (const json& row : j["optional"])
    fmt::print("{:<8} {} ({}): {}\n", row["found"].get<bool>() ? "found" : "missing",
               row["name"].get<std::string>(), row["file"].get<std::string>(),
               row["for"].get<std::string>());
  return Ok{};
}

Status check(const ModelFlags& flags) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const onnx::CheckReport report =
      HEDDLE_TRY(onnx::check(flags.model, driver::import_options(options)));
  if (flags.json) {
    json problems = json::array();
    for (const onnx::Problem& p : report.problems)
      problems.push_back({{"node", p.node}, {"op", p.op}, {"reason", p.reason}});
    fmt::print("{}\n", json{{"model", flags.model},
                            {"nodes", report.nodes},
                            {"ok", report.problems.empty()},
                            {"problems", problems}}
                           .dump(2));
  } else {
    for (const onnx::Problem& p : report.problems) fmt::print("{}\n", p.reason);
    if (report.problems.empty())
      fmt::print("{}: {} nodes, nothing stands in the way\n", flags.model, report.nodes);
  }
  if (!report.problems.empty())
    return fail(ErrorCode::unsupported, "{}: {} of {} nodes cannot be compiled", flags.model,
                report.problems.size(), report.nodes);
  return Ok{};
}

}  // namespace

Verb add_check(CLI::App& verb) {
  auto flags = std::make_shared<ModelFlags>();
  add_model_flags(verb, *flags);
  return [flags] { return check(*flags); };
}

Verb add_ops(CLI::App& verb) {
  auto as_json = std::make_shared<bool>(false);
  verb.add_flag("--json", *as_json, "print JSON");
  return [as_json] { return list_ops(*as_json); };
}

Verb add_doctor(CLI::App& verb) {
  auto as_json = std::make_shared<bool>(false);
  verb.add_flag("--json", *as_json, "print JSON");
  return [as_json] { return doctor(*as_json); };
}

}  // namespace heddle::tool
