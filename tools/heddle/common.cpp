#include "common.h"

#include "staged.h"
#include "step.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <random>
#include <set>

#include "driver/cache.h"
#include "driver/measure.h"
#include "onnx/reader.h"
#include "onnx/tensor_file.h"
#include "progress.h"
#include "runtime/artefact.h"
#include "support/log.h"
#include "support/process.h"

namespace heddle::tool {

CLI::Validator number(const std::string& want, bool (*holds)(double)) {
  const auto check = [want, holds](const std::string& text) {
    double value = 0;
    const bool good =
        CLI::detail::lexical_cast(text, value) && std::isfinite(value) && holds(value);
    return good ? std::string() : fmt::format("found {}, want {}", text, want);
  };
  return CLI::Validator(check, want);
}

void add_model_flags(CLI::App& verb, ModelFlags& flags, bool artefacts) {
  const auto plans = [&flags](const char* flag) {
    return [&flags, flag](const std::string&) { flags.planned_by = flag; };
  };
  verb.add_option("model", flags.model,
                  artefacts
                      ? "ONNX file, ONNX test-data folder, or compiled artefact"
                      : "ONNX file or ONNX test-data folder (a compiled artefact has no graph)");
  verb.add_option("--onnx,--model,--loadEngine", flags.model, "the same");
  verb.add_option("--device", flags.device, "cpu, cuda, or cuda:N")
      ->capture_default_str()
      ->each([&flags](const std::string&) { flags.device_given = true; });
  verb.add_option("--arch", flags.arch,
                  "compile for this GPU (sm_80, sm_89, sm_90a), which need not be here");
  verb.add_option("--shape,--shapes", flags.shapes,
                  "extents of an input with symbolic ones: x=1x3x224x224 (or x:1x3x224x224)");
  verb.add_option(
      "--dynamic", flags.dynamic,
      "sizes of a symbolic dimension that one program shall run: NAME=1..512, "
      "NAME=32..640:32 (steps), NAME=1..512@128,512 (padded to these), NAME=8,16 (only "
      "these, nothing padded); NAME is the model's, or INPUT.AXIS where it has none; "
      "or what one follows from: total=past+1 (names like 'past + 1' say so themselves); or "
      "how many there can be of what a node finds (NonZero, NonMaxSuppression): "
      "NODE=0..300");
  verb.add_option("--size", flags.sizes,
                  "of the sizes of --dynamic, the one to run now: NAME=77 (default: that of the "
                  "inputs given, else the largest)");
  verb.add_option("--threads", flags.threads, "threads (0: as many as this process may run on)")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  verb.add_option("--budget", flags.budget, "time for measuring candidates: none, seconds, or full")
      ->capture_default_str()
      ->each(plans("--budget"));
  verb.add_option("--strategy", flags.strategy,
                  "how kernels are chosen: single, operators, greedy, partition, recompute, full")
      ->capture_default_str()
      ->each(plans("--strategy"));
  verb.add_option("--mode", flags.mode,
                  "how kernels run: kernels (one after another), monolith (all as one parallel "
                  "region), auto (what measures faster), monolith:tuned (edge by edge, as pairs "
                  "of stages alone are fastest), or a monolith laid out as "
                  "monolith:grain=4,whole=2.5,depth,longest,barriers")
      ->capture_default_str()
      ->each(plans("--mode"));
  verb.add_option("--locked", flags.locked,
                  "file of measurements that decide the plan: made within the budget if it is not "
                  "there, else no kernel is measured and the plan is the same again; on the CPU it "
                  "keeps the mode, too, measured if there is a budget and none in it")
      ->each(plans("--locked"));
  verb.add_option("--precision", flags.precision,
                  "what f32 values are stored as (arithmetic stays f32): f32, f16, bf16; or tf32: "
                  "f32, but products on a GPU round their operands to tf32")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "tf32", "f16", "bf16"}));
  verb.add_flag_callback(
          "--fp16", [&flags] { flags.precision = "f16"; }, "--precision f16")
      ->group("As trtexec");
  verb.add_flag_callback(
          "--bf16", [&flags] { flags.precision = "bf16"; }, "--precision bf16")
      ->group("As trtexec");
  verb.add_option("--memory-limit", flags.memory_limit_mb,
                  "keep less and compute more again until the program needs no more MB than "
                  "this; refuse (exit code 5) if it still does")
      ->check(number("a number of MB above 0", [](double v) { return v > 0; }));
  verb.add_option("--seed", flags.seed,
                  "random inputs of this seed, even where the folder has test data (default: its "
                  "test data, else seed 0)")
      ->check(whole_number<std::uint64_t>("from 0 to 2^64 - 1", "UINT"));
  verb.add_option("--input,--loadInputs", flags.inputs, "NAME=FILE (.npy or .pb) for an input");
  verb.add_flag("--json", flags.json, "print JSON");
}

Status want_graph(const ModelFlags& flags, std::string_view verb) {
  if (flags.model.empty() || !runtime::is_artefact(flags.model)) return Ok{};
  return fail(ErrorCode::usage,
              "{}: '{}' is a compiled artefact, which holds no graph; want the ONNX file or "
              "test-data folder that it was compiled from",
              verb, flags.model);
}

Status want_one_size(const ModelFlags& flags, std::string_view verb) {
  if (!wants_sizes(flags) && flags.sizes.empty()) return Ok{};
  return fail(ErrorCode::usage, "{}: found --dynamic or --size, want one size: --shape", verb);
}

Options& global_options() {
  static Options options;
  return options;
}

namespace {

/// "x=1x3x224x224", also trtexec's "x:1x3x224x224".
Result<std::pair<std::string, Shape>> parse_shape(const std::string& text) {
  const std::size_t split = text.find_last_of("=:");
  if (split == std::string::npos || split == 0)
    return fail(ErrorCode::usage, "--shape: found '{}', want NAME=1x3x224x224", text);
  Shape shape;
  std::size_t position = split + 1;
  while (position <= text.size()) {
    const std::size_t end = std::min(text.find('x', position), text.size());
    const std::string part = text.substr(position, end - position);
    if (part.empty() || part.size() > 12 ||
        part.find_first_not_of("0123456789") != std::string::npos)
      return fail(ErrorCode::usage, "--shape: found '{}', want NAME=1x3x224x224", text);
    shape.push_back(std::stoll(part));
    position = end + 1;
  }
  return std::pair{text.substr(0, split), shape};
}

}  // namespace

Result<driver::CompileOptions> compile_options(const ModelFlags& flags) {
  if (flags.model.empty())
    return fail(ErrorCode::usage, "found no model, want an ONNX file or folder, or an artefact");
  if (!flags.arch.empty() && flags.device == "cpu" &&
      (flags.device_given || !runtime::is_artefact(flags.model)))
    return fail(ErrorCode::usage, "--arch {}: found --device cpu, want cuda", flags.arch);
  driver::CompileOptions options;
  options.device = flags.device;
  options.arch = flags.arch;
  options.threads = flags.threads > 0 ? flags.threads : driver::machine_threads();
  options.budget = flags.budget;
  options.strategy = flags.strategy;
  options.mode = flags.mode;
  options.locked = flags.locked;
  options.precision = flags.precision == "f16"    ? DType::f16
                      : flags.precision == "bf16" ? DType::bf16
                                                  : DType::f32;
  options.tf32 = flags.precision == "tf32";
  constexpr double kMostMb = 1e12;
  const double limit = flags.memory_limit_mb;
  if (limit != 0 && !(limit >= 1e-6 && limit <= kMostMb))
    return fail(ErrorCode::usage, "--memory-limit: found {} MB, want 1e-6 to {:.0e}", limit,
                kMostMb);
  options.memory_limit = static_cast<std::int64_t>(1e6 * limit);
  options.options = global_options();
  options.progress = progress_line();
  for (const std::string& text : flags.shapes) options.shapes.insert(HEDDLE_TRY(parse_shape(text)));
  options.facts = HEDDLE_TRY(driver::parse_sizes(flags.dynamic)).facts;
  return options;
}

namespace {

Status within(double limit_mb, const runtime::Program& p, int threads) {
  const driver::MemoryReport needs = driver::memory_of(p, threads);
  const double mb = 1e-6 * static_cast<double>(needs.bytes);
  const double machine_mb = 1e-6 * static_cast<double>(machine_memory());
  if (mb > machine_mb)
    return fail(ErrorCode::out_of_memory, "the program needs {:.0f} MB, the machine has {:.0f}", mb,
                machine_mb);
  if (limit_mb <= 0 || mb <= limit_mb) return Ok{};
  return fail(
      ErrorCode::out_of_memory,
      "--memory-limit: the program needs {:.1f} MB ({:.1f} of constants, {:.1f} of arena, the "
      "rest inputs, outputs and scratch), "
      "found a limit of {:g}",
      mb, 1e-6 * static_cast<double>(needs.constants), 1e-6 * static_cast<double>(needs.arena),
      limit_mb);
}

}  // namespace

bool wants_sizes(const ModelFlags& flags) {
  const auto wishes = driver::parse_sizes(flags.dynamic);
  return !wishes || !wishes->ranges.empty();
}

Result<std::vector<driver::SizeRange>> size_ranges(const ModelFlags& flags) {
  return HEDDLE_TRY(driver::parse_sizes(flags.dynamic)).ranges;
}

Result<bool> wants_sizes_of_values(const ModelFlags& flags) {
  const auto ranges = HEDDLE_TRY(size_ranges(flags));
  if (ranges.empty() || runtime::is_artefact(flags.model)) return false;
  onnx::ImportOptions options = driver::import_options(HEDDLE_TRY(compile_options(flags)));
  for (const driver::SizeRange& range : ranges) options.dimensions[range.name] = range.sizes.back();
  const auto stage = onnx::import_stage(flags.model, options);
  return stage && !stage->is_last();
}

Result<std::size_t> wanted_case(const runtime::SizedProgram& sized, const ModelFlags& flags) {
  std::map<std::string, Shape> shapes;
  for (const std::string& text : flags.shapes) shapes.insert(HEDDLE_TRY(parse_shape(text)));
  for (const std::string& text : flags.inputs)
    if (const std::size_t split = text.find('='); split != std::string::npos)
      shapes[text.substr(0, split)] = HEDDLE_TRY(onnx::read_tensor(text.substr(split + 1))).shape();
  std::map<std::string, std::int64_t> sizes;
  for (const std::string& text : flags.sizes) sizes.insert(HEDDLE_TRY(driver::parse_size(text)));
  return sized.find(shapes, sizes);
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Status open_sized(const ModelFlags& flags, const driver::CompileOptions& options, Model& model) {
  const auto loaded = HEDDLE_TRY(driver::SizedModel::load(model.sized, options));
  model.session = HEDDLE_TRY(loaded->session(HEDDLE_TRY(wanted_case(*model.sized, flags))));
  model.program = std::shared_ptr<const runtime::Program>(model.session, &model.session->program());
  return Ok{};
}

/// The chain for inputs of the sizes that the flags ask for.
Status choose_inputs(Model& model, const ModelFlags& flags) {
  const runtime::SizedProgram& first = model.chain->links[0].programs;
  const runtime::SizeCase& row = first.cases[HEDDLE_TRY(wanted_case(first, flags))];
  auto chosen = std::make_shared<runtime::Chain>(*model.chain);
  for (runtime::Port& port : chosen->inputs)
    for (std::size_t i = 0; i < row.inputs.size(); ++i)
      if (first.programs[row.program]->inputs[i].name == port.name) port.type.shape = row.inputs[i];
  model.chain = std::move(chosen);
  model.program = std::make_shared<const runtime::Program>(model.chain->as_program());
  return Ok{};
}

/// An error if --device or --arch ask for other code than the artefact holds.
Status has_code_for(const runtime::Program& program, const ModelFlags& flags) {
  const std::string kind = flags.device.substr(0, flags.device.find(':'));
  if (flags.device_given && program.device.substr(0, program.device.find(' ')) != kind)
    return fail(ErrorCode::usage, "--device {}: '{}' was compiled for {}", flags.device,
                flags.model, program.device);
  if (!flags.arch.empty() && program.device != "cuda " + flags.arch)
    return fail(ErrorCode::usage, "--arch {}: '{}' was compiled for {}", flags.arch, flags.model,
                program.device);
  return Ok{};
}

}  // namespace

Result<Model> compile_model(const ModelFlags& flags) {
  driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  Model model;
  const auto start = Clock::now();
  if (runtime::is_artefact(flags.model)) {
    if (flags.precision != "f32")
      return fail(ErrorCode::usage,
                  "--precision: found {} for an artefact, which has the precision that it was "
                  "compiled with",
                  flags.precision);
    if (!flags.dynamic.empty())
      return fail(ErrorCode::usage, "--dynamic: found an artefact, whose sizes are decided");
    if (!flags.planned_by.empty())
      return fail(ErrorCode::usage, "{}: found an artefact, which was planned when it was compiled",
                  flags.planned_by);
    if (runtime::is_chain_artefact(flags.model))
      model.chain = std::make_shared<const runtime::Chain>(
          HEDDLE_TRY(runtime::read_chain_artefact(flags.model)));
    else if (runtime::is_sized_artefact(flags.model))
      model.sized = std::make_shared<const runtime::SizedProgram>(
          HEDDLE_TRY(runtime::read_sized_artefact(flags.model)));
    else
      model.program =
          std::make_shared<runtime::Program>(HEDDLE_TRY(runtime::read_artefact(flags.model)));
    model.from_artefact = true;
    if (options.options.ring != "auto")
      log(LogLevel::warning, "--ring {}: without effect: found an artefact, whose code is made",
          options.options.ring);
    if (model.program) HEDDLE_TRY(within(flags.memory_limit_mb, *model.program, options.threads));
  } else if (flags.training) {
    model.program = HEDDLE_TRY(compile_step(flags)).program;
  } else if (HEDDLE_TRY(wants_sizes_of_values(flags))) {
    const auto compiled =
        HEDDLE_TRY(driver::compile_chain(flags.model, HEDDLE_TRY(size_ranges(flags)), options));
    model.chain = compiled.chain;
    for (const std::string& note : compiled.notes) model.notes += "  " + note + "\n";
  } else if (wants_sizes(flags)) {
    options.shapes.clear();  // they choose among the sizes
    const auto compiled =
        HEDDLE_TRY(driver::compile_sizes(flags.model, HEDDLE_TRY(size_ranges(flags)), options));
    model.sized = compiled.program;
    for (const driver::SizeBucket& bucket : compiled.buckets)
      if (!bucket.note.empty()) model.notes += "  " + bucket.note + "\n";
  } else {
    driver::Compiled compiled =
        HEDDLE_TRY(or_stages(flags, driver::compile_file(flags.model, options)));
    model.program = compiled.program;
    model.from_cache = compiled.from_cache;
  }
  model.compile_seconds = seconds_since(start);
  if (model.chain) HEDDLE_TRY(choose_inputs(model, flags));
  if (model.sized) {
    const runtime::SizeCase& row = model.sized->cases[HEDDLE_TRY(wanted_case(*model.sized, flags))];
    for (const auto& [name, size] : row.sizes)
      model.sizes += fmt::format("{}{}={}", model.sizes.empty() ? "" : ", ", name, size);
    model.program = model.sized->programs[row.program];
  } else if (!model.chain && !flags.sizes.empty()) {
    return fail(ErrorCode::usage, "--size: the model has one size only; want --dynamic too");
  }
  if (model.from_artefact) HEDDLE_TRY(has_code_for(*model.program, flags));
  return model;
}

Result<Model> open_model(const ModelFlags& flags) {
  Model model = HEDDLE_TRY(compile_model(flags));
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const auto start = Clock::now();
  if (model.sized) HEDDLE_TRY(open_sized(flags, options, model));
  HEDDLE_TRY(within(flags.memory_limit_mb, *model.program, options.threads));
  if (model.chain)
    model.session = HEDDLE_TRY(driver::load_chain(model.chain, options));
  else if (!model.sized)
    model.session = HEDDLE_TRY(driver::load(model.program, options));
  model.load_seconds = seconds_since(start);
  return model;
}

std::vector<std::pair<std::string, Tensor>> model_outputs(const runtime::Program& program,
                                                          const std::vector<Tensor>& outputs) {
  std::vector<std::string> names;
  for (const runtime::Port& port : program.outputs) names.push_back(port.name);
  const std::map<std::string, Tensor> cut = onnx::trimmed(names, outputs);
  std::vector<std::pair<std::string, Tensor>> out;
  for (const std::string& name : names)
    if (const auto found = cut.find(name); found != cut.end()) out.emplace_back(*found);
  return out;
}

Result<TestData> test_data_of(const std::string& model, const runtime::Program& program) {
  namespace fs = std::filesystem;
  const fs::path base = fs::is_directory(model) ? fs::path(model) : fs::path(model).parent_path();
  const fs::path folder = base / "test_data_set_0";
  TestData data;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const fs::path file = folder / fmt::format("input_{}.pb", i);
    if (!fs::exists(file)) break;
    data.inputs.push_back(HEDDLE_TRY(onnx::read_tensor(file.string())));
  }
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    const fs::path file = folder / fmt::format("output_{}.pb", i);
    if (!fs::exists(file)) break;
    data.outputs.push_back(HEDDLE_TRY(onnx::read_tensor(file.string())));
  }
  if (data.inputs.size() != program.inputs.size()) data = {};
  std::size_t extents = 0;
  for (const runtime::Port& port : program.outputs)
    for (std::size_t axis = 0; axis < port.type.shape.size(); ++axis)
      for (const runtime::Port& other : program.outputs)
        extents += other.name == onnx::extent_name(port.name, static_cast<int>(axis));
  if (data.outputs.size() + extents != program.outputs.size()) data.outputs.clear();
  return data;
}

Tensor random_tensor(const TensorType& type, std::mt19937_64& random) {
  Tensor tensor(type);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    if (is_float(type.dtype))
      tensor.set(i, normal(random));
    else
      tensor.set_int(i, static_cast<std::int64_t>(random() % (type.dtype == DType::b1 ? 2 : 100)));
  }
  return tensor;
}

Result<Inputs> make_inputs(const runtime::Program& program, const ModelFlags& flags) {
  if (!global_options().cpu.empty())
    HEDDLE_TRY(driver::runs_here(HEDDLE_TRY(driver::machine_for(global_options()))));
  Inputs inputs;
  if (!flags.seed) inputs.values = HEDDLE_TRY(test_data_of(flags.model, program)).inputs;
  inputs.test_data = !inputs.values.empty() && flags.inputs.empty();
  inputs.from = "test_data_set_0";
  if (inputs.values.empty()) {
    std::mt19937_64 random(flags.seed.value_or(0));
    for (const runtime::Port& port : program.inputs)
      inputs.values.push_back(random_tensor(port.type, random));
    inputs.from = fmt::format("random numbers of seed {}", flags.seed.value_or(0));
  }
  if (flags.training)
    inputs.values = HEDDLE_TRY(step_inputs(program, flags, std::move(inputs.values)));
  std::set<std::size_t> files;
  for (const std::string& text : flags.inputs) {
    const std::size_t split = text.find('=');
    const std::string name = text.substr(0, split);
    std::size_t port = 0;
    while (port < program.inputs.size() && program.inputs[port].name != name) ++port;
    if (split == std::string::npos || port == program.inputs.size()) {
      std::string names;
      for (const runtime::Port& p : program.inputs) names += " '" + p.name + "'";
      return fail(ErrorCode::usage, "--input: found '{}', want NAME=FILE with NAME one of{}", text,
                  names);
    }
    inputs.values[port] = HEDDLE_TRY(onnx::read_tensor(text.substr(split + 1)));
    files.insert(port);
  }
  if (!files.empty())
    inputs.from = files.size() == inputs.values.size() ? "files" : "files, others " + inputs.from;
  return inputs;
}

Tolerance tolerance_of(const std::string& precision) {
  if (precision == "bf16") return {1e-2, 1e-1};
  if (precision == "f16" || precision == "tf32") return {2e-3, 2e-2};
  return {1e-3, 1e-3};
}

Difference compare(const Tensor& found, const Tensor& wanted, double relative, double absolute) {
  Difference difference;
  if (found.type() != wanted.type()) {
    difference.worst = difference.max_absolute = INFINITY;
    return difference;
  }
  for (std::int64_t i = 0; i < found.count(); ++i) {
    const double f = found.at(i), w = wanted.at(i);
    if (f == w || (std::isnan(f) && std::isnan(w))) {
      if (std::isfinite(w)) difference.scale = std::max(difference.scale, std::abs(w));
      continue;
    }
    const double error = std::isfinite(f) && std::isfinite(w) ? std::abs(f - w) : INFINITY;
    if (std::isfinite(w)) difference.scale = std::max(difference.scale, std::abs(w));
    difference.max_absolute = std::max(difference.max_absolute, error);
    const double units = error / (absolute + relative * std::abs(w));
    if (units > difference.worst) {
      difference.worst = units;
      difference.index = i;
    }
  }
  return difference;
}

}  // namespace heddle::tool
