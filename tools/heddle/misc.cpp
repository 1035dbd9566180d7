#include <algorithm>
#include <filesystem>
#include <map>

#include "codegen/cuda/nvrtc.h"
#include "codegen/cuda/units.h"
#include "common.h"
#include "driver/cache.h"
#include "driver/code_cache.h"
#include "onnx/reader.h"
#include "ops/ops.h"
#include "runtime/artefact.h"
#include "runtime/cuda/device.h"

namespace heddle::tool {
namespace {

using nlohmann::json;

Status list_ops(bool as_json) {
  std::map<std::string, std::vector<int>> versions;
  for (const auto& family : ops::families())
    for (const ops::OpDef& op : family) versions[std::string(op.name)].push_back(op.since);
  for (const auto& [name, since] : onnx::control_operators())
    versions[std::string(name)].push_back(since);
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

json library_row(const char* name, const char* purpose, const std::string& found,
                 const std::string& missing) {
  return {{"name", name},
          {"for", purpose},
          {"found", missing.empty()},
          {"detail", missing.empty() ? found : missing}};
}

/// The libraries of the CUDA target: where each was found, or what is missing.
json cuda_libraries() {
  const Options& options = global_options();
  json rows = json::array();
  std::string found, missing;
  if (auto devices = runtime::cuda::devices(options.cuda_driver)) {
    for (const runtime::cuda::Device& d : *devices)
      found +=
          fmt::format("{}{}, {}, {} multiprocessors, {:.0f} GB", found.empty() ? "" : "; ", d.name,
                      d.arch(), d.multiprocessors, static_cast<double>(d.memory_bytes) / 1e9);
  } else {
    missing = devices.error().message;
  }
  rows.push_back(library_row("CUDA driver", "the CUDA target", found, missing));
  const std::string nvrtc = codegen::cuda::find_library("nvrtc", options.nvrtc);
  const auto version = codegen::cuda::nvrtc_version(options.nvrtc);
  rows.push_back(library_row("NVRTC", "compiling CUDA kernels",
                             version ? fmt::format("{}, version {}", nvrtc, *version) : "",
                             version ? "" : version.error().message));
  const std::string cublas = codegen::cuda::find_library("cublasLt", options.cublaslt);
  const auto blas = codegen::cuda::cublaslt_version(cublas);
  rows.push_back(library_row("cuBLASLt", "library candidates on CUDA",
                             blas ? fmt::format("{}, version {}", cublas, *blas) : "",
                             blas ? "" : blas.error().message));
  const auto tools = codegen::cuda::find_unit_tools(options.nvcc, options.cutlass);
  rows.push_back(library_row(
      "CUTLASS", "template candidates on CUDA at --budget full",
      tools ? fmt::format("{}, version {}, with {}", tools->cutlass, tools->version, tools->nvcc)
            : "",
      tools ? "" : tools.error().message));
  return rows;
}

Status doctor(bool as_json) {
  const codegen::cpu::Machine machine = HEDDLE_TRY(driver::machine_for(global_options()));
  json j = {{"build", driver::build_id()},
            {"cpu",
             {{"name", machine.cpu},
              {"triple", machine.triple},
              {"vector_bytes", machine.vector_bytes},
              {"tiles", machine.tiles},
              {"threads", driver::machine_threads()}}},
            {"llvm", codegen::cpu::llvm_version()},
            {"cache", global_options().cache_dir},
            {"optional", cuda_libraries()}};
  if (as_json) {
    fmt::print("{}\n", j.dump(2));
    return Ok{};
  }
  fmt::print("build    {}\nLLVM     {}\nCPU      {}, {}-bit vectors{}, {} threads\ncache    {}\n",
             driver::build_id(), codegen::cpu::llvm_version(), machine.cpu,
             8 * machine.vector_bytes, machine.tiles ? ", tile registers (AMX)" : "",
             driver::machine_threads(),
             global_options().cache_dir.empty() ? "none" : global_options().cache_dir);
  for (const json& row : j["optional"])
    fmt::print("{:<8} {} (for {}): {}\n", row["found"].get<bool>() ? "found" : "missing",
               row["name"].get<std::string>(), row["for"].get<std::string>(),
               row["detail"].get<std::string>());
  return Ok{};
}

Status check(const ModelFlags& flags) {
  HEDDLE_TRY(want_graph(flags, "check"));
  HEDDLE_TRY(want_one_size(flags, "check"));
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  onnx::CheckReport report = HEDDLE_TRY(onnx::check(flags.model, driver::import_options(options)));
  // What has no kernel for the device is known after planning, what does not compile where NVRTC
  // is.
  const bool can_compile = !codegen::cuda::find_library("nvrtc", options.options.nvrtc).empty();
  if (report.problems.empty() && flags.device != "cpu" && !report.staged) {
    const auto made = can_compile ? driver::compile_file(flags.model, options)
                                  : driver::plan_file(flags.model, options);
    if (!made) {
      if (made.error().code != ErrorCode::unsupported && made.error().code != ErrorCode::failed)
        return made.error();
      report.problems.push_back({"", "", made.error().message});
    }
  }
  if (flags.json) {
    json problems = json::array();
    for (const onnx::Problem& p : report.problems)
      problems.push_back({{"node", p.node}, {"op", p.op}, {"reason", p.reason}});
    fmt::print("{}\n", json{{"model", flags.model},
                            {"nodes", report.nodes},
                            {"ok", report.problems.empty()},
                            {"host_operators", report.host},
                            {"after_the_host", report.waiting},
                            {"problems", problems}}
                           .dump(2));
  } else {
    for (const onnx::Problem& p : report.problems) fmt::print("{}\n", p.reason);
    if (report.problems.empty())
      fmt::print("{}: {} nodes, nothing stands in the way\n", flags.model, report.nodes);
    if (report.problems.empty() && report.staged)
      fmt::print(
          "  it runs in stages; the host does {}; {} nodes wait for what a stage makes, and are "
          "checked when it runs\n",
          report.host.empty() ? "nothing" : fmt::format("{}", fmt::join(report.host, ", ")),
          report.waiting.size());
  }
  if (!report.problems.empty())
    return fail(ErrorCode::unsupported, "{}: problems: {}, nodes looked at: {}", flags.model,
                report.problems.size(), report.nodes);
  return Ok{};
}

}  // namespace

Verb add_check(CLI::App& verb) {
  auto flags = std::make_shared<ModelFlags>();
  add_model_flags(verb, *flags, false);
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
