#include "driver/platform.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "codegen/cuda/nvrtc.h"
#include "plan/calibrate.h"
#include "support/log.h"

namespace heddle::driver {

lower::Target Platform::target() const {
  if (cuda) {
    lower::Target target = lower::gpu_target(gpu.multiprocessors, capability());
    target.shared_bytes = gpu.shared_per_block;
    target.library = library;
    target.tf32 = tf32;
    target.grid_barriers = gpu.cooperative;
    target.cutlass = units;
    if (persistent) {
      target.stage_threads = persistent->threads;
      target.library = target.cutlass = target.grid_barriers = false;
      target.whole_pieces = ring_least > 0;
      constexpr int kReserved = 1024;  // of each block
      target.shared_bytes = std::min(
          gpu.shared_per_block, gpu.shared_per_multiprocessor / persistent->blocks - kReserved);
    }
    return target;
  }
  lower::Target target;
  target.vector_bytes = cpu.vector_bytes;
  target.vector_registers = cpu.vector_registers;
  target.fma_rate = cpu.fma_rate;
  target.quads = cpu.quads;
  target.byte_tables = cpu.byte_tables;
  target.bf16_pairs = cpu.fast_pairs;
  target.threads = threads;
  const plan::MachineModel caches = plan::default_machine(threads, cpu.vector_bytes);
  target.l1_bytes = caches.l1_bytes;
  target.l2_bytes = caches.l2_bytes;
  // Servers lend a virtual machine less than its tables say.
  target.l3_bytes = std::min(target.l3_bytes, caches.l3_bytes);
  target.tiles = cpu.tiles && !strict;
  target.winograd = strict ? 0 : 4;
  target.strassen = !strict;
  target.bands = bands;
  target.joins = joins;
  return target;
}

plan::MachineModel Platform::model() const {
  if (cuda) {
    plan::MachineModel model = plan::gpu_machine(capability(), gpu.multiprocessors, gpu.l2_bytes);
    if (tf32) model.matrix_gflops = model.half_matrix_gflops / 2;
    return model;
  }
  plan::MachineModel model = plan::default_machine(threads, cpu.vector_bytes);
  model.peak_gflops *= cpu.fma_rate / 2;
  add_instructions(model);
  return model;
}

void Platform::add_instructions(plan::MachineModel& model) const {
  model.quads = cpu.quads;
  model.byte_tables = cpu.byte_tables;
  model.bf16_pairs = cpu.fast_pairs;
}

std::string Platform::machine_name(bool with_units) const {
  if (cuda)
    return fmt::format("{}, {}, {} multiprocessors{}{}", gpu.name, gpu.arch(), gpu.multiprocessors,
                       library && !persistent ? ", cuBLASLt" : "", tf32 ? ", tf32" : "") +
           (with_units && !persistent ? ", CUTLASS" : "") + (persistent ? ", stages" : "") +
           (persistent && ring_least > 0 ? ", ring" : "");
  return plan::machine_name(threads, cpu.vector_bytes) + (strict ? ", strict" : "");
}

std::optional<int> cuda_ordinal(const std::string& device) {
  if (device == "cuda") return 0;
  if (!device.starts_with("cuda:")) return std::nullopt;
  int number = 0;
  const char *begin = device.data() + 5, *end = device.data() + device.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || rest != end || number < 0) return std::nullopt;
  return number;
}

namespace {

/// Items that read less of their weights wait for little. Not measured.
constexpr std::int64_t kLeastPaged = 4096;  // bytes

/// The ring's copies and barriers are Hopper's.
std::int64_t ring_least(const std::string& option, const Platform& p) {
  if (option == "off" || p.gpu.arch() != "sm_90a") return 0;
  std::int64_t least = kLeastPaged;
  if (option != "auto") std::from_chars(option.data(), option.data() + option.size(), least);
  return least;
}

/// Says once why --ring does nothing here.
void warn_of_no_ring(const CompileOptions& options, const Platform& p) {
  const bool both_modes = options.mode == "auto" && p.found && options.budget != "none";
  const std::string why = !p.cuda ? "--device cpu has none, want cuda"
                          : p.gpu.arch() != "sm_90a"
                              ? "code for " + p.gpu.arch() + " has none, want sm_90a"
                          : !p.persistent && !both_modes
                              ? "--mode " + options.mode + " makes kernels here, want monolith"
                              : "";
  if (options.options.ring == "auto" || why.empty()) return;
  static std::once_flag said;
  std::call_once(said, [&] {
    log(LogLevel::warning, "--ring {}: without effect: {}", options.options.ring, why);
  });
}

constexpr int kLeastCapability = 80;  // cp.async, bf16 and tf32 on tensor cores

/// Finds the schedules for the processor. A file that cannot be read is an error; one that was made
/// for something else is not used.
Status find_schedules(const std::string& option, Platform& p) {
  if (option == "none" || p.strict) {
    p.schedules_note =
        option == "none" ? "not used: --schedules none" : "not used: strict accuracy";
    return Ok{};
  }
  std::string text(plan::shipped_schedules(p.cpu.cpu));
  const std::string name = option.empty() ? "shipped for " + p.cpu.cpu : option;
  if (!option.empty()) {
    std::ifstream file(option);
    if (!file || !std::filesystem::is_regular_file(option))
      return fail(ErrorCode::usage, "--schedules: {}: cannot read", option);
    text.assign(std::istreambuf_iterator<char>(file), {});
  } else if (text.empty()) {
    p.schedules_note = "none shipped for " + p.cpu.cpu;
    return Ok{};
  }
  plan::Schedules found = HEDDLE_TRY(plan::parse_schedules(text, name));
  p.schedules_note = name;
  if (const std::string why = plan::staleness(found, p.cpu.cpu); !why.empty()) {
    p.schedules_note = fmt::format("not used: {}: {}", name, why);
    if (!option.empty()) log(LogLevel::warning, "--schedules: {}: {}; not used", name, why);
    return Ok{};
  }
  p.schedules = std::make_shared<const plan::Schedules>(std::move(found));
  return Ok{};
}

Result<Platform> find_platform(const CompileOptions& options) {
  Platform p;
  p.cpu = HEDDLE_TRY(machine_for(options.options));
  p.threads = options.threads > 0 ? options.threads : machine_threads();
  p.strict = p.cpu.exact_functions = options.options.accuracy == "strict";
  if (options.tf32 && options.device == "cpu")
    return fail(ErrorCode::usage, "--precision tf32: found --device cpu, want cuda or cuda:N");
  if (options.device == "cpu") {
    HEDDLE_TRY(find_schedules(options.options.schedules, p));
    return p;
  }
  const std::optional<int> ordinal = cuda_ordinal(options.device);
  if (!ordinal)
    return fail(ErrorCode::usage, "--device: found '{}', want cpu, cuda or cuda:N", options.device);
  p.cuda = true;
  p.tf32 = options.tf32;
  if (options.mode.starts_with("monolith")) p.persistent.emplace();
  p.ordinal = *ordinal;
  const auto devices = runtime::cuda::devices(options.options.cuda_driver);
  if (devices && static_cast<std::size_t>(p.ordinal) >= devices->size())
    return fail(ErrorCode::missing, "--device {}: found {} GPUs", options.device, devices->size());
  if (devices) {
    p.gpu = (*devices)[static_cast<std::size_t>(p.ordinal)];
    if (options.arch.empty() && p.capability() < kLeastCapability)
      return fail(ErrorCode::missing,
                  "--device {}: found GPU {} of capability {}.{}, want 8.0 (sm_80) or newer",
                  options.device, p.gpu.name, p.gpu.major, p.gpu.minor);
    p.found = options.arch.empty() || options.arch == p.gpu.arch();
    const std::string blas = codegen::cuda::find_library("cublasLt", options.options.cublaslt);
    const bool is_path = blas.find('/') != std::string::npos;
    p.library = p.found && !blas.empty() && (!is_path || std::filesystem::exists(blas));
    if (p.found && p.gpu.arch() == "sm_90a") {
      // A unit takes a minute to compile: only where time does not count.
      if (auto tools =
              codegen::cuda::find_unit_tools(options.options.nvcc, options.options.cutlass))
        p.tools = *std::move(tools);
      p.units = p.tools && options.budget == "full";
    }
    if (p.found) {
      p.ring_least = ring_least(options.options.ring, p);
      return p;
    }
  }
  const std::string arch = options.arch.empty() ? "sm_90a" : options.arch;
  const auto assumed = runtime::cuda::assumed_device(arch);
  if (!assumed)
    return fail(ErrorCode::usage, "--arch: found '{}', want sm_80, sm_89 or sm_90a", arch);
  p.gpu = *assumed;
  p.ring_least = ring_least(options.options.ring, p);
  // That there is no GPU is as it may be; that one does not answer is not.
  if (!devices)
    log(devices.error().code == ErrorCode::missing ? LogLevel::info : LogLevel::warning,
        "{}; compiling for {}", devices.error().message, p.gpu.name);
  return p;
}

}  // namespace

Result<Platform> platform_for(const CompileOptions& options) {
  Platform p = HEDDLE_TRY(find_platform(options));
  warn_of_no_ring(options, p);
  return p;
}

}  // namespace heddle::driver
