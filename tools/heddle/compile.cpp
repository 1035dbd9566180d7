#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "codegen/cuda/cuda.h"
#include "common.h"
#include "driver/cache.h"
#include "driver/mode.h"
#include "driver/platform.h"
#include "driver/source_map.h"
#include "native.h"
#include "onnx/reader.h"
#include "plan/plan.h"
#include "prim/text.h"
#include "runtime/artefact.h"
#include "staged.h"
#include "support/log.h"

namespace heddle::tool {
namespace {

struct CompileFlags : ModelFlags {
  std::string output;
  std::string emit = "artefact";
};

Status write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return fail("{}: cannot write", path);
  return Ok{};
}

/// One unit of CUDA text: every kernel once, in execution order.
std::string cuda_unit(const driver::Compiled& compiled) {
  std::string text = codegen::cuda::unit_header();
  std::set<std::string> written;
  for (const driver::CompiledKernel& kernel : compiled.kernels)
    if (written.insert(kernel.code.source).second)
      text += fmt::format("// {}: {}\n{}\n", kernel.lowered.kernel.name, kernel.lowered.schedule,
                          driver::annotated(kernel.code.source,
                                            driver::source_map(compiled.graph, kernel.code.lines)));
  return text;
}

/// Text of a level. The constants that a graph's text only names go into a file beside `output`.
Result<std::string> emitted_text(const CompileFlags& flags, const driver::CompileOptions& options,
                                 const std::string& output) {
  const driver::Compiled compiled =
      HEDDLE_TRY(or_stages(flags, driver::plan_file(flags.model, options)));
  if (flags.emit == "prim") {
    const prim::ConstantTable large = prim::large_constants(compiled.graph);
    if (!large.empty()) HEDDLE_TRY(prim::save_constants(large, prim::constants_beside(output)));
    return prim::print(compiled.graph);
  }
  if (flags.emit == "plan") return plan::print(compiled.graph, compiled.plan);
  const driver::Platform platform = HEDDLE_TRY(driver::platform_for(options));
  if (flags.emit == (platform.cuda ? "llvm" : "cuda"))
    return fail(ErrorCode::usage, "--emit {}: found --device {}, want {}", flags.emit,
                options.device, platform.cuda ? "cpu" : "cuda");
  if (flags.emit == "cuda") return cuda_unit(compiled);
  std::string text;
  for (const driver::CompiledKernel& kernel : compiled.kernels)
    text += flags.emit == "kernel" ? kernel::to_string(kernel.lowered.kernel) + "\n"
                                   : HEDDLE_TRY(driver::source_of(kernel, platform)) + "\n";
  return text;
}

/// The forms of the program that a C compiler makes: file ending and kind.
struct NativeForm {
  const char *emit, *ending;
  NativeKind kind;
};
constexpr NativeForm kNativeForms[] = {{"obj", ".o", NativeKind::object},
                                       {"so", ".so", NativeKind::shared},
                                       {"exe", "", NativeKind::executable}};

const NativeForm* native_form(const std::string& emit) {
  const auto* form = std::ranges::find(kNativeForms, emit, &NativeForm::emit);
  return form == std::end(kNativeForms) ? nullptr : form;
}

/// Its run-time has no monoliths: none is measured, and one that is asked for is no surprise.
Status run_as_kernels(const std::string& emit, driver::CompileOptions& options) {
  const driver::ModeRequest mode = HEDDLE_TRY(driver::parse_mode(options.mode));
  if (mode.kind == driver::ModeRequest::Kind::monolith)
    log(LogLevel::warning,
        "--mode {}: without effect: --emit {} runs kernels one after another, and threads meet "
        "after each phase",
        options.mode, emit);
  options.mode = "kernels";
  return Ok{};
}

std::string default_output(const CompileFlags& flags) {
  const std::string model = std::filesystem::path(flags.model).stem().string();
  if (const NativeForm* form = native_form(flags.emit)) return model + form->ending;
  return model + (flags.emit == "artefact" ? ".heddle" : "." + flags.emit);
}

Status write_program(const runtime::Program& program, const CompileFlags& flags,
                     const std::string& output) {
  if (const NativeForm* form = native_form(flags.emit))
    return write_native(program, form->kind, output);
  return runtime::write_artefact(program, output);
}

using PhaseTimes = std::vector<driver::PhaseTime>;
double total(const PhaseTimes& times) {
  double seconds = 0;
  for (const driver::PhaseTime& time : times) seconds += time.seconds;
  return seconds;
}
void print_phases(const PhaseTimes& times) {
  for (const driver::PhaseTime& time : times)
    fmt::print("  {:<10} {:8.3f} s\n", time.name, time.seconds);
}
/// The same beside what `j` holds already.
void print_phases(const PhaseTimes& times, nlohmann::json j) {
  for (const driver::PhaseTime& time : times) j["phases"][time.name] = time.seconds;
  fmt::print("{}\n", j.dump(2));
}

/// One artefact for several sizes.
Status run_sized(const CompileFlags& flags) {
  if (flags.emit != "artefact")
    return fail(ErrorCode::usage, "--emit {}: want an artefact for --dynamic", flags.emit);
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const std::string output = flags.output.empty() ? default_output(flags) : flags.output;
  const driver::CompiledSizes compiled =
      HEDDLE_TRY(driver::compile_sizes(flags.model, HEDDLE_TRY(size_ranges(flags)), options));
  HEDDLE_TRY(runtime::write_sized_artefact(*compiled.program, output));
  const double seconds = total(compiled.times);
  const auto bytes = std::filesystem::file_size(output);
  if (flags.json) {
    nlohmann::json j = {{"output", output},
                        {"bytes", bytes},
                        {"seconds", seconds},
                        {"sizes", compiled.program->cases.size()},
                        {"programs", compiled.program->programs.size()}};
    print_phases(compiled.times, j);
    return Ok{};
  }
  fmt::print("{}: {} sizes, {} programs, file {:.1f} MB, {:.2f} s\n{}", output,
             compiled.program->cases.size(), compiled.program->programs.size(),
             static_cast<double>(bytes) / 1e6, seconds, compiled.program->table());
  for (const driver::SizeBucket& bucket : compiled.buckets)
    if (!bucket.note.empty()) fmt::print("  {}\n", bucket.note);
  print_phases(compiled.times);
  return Ok{};
}

/// One artefact of a model in which values decide shapes; `why` it is no single program, if that is
/// known.
Status run_chain(const CompileFlags& flags, const std::string& why) {
  if (flags.emit != "artefact")
    return fail(ErrorCode::usage, "--emit {}: values decide shapes, want an artefact", flags.emit);
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const std::string output = flags.output.empty() ? default_output(flags) : flags.output;
  auto chain = driver::compile_chain(flags.model, HEDDLE_TRY(size_ranges(flags)), options);
  if (!chain && chain.error().code == ErrorCode::unsupported)
    return unsupported("{}{}; as an artefact: run, verify and explain take it in stages",
                       why.empty() ? "" : why + "; as one program: ", chain.error().message);
  const driver::CompiledChain compiled = HEDDLE_TRY(std::move(chain));
  HEDDLE_TRY(runtime::write_chain_artefact(*compiled.chain, output));
  const double seconds = total(compiled.times);
  const auto bytes = std::filesystem::file_size(output);
  std::size_t programs = 0;
  for (const runtime::Chain::Link& link : compiled.chain->links)
    programs += link.programs.programs.size();
  if (flags.json) {
    nlohmann::json j = {{"output", output},
                        {"bytes", bytes},
                        {"seconds", seconds},
                        {"links", compiled.chain->links.size()},
                        {"programs", programs}};
    print_phases(compiled.times, j);
    return Ok{};
  }
  fmt::print("{}: values decide shapes: {} links, {} programs, file {:.1f} MB, {:.2f} s\n{}",
             output, compiled.chain->links.size(), programs, static_cast<double>(bytes) / 1e6,
             seconds, compiled.chain->table());
  for (const std::string& note : compiled.notes) fmt::print("  {}\n", note);
  print_phases(compiled.times);
  return Ok{};
}

Status run(const CompileFlags& flags) {
  HEDDLE_TRY(want_graph(flags, "compile"));
  if (HEDDLE_TRY(wants_sizes_of_values(flags))) return run_chain(flags, "");
  if (wants_sizes(flags)) return run_sized(flags);
  driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const std::string output = flags.output.empty() ? default_output(flags) : flags.output;
  if (lists("prim,plan,kernel,llvm,cuda", flags.emit)) {
    HEDDLE_TRY(write_file(output, HEDDLE_TRY(emitted_text(flags, options, output))));
    fmt::print("{}\n", output);
    return Ok{};
  }
  if (native_form(flags.emit) != nullptr) HEDDLE_TRY(run_as_kernels(flags.emit, options));
  auto program = driver::compile_file(flags.model, options);
  if (!program && flags.emit == "artefact" && works_in_stages(flags, program.error()))
    return run_chain(flags, program.error().message);
  const driver::Compiled compiled = HEDDLE_TRY(or_stages(flags, std::move(program)));
  HEDDLE_TRY(write_program(*compiled.program, flags, output));
  const double seconds = total(compiled.times);
  const auto bytes = std::filesystem::file_size(output);
  if (flags.json) {
    nlohmann::json j = {{"output", output},
                        {"bytes", bytes},
                        {"seconds", seconds},
                        {"from_cache", compiled.from_cache},
                        {"kernels", compiled.program->launches.size()},
                        {"arena_bytes", compiled.program->arena_bytes}};
    print_phases(compiled.times, j);
    return Ok{};
  }
  fmt::print(
      "{}: {} kernels, arena {:.1f} MB, file {:.1f} MB, {:.2f} s{}\n", output,
      compiled.program->launches.size(), static_cast<double>(compiled.program->arena_bytes) / 1e6,
      static_cast<double>(bytes) / 1e6, seconds, compiled.from_cache ? " (from the cache)" : "");
  print_phases(compiled.times);
  return Ok{};
}

}  // namespace

Verb add_compile(CLI::App& verb) {
  auto flags = std::make_shared<CompileFlags>();
  add_model_flags(verb, *flags, false);
  verb.add_option("-o,--output,--saveEngine", flags->output, "file to write");
  verb.add_option("--emit", flags->emit,
                  "artefact; obj, so (with a C header) or exe, which run without Heddle, as "
                  "--mode kernels; or the text of a level")
      ->capture_default_str()
      ->check(CLI::IsMember(
          {"artefact", "obj", "so", "exe", "prim", "plan", "kernel", "llvm", "cuda"}));
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
