#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cpu/cpu.h"
#include "codegen/cuda/nvrtc.h"
#include "lower/joins.h"
#include "lower/lower.h"
#include "plan/measure.h"
#include "plan/plan.h"
#include "prim/graph.h"
#include "runtime/session.h"
#include "support/dimensions.h"
#include "support/hash.h"
#include "support/options.h"

namespace heddle::driver {

struct CompileOptions {
  std::string device = "cpu";   ///< cpu, cuda, cuda:N
  std::string arch;             ///< "sm_90a", of a GPU that need not be here; empty: the GPU found
  int threads = 0;              ///< 0: as many as the machine has
  std::string budget = "none";  ///< none, seconds, or full
  std::string strategy = "full";  ///< ablation: greedy, fission, rewrites, blp, recompute, full
  /// File of the measurements that decide the plan: made within the budget if it is not there, else
  /// nothing is measured and the decisions are those of the file. Empty: none.
  std::string locked;
  /// What f32 values are stored as, arithmetic staying f32: f32, f16 or bf16 (prim/precision.h).
  DType precision = DType::f32;
  /// How the kernels run: "kernels" (one after another), "monolith" (all as one parallel region or
  /// persistent kernel), "auto" (what measures faster); see driver/mode.h.
  std::string mode = "auto";
  /// Bytes of constants, inputs, outputs, arena and scratch. A plan that needs more keeps less and
  /// computes more again, until it fits; where none does, compile() says so. 0: no limit.
  std::int64_t memory_limit = 0;
  bool tf32 = false;  ///< CUDA: products of f32 are of values rounded to tf32, on tensor cores
  std::map<std::string, Shape> shapes;  ///< "--shape x=1x3x224x224"
  DimensionFacts facts;                 ///< "--dynamic total=past+seq"
  /// False: large constants leave Compiled::graph as soon as the last kernel has packed them.
  bool keep_constants = true;
  Options options;
  /// Called with a phase's name and the share done, for a progress line; may be empty.
  std::function<void(const std::string& phase, double share)> progress;
};

/// Where a kernel's machine code is, and what the compiler says of it.
struct KernelCode {
  std::vector<runtime::Phase> phases;
  std::int64_t scratch_bytes = 0;         ///< per CPU thread
  std::vector<std::int64_t> local_bytes;  ///< local grid-scope buffers, after the arguments
  std::string source;                     ///< CUDA text, without the prelude
  std::vector<std::int32_t> lines;  ///< by line of it: the primitive computed, -1 if none alone
  std::vector<codegen::cuda::FunctionInfo> functions;  ///< CUDA: by phase
  std::optional<UnitProduct> unit;  ///< CUDA: what runs instead, in an object of the program
  std::optional<runtime::PersistentKernel> persistent;  ///< CUDA: of which the phases are stages
  /// CUDA: which constants come through the ring, or why they do not.
  std::vector<std::string> ring_notes = {};
  std::int64_t ring_bytes = 0, large_bytes = 0;  ///< of those that do, and of all in the notes
};

/// Who has chosen a kernel's schedule.
enum class ScheduleFrom : std::uint8_t { lowering, measurement, shipped };

/// Where a value is that is stored as a part of another one (lower/joins.h).
struct Placed {
  prim::NodeId root;       ///< in whose memory
  std::int64_t first = 0;  ///< element of it
  std::int64_t size = 0;   ///< elements of the root
};

/// One kernel of a compiled program, with what is needed to explain, check and time it alone.
struct CompiledKernel {
  plan::Kernel planned;
  lower::Lowered lowered;
  std::vector<lower::Layout> input_layouts;  ///< by argument, for Argument::Kind::value inputs
  std::unordered_map<prim::NodeId, Placed> placed;  ///< of its arguments, those that are
  KernelCode code;
  Hash structure = {};  ///< of plan::structure_of, with layouts: the key of measured schedules
  ScheduleFrom schedule_from = ScheduleFrom::lowering;
};

struct PhaseTime {
  std::string name;
  double seconds = 0;
};

/// Why a program runs as it does.
struct ModeReport {
  std::string chosen = "kernels";  ///< as --mode has it
  std::string reason;
  std::vector<std::pair<std::string, double>> measured;  ///< microseconds of a run
  std::string tuning;                                    ///< what stages alone were found to be
};

/// What a run needs, and what was done to need no more than CompileOptions::memory_limit.
struct MemoryReport {
  std::int64_t bytes = 0, constants = 0, ports = 0, arena = 0, scratch = 0, limit = 0;
  double us_per_byte = 0;  ///< price of a byte that is written, in the plan
  int again = 0;           ///< kernels that run once more
};

struct Compiled {
  std::shared_ptr<const runtime::Program> program;
  prim::Graph graph;  ///< after the passes
  plan::Plan plan;
  std::vector<CompiledKernel> kernels;  ///< in execution order
  /// Concatenations without a kernel: their parts are stored where they have them. The plan counts
  /// them as kernels that take nothing.
  std::vector<lower::Join> joins;
  std::vector<PhaseTime> times;
  DType precision = DType::f32;  ///< CompileOptions::precision
  ModeReport mode;
  MemoryReport memory;
  plan::MeasureReport measured;  ///< what the budget was spent on
  /// What summing for means and variances in epilogues adds to the modelled time; empty: no
  /// epilogue can. Done where it is negative.
  std::optional<double> moments_us;
  bool from_cache = false;  ///< graph, plan and kernels are empty then
};

/// Memory of one run on so many threads.
MemoryReport memory_of(const runtime::Program& program, int threads);
int machine_threads();
/// What code is generated for: the machine's vector level unless Options::cpu lowers it.
Result<codegen::cpu::Machine> machine_for(const Options& options);

/// The only place that lists the phases: passes → plan → lower → code → program.
Result<Compiled> compile(prim::Graph graph, const CompileOptions& options);
/// compile() up to the kernels: no machine code and no program, so no GPU libraries are needed.
Result<Compiled> plan_only(prim::Graph graph, const CompileOptions& options);
/// compile() from an ONNX file or folder, through the program cache (keyed by the content of model,
/// options, machine and build).
Result<Compiled> compile_file(const std::string& path, const CompileOptions& options);

/// Makes sessions of programs whose code is loaded once.
class Executor {
 public:
  virtual ~Executor() = default;
  /// `program`: the one that the code was loaded from, or a part of it (see single_kernel).
  virtual Result<std::shared_ptr<runtime::Session>> session(
      std::shared_ptr<const runtime::Program> program) = 0;
};
/// Loads code for a program's device: on the CPU with the threads of `pool` (null: a new one of
/// `options.threads`), on the GPU that `options.device` numbers. Errors: missing (no driver, no
/// such GPU).
Result<std::shared_ptr<Executor>> executor_for(const runtime::Program& program,
                                               const CompileOptions& options,
                                               std::shared_ptr<ThreadPool> pool = nullptr);
/// Links a program's code and makes it ready to run.
Result<std::shared_ptr<runtime::Session>> load(std::shared_ptr<const runtime::Program> program,
                                               const CompileOptions& options);

/// A program that runs kernel `k` alone: its ports are the flat storage of the kernel's value
/// arguments (inputs in order of arguments, then outputs).
struct SingleKernel {
  runtime::Program program;
  std::vector<lower::Argument> inputs, outputs;
  std::vector<lower::Layout> input_layouts, output_layouts;
};
SingleKernel single_kernel(const prim::Graph& graph, const CompiledKernel& kernel,
                           std::vector<std::string> objects, const std::string& device);

/// Row-major tensor ↔ flat storage of a layout.
Tensor to_storage(const Tensor& value, const lower::Layout& layout);
Tensor from_storage(const Tensor& storage, const TensorType& type, const lower::Layout& layout);

}  // namespace heddle::driver
