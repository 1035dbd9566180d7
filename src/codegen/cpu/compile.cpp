// Kernels to modules, modules to objects.
#include <llvm/CodeGen/TargetPassConfig.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/Scalar.h>
#include <llvm/Transforms/Utils.h>

#include <algorithm>
#include <cctype>
#include <mutex>

#include "codegen/cpu/emitter.h"
#include "codegen/cpu/target.h"
#include "support/hash.h"

namespace heddle::codegen::cpu {

using namespace kernel;

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    // Addresses come as one base and a displacement. Loop strength reduction makes a pointer of
    // each of them, which spills: without it register-tile loops run up to three times as fast.
    // The machine combiner makes trees of integer sums: accumulators would spill likewise. Spilling
    // at once, before other values have been evicted, stored and loaded all accumulators of a tile
    // in each step of some convolutions.
    auto& options = llvm::cl::getRegisteredOptions();
    for (const auto& [name, value] : {std::pair{"disable-lsr", "true"},
                                      {"x86-machine-combiner", "false"},
                                      {"enable-deferred-spilling", "true"}})
      if (const auto option = options.find(name); option != options.end())
        option->second->addOccurrence(0, name, value);
  });
}

namespace {

/// Bumped when the same kernel gives other code.
constexpr int kGeneration = 14;

Result<std::unique_ptr<llvm::TargetMachine>> make_target(const Machine& m) {
  initialize_llvm();
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(m.triple, error);
  if (!target) return fail("target '{}': {}", m.triple, error);
  llvm::TargetOptions options;
  std::unique_ptr<llvm::TargetMachine> out(
      target->createTargetMachine(m.triple, m.cpu, m.features, options, llvm::Reloc::PIC_,
                                  llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default));
  if (!out) return fail("target '{}': no machine for '{}'", m.triple, m.cpu);
  return out;
}

std::string symbol_name(const std::string& prefix, std::size_t kernel, const std::string& name,
                        std::size_t phase) {
  std::string clean;
  for (const char c : name) {
    if (clean.size() < 60) clean += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return fmt::format("{}{}_{}_p{}", prefix, kernel, clean, phase);
}

std::int64_t align64(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// One kernel's functions in a module.
class KernelBuilder {
 public:
  KernelBuilder(llvm::Module& module, const Kernel& k, const Machine& m)
      : module_(module), k_(k), machine_(m) {
    for (std::int32_t id = 0; id < k.buffers.size(); ++id) {
      const Buffer& b = k.buffers[BufferId{id}];
      argument_.push_back(b.argument);
      if (b.scope != Scope::grid || b.argument >= 0) continue;
      argument_.back() = k.arguments() + static_cast<int>(info_.local_bytes.size());
      info_.local_bytes.push_back(align64(b.size * size_of(b.dtype)));
    }
  }

  KernelInfo build(const std::string& prefix, std::size_t number) {
    for (const Stmt& s : k_.body) {
      const For* grid = std::get_if<For>(&s.op);
      if (!grid) continue;
      HEDDLE_CHECK(grid->binding == Binding::grid, "'{}': top level loop is no grid", k_.name);
      const std::string name = symbol_name(prefix, number, k_.name, info_.phases.size());
      phase(*grid, name);
      info_.phases.push_back({name, std::max<std::int64_t>(0, grid->end - grid->begin)});
    }
    return info_;
  }

 private:
  /// Written buffers, large ones, that together do not stay in a cache and are not read here.
  std::vector<std::int32_t> streamed(const For& grid, const std::vector<std::int32_t>& used) const {
    std::vector<std::int32_t> out;
    if (machine_.stream_bytes == 0 || machine_.vector_bytes < 32) return out;
    constexpr std::int64_t kShare = 4;
    std::int64_t together = 0;
    const std::vector<std::int32_t> read = Analysis::reads(*grid.body);
    for (const std::int32_t id : used) {
      const Buffer& b = k_.buffers[BufferId{id}];
      const std::int64_t bytes = b.size * size_of(b.dtype);
      if (bytes < machine_.stream_bytes / kShare || b.scope != Scope::grid ||
          std::binary_search(read.begin(), read.end(), id))
        continue;
      out.push_back(id);
      together += bytes;
    }
    if (together < machine_.stream_bytes) out.clear();
    return out;
  }

  /// An exported function of type TaskFn that unpacks its arguments for the phase proper.
  void phase(const For& grid, const std::string& name) {
    const std::vector<std::int32_t> used = Analysis::touched(*grid.body);
    llvm::Function* inner =
        Emitter(module_, k_, machine_, analysis_).emit(grid, name + "_body", used, {});
    llvm::IRBuilder<> b(module_.getContext());
    llvm::Type *ptr = b.getPtrTy(), *i64 = b.getInt64Ty();
    auto* outer =
        llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), {ptr, i64, i64, ptr}, false),
                               llvm::Function::ExternalLinkage, name, module_);
    b.SetInsertPoint(llvm::BasicBlock::Create(module_.getContext(), "entry", outer));
    llvm::SmallVector<llvm::Value*> args;
    const std::vector<std::int32_t> large = streamed(grid, used);
    llvm::Value* unaligned = nullptr;  // address bits of the streamed buffers
    std::int64_t scratch = 0;
    for (const std::int32_t id : used) {
      const Buffer& buf = k_.buffers[BufferId{id}];
      if (buf.scope == Scope::lane) continue;
      if (buf.scope == Scope::grid) {
        const auto at = static_cast<std::uint64_t>(argument_[static_cast<std::size_t>(id)]);
        args.push_back(b.CreateLoad(ptr, b.CreateConstInBoundsGEP1_64(ptr, outer->getArg(0), at)));
      } else {
        args.push_back(b.CreateConstInBoundsGEP1_64(b.getInt8Ty(), outer->getArg(3),
                                                    static_cast<std::uint64_t>(scratch)));
        scratch += align64(buf.size * size_of(buf.dtype));
      }
      if (!std::binary_search(large.begin(), large.end(), id)) continue;
      llvm::Value* bits = b.CreatePtrToInt(args.back(), i64);
      unaligned = unaligned ? b.CreateOr(unaligned, bits) : bits;
    }
    args.push_back(outer->getArg(1));
    args.push_back(outer->getArg(2));
    if (unaligned) stream(b, outer, grid, name, used, large, unaligned, args);
    b.CreateCall(inner, args);
    b.CreateRetVoid();
    info_.scratch_bytes = std::max(info_.scratch_bytes, scratch);
    for (llvm::Function* f : {inner, outer}) attributes(*f);
    if (may_spill()) inner->addFnAttr("stackrealign");
  }

  /// A second body for callers whose large outputs are aligned: its stores go past the caches, and
  /// a fence orders them before whatever tells other threads that the task is done.
  void stream(llvm::IRBuilder<>& b, llvm::Function* outer, const For& grid, const std::string& name,
              const std::vector<std::int32_t>& used, const std::vector<std::int32_t>& large,
              llvm::Value* unaligned, llvm::ArrayRef<llvm::Value*> args) {
    llvm::Function* inner =
        Emitter(module_, k_, machine_, analysis_).emit(grid, name + "_stream", used, large);
    attributes(*inner);
    if (may_spill()) inner->addFnAttr("stackrealign");
    auto* yes = llvm::BasicBlock::Create(module_.getContext(), "stream", outer);
    auto* no = llvm::BasicBlock::Create(module_.getContext(), "plain", outer);
    llvm::Value* low = b.CreateAnd(unaligned, b.getInt64(63));
    b.CreateCondBr(b.CreateICmpEQ(low, b.getInt64(0)), yes, no);
    b.SetInsertPoint(yes);
    b.CreateCall(inner, args);
    if (llvm::StringRef(machine_.triple).starts_with("x86_64")) {
      b.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
    }
    b.CreateRetVoid();
    b.SetInsertPoint(no);
  }

  void attributes(llvm::Function& f) {
    const std::string width = std::to_string(machine_.vector_bytes * 8);
    f.addFnAttr("target-cpu", machine_.cpu);
    f.addFnAttr("target-features", machine_.features);
    f.addFnAttr("prefer-vector-width", width);
    f.addFnAttr("min-legal-vector-width", width);
    f.setDoesNotThrow();
  }

  /// Spilled vectors lie as the caller's stack does, and straddle cache lines on some threads and
  /// not on others, unless the stack is aligned: register allocation cannot ask for it any more. It
  /// costs a register and some instructions in each call, so only what may spill has it.
  bool may_spill() const {
    std::int64_t bytes = 0;
    for (const Buffer& b : k_.buffers)
      if (b.scope == Scope::lane) bytes += b.size * size_of(b.dtype);
    const std::int64_t all = std::int64_t{machine_.vector_registers} * machine_.vector_bytes;
    return machine_.vector_bytes > 16 && bytes >= all * 3 / 4;
  }

  llvm::Module& module_;
  const Kernel& k_;
  const Machine& machine_;
  Analysis analysis_;
  KernelInfo info_;
  std::vector<int> argument_;
};

Result<std::unique_ptr<llvm::Module>> build_module(llvm::LLVMContext& context,
                                                   llvm::TargetMachine& target,
                                                   std::span<const Kernel> kernels,
                                                   const Machine& m, const std::string& prefix,
                                                   std::vector<KernelInfo>& infos) {
  auto module = std::make_unique<llvm::Module>("heddle", context);
  module->setTargetTriple(m.triple);
  module->setDataLayout(target.createDataLayout());
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    infos.push_back(KernelBuilder(*module, kernels[i], m).build(prefix, i));
  }
  std::string broken;
  llvm::raw_string_ostream out(broken);
  HEDDLE_CHECK(!llvm::verifyModule(*module, &out), "invalid code for '{}': {}",
               kernels.empty() ? "" : kernels[0].name, broken);
  return module;
}

/// Registers for lane buffers and one pass over repeated loads; kernels arrive in vector form, so
/// no other mid-end pass pays.
void simplify(llvm::Module& module, const Machine& m) {
  llvm::legacy::PassManager passes;
  passes.add(llvm::createSROAPass());
  passes.add(llvm::createEarlyCSEPass());
  passes.run(module);
  keep_constants_apart(module, m.vector_bytes == 64);
}

Result<std::string> generate(llvm::Module& module, llvm::TargetMachine& target, const Machine& m,
                             llvm::CodeGenFileType type) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream out(bytes);
  simplify(module, m);
  llvm::legacy::PassManager passes;
  if (target.addPassesToEmitFile(passes, out, nullptr, type, true)) {
    return fail("target '{}' emits no such file", target.getTargetTriple().str());
  }
  passes.run(module);
  return std::string(bytes.data(), bytes.size());
}

}  // namespace

Result<std::string> to_llvm_text(const Kernel& k, const Machine& m) {
  auto target = HEDDLE_TRY(make_target(m));
  llvm::LLVMContext context;
  std::vector<KernelInfo> infos;
  auto module = HEDDLE_TRY(build_module(context, *target, {&k, 1}, m, "", infos));
  simplify(*module, m);
  std::string text;
  llvm::raw_string_ostream out(text);
  module->print(out, nullptr);
  return text;
}

Result<std::string> to_assembly_text(const Kernel& k, const Machine& m) {
  auto target = HEDDLE_TRY(make_target(m));
  target->Options.MCOptions.AsmVerbose = true;
  llvm::LLVMContext context;
  std::vector<KernelInfo> infos;
  auto module = HEDDLE_TRY(build_module(context, *target, {&k, 1}, m, "", infos));
  return generate(*module, *target, m, llvm::CodeGenFileType::AssemblyFile);
}

Result<Object> compile(std::span<const Kernel> kernels, const Machine& m,
                       const std::string& prefix) {
  auto target = HEDDLE_TRY(make_target(m));
  llvm::LLVMContext context;
  Object object;
  auto module = HEDDLE_TRY(build_module(context, *target, kernels, m, prefix, object.kernels));
  object.bytes = HEDDLE_TRY(generate(*module, *target, m, llvm::CodeGenFileType::ObjectFile));
  return object;
}

std::string cache_key(std::span<const Kernel> kernels, const Machine& m) {
  std::string text = fmt::format("cpu {} {} {} {} {} {} {} {} {}\n", kGeneration,
                                 LLVM_VERSION_STRING, m.triple, m.cpu, m.features, m.vector_bytes,
                                 m.vector_registers, m.stream_bytes, m.exact_functions);
  for (const Kernel& k : kernels) text += to_string(k) + "\n";
  return to_string(hash_bytes(text));
}

}  // namespace heddle::codegen::cpu
