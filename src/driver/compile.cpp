#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_map>

#include "driver/assemble.h"
#include "driver/code_cache.h"
#include "driver/driver.h"
#include "driver/dump.h"
#include "driver/lower_plan.h"
#include "driver/measure.h"
#include "driver/planning.h"
#include "driver/report.h"
#include "support/hash.h"
#include "support/log.h"

namespace heddle::driver {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(std::vector<PhaseTime>& times) : times_(times) {}
  void lap(std::string name) {
    const auto now = std::chrono::steady_clock::now();
    times_.push_back({std::move(name), std::chrono::duration<double>(now - last_).count()});
    last_ = now;
  }

 private:
  std::vector<PhaseTime>& times_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// Generates code, equal kernels once, and gives each kernel its symbols.
Result<std::vector<std::string>> generate(std::vector<CompiledKernel>& kernels,
                                          const codegen::cpu::Machine& machine,
                                          const CompileOptions& options, ThreadPool& pool) {
  std::unordered_map<Hash, std::size_t> index;
  std::vector<kernel::Kernel> unique;
  std::vector<std::size_t> code_of;
  for (const CompiledKernel& kernel : kernels) {
    kernel::Kernel nameless = kernel.lowered.kernel;
    nameless.name = "k";
    const Hash key = hash_bytes(kernel::to_string(nameless));
    const auto [entry, fresh] = index.try_emplace(key, unique.size());
    if (fresh) unique.push_back(std::move(nameless));
    code_of.push_back(entry->second);
  }
  const auto progress = [&](double share) {
    if (options.progress) options.progress("generating code", share);
  };
  Code code = HEDDLE_TRY(generate_code(unique, machine, options.options.cache_dir, pool, progress));
  for (std::size_t k = 0; k < kernels.size(); ++k) kernels[k].info = code.kernels[code_of[k]];
  log(LogLevel::info, "{} kernels, {} distinct; {} batches compiled, {} from the cache",
      kernels.size(), unique.size(), code.compiled, code.reused);
  return std::move(code.objects);
}

}  // namespace

int machine_threads() {
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

Result<codegen::cpu::Machine> machine_for(const Options& options) {
  codegen::cpu::Machine machine = codegen::cpu::host_machine();
  if (options.cpu.empty()) return machine;
  return codegen::cpu::machine_named(options.cpu);
}

Status runs_here(const codegen::cpu::Machine& machine) {
  const codegen::cpu::Machine host = codegen::cpu::host_machine();
  if (machine.vector_bytes <= host.vector_bytes) return Ok{};
  return fail(ErrorCode::missing, "code for '{}' has {}-bit vectors, this machine has {}-bit ones",
              machine.cpu, 8 * machine.vector_bytes, 8 * host.vector_bytes);
}

lower::Target target_for(const codegen::cpu::Machine& machine, int threads) {
  lower::Target target;
  target.vector_bytes = machine.vector_bytes;
  target.vector_registers = machine.vector_registers;
  target.threads = threads;
  return target;
}

Result<Compiled> compile(prim::Graph graph, const CompileOptions& options) {
  Compiled compiled;
  Stopwatch watch(compiled.times);
  const int threads = options.threads > 0 ? options.threads : machine_threads();
  const codegen::cpu::Machine machine = HEDDLE_TRY(machine_for(options.options));
  Dumper dumper(options.options);
  compiled.graph =
      plan::with_copied_outputs(HEDDLE_TRY(run_graph_passes(std::move(graph), options, dumper)));
  watch.lap("passes");

  plan::Options planning = HEDDLE_TRY(plan_options(compiled.graph, options, machine, threads));
  ThreadPool pool(threads);
  const bool measured = HEDDLE_TRY(budget_seconds(options.budget)) > 0;
  if (measured) HEDDLE_TRY(runs_here(machine));
  compiled.plan = HEDDLE_TRY(
      measured ? plan_measured(compiled.graph, std::move(planning), options, machine, pool)
               : plan::orchestrate(compiled.graph, planning));
  dumper.write("plan", "plan", plan::print(compiled.graph, compiled.plan));
  watch.lap("plan");

  compiled.kernels =
      HEDDLE_TRY(lower_plan(compiled.graph, compiled.plan, target_for(machine, threads))).kernels;
  for (const CompiledKernel& kernel : compiled.kernels)
    dumper.write("kernel", kernel.lowered.kernel.name, kernel::to_string(kernel.lowered.kernel));
  watch.lap("lower");

  std::vector<std::string> objects = HEDDLE_TRY(generate(compiled.kernels, machine, options, pool));
  if (dumper.wants("source"))
    for (const CompiledKernel& kernel : compiled.kernels)
      dumper.write("source", kernel.lowered.kernel.name + ".ll",
                   HEDDLE_TRY(codegen::cpu::to_llvm_text(kernel.lowered.kernel, machine)));
  watch.lap("code");

  runtime::Program program =
      assemble(compiled.graph, compiled.kernels, std::move(objects), threads);
  program.manifest = report_of(compiled, machine).dump();
  compiled.program = std::make_shared<runtime::Program>(std::move(program));
  watch.lap("assemble");
  return compiled;
}

Result<std::shared_ptr<runtime::Session>> load(std::shared_ptr<const runtime::Program> program,
                                               int threads) {
  std::shared_ptr<codegen::cpu::Module> code = HEDDLE_TRY(codegen::cpu::load(program->objects));
  const runtime::Linker linker = [&](const std::string& symbol) { return code->find(symbol); };
  auto pool = std::make_shared<ThreadPool>(threads > 0 ? threads : program->threads);
  return runtime::Session::create(std::move(program), linker, code, std::move(pool));
}

}  // namespace heddle::driver
