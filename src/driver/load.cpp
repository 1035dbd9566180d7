#include <algorithm>

#include "codegen/cuda/nvrtc.h"
#include "driver/platform.h"
#include "runtime/cuda/session.h"

namespace heddle::driver {
namespace {

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(std::shared_ptr<codegen::cpu::Module> code, std::shared_ptr<ThreadPool> pool)
      : code_(std::move(code)), pool_(std::move(pool)) {}
  Result<std::shared_ptr<runtime::Session>> session(
      std::shared_ptr<const runtime::Program> program) override {
    const runtime::Linker linker = [&](const std::string& symbol) { return code_->find(symbol); };
    return runtime::Session::create(std::move(program), linker, code_, pool_);
  }

 private:
  std::shared_ptr<codegen::cpu::Module> code_;
  std::shared_ptr<ThreadPool> pool_;
};

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(std::shared_ptr<runtime::cuda::Code> code, runtime::cuda::SessionOptions options)
      : code_(std::move(code)), options_(std::move(options)) {}
  Result<std::shared_ptr<runtime::Session>> session(
      std::shared_ptr<const runtime::Program> program) override {
    return runtime::cuda::create_session(std::move(program), code_, options_);
  }

 private:
  std::shared_ptr<runtime::cuda::Code> code_;
  runtime::cuda::SessionOptions options_;
};

}  // namespace

Result<std::shared_ptr<Executor>> executor_for(const runtime::Program& program,
                                               const CompileOptions& options,
                                               std::shared_ptr<ThreadPool> pool) {
  if (program.device == "cpu") {
    auto code = HEDDLE_TRY(codegen::cpu::load(program.objects));
    const int threads = options.threads > 0 ? options.threads : program.threads;
    if (!pool) pool = std::make_shared<ThreadPool>(threads);
    return std::shared_ptr<Executor>(
        std::make_shared<CpuExecutor>(std::move(code), std::move(pool)));
  }
  const int ordinal = cuda_ordinal(options.device).value_or(0);
  auto code = HEDDLE_TRY(runtime::cuda::load_code(options.options.cuda_driver, ordinal, program));
  runtime::cuda::SessionOptions how{options.options.cuda_graph, {}};
  if (std::ranges::any_of(program.launches, [](const auto& l) { return l.product.has_value(); }))
    how.cublaslt = codegen::cuda::find_library("cublasLt", options.options.cublaslt);
  return std::shared_ptr<Executor>(std::make_shared<CudaExecutor>(std::move(code), std::move(how)));
}

Result<std::shared_ptr<runtime::Session>> load(std::shared_ptr<const runtime::Program> program,
                                               const CompileOptions& options) {
  const auto executor = HEDDLE_TRY(executor_for(*program, options));
  return executor->session(std::move(program));
}

}  // namespace heddle::driver
