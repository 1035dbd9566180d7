#include "runtime/cuda/blas.h"

#include <dlfcn.h>

#include <algorithm>

namespace heddle::runtime::cuda {
namespace {

// Values of cublasLt.h and library_types.h.
constexpr int kF32 = 0, kF16 = 2, kBf16 = 14;
constexpr int kCompute32 = 68, kCompute32FastTf32 = 77;
constexpr int kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8, kBiasType = 26;
constexpr int kBatchCount = 5, kBatchStride = 6;
constexpr int kMaxWorkspace = 1, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8;
constexpr int kTransposed = 1, kDefault = 1, kRelu = 2, kBias = 4;
constexpr int kNotSupported = 15;
constexpr std::uint64_t kWorkspace = 32 << 20;
constexpr DevicePtr kMostAligned = 256;

int type_of(DType t) { return t == DType::f16 ? kF16 : t == DType::bf16 ? kBf16 : kF32; }

Status check(int code, std::string_view what) {
  if (code == 0) return Ok{};
  return fail(ErrorCode::failed, "cuBLASLt: {}: status {}", what, code);
}

/// Of the library's handles, whose errors are not the driver's.
template <class Make>
Result<Owned<Handle>> owned(const Blas& blas, std::string_view what, int (*destroy)(Handle),
                            Make&& make) {
  int code = 0;
  auto made = Owned<Handle>::make(blas.gpu(), what, destroy, [&](Handle* h) {
    code = make(h);
    return code == 0 ? 0 : 1;
  });
  HEDDLE_TRY(check(code, what));
  return made;
}

std::uint32_t alignment_of(DevicePtr p) {
  DevicePtr bytes = 1;
  while (bytes < kMostAligned && p % (2 * bytes) == 0) bytes *= 2;
  return static_cast<std::uint32_t>(bytes);
}

}  // namespace

Result<std::shared_ptr<Blas>> Blas::open(std::shared_ptr<Gpu> gpu, const std::string& path) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::missing, "cuBLASLt {}: {}", path, ::dlerror());
  auto blas = std::make_shared<Blas>();
  blas->gpu_ = std::move(gpu);
  BlasLibrary& l = blas->library_;
  const auto bind = [&](auto& field, const char* name) {
    field = reinterpret_cast<std::decay_t<decltype(field)>>(::dlsym(handle, name));
    return field != nullptr;
  };
  const bool all = bind(l.Create, "cublasLtCreate") && bind(l.Destroy, "cublasLtDestroy") &&
                   bind(l.MatmulDescCreate, "cublasLtMatmulDescCreate") &&
                   bind(l.MatmulDescDestroy, "cublasLtMatmulDescDestroy") &&
                   bind(l.MatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute") &&
                   bind(l.MatrixLayoutCreate, "cublasLtMatrixLayoutCreate") &&
                   bind(l.MatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy") &&
                   bind(l.MatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute") &&
                   bind(l.MatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate") &&
                   bind(l.MatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy") &&
                   bind(l.MatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute") &&
                   bind(l.MatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic") &&
                   bind(l.Matmul, "cublasLtMatmul");
  if (!all) return fail(ErrorCode::missing, "cuBLASLt {}: want CUDA 12.0 or newer", path);
  blas->handle_ = HEDDLE_TRY(owned(*blas, "cublasLtCreate", l.Destroy, l.Create));
  return blas;
}

Result<std::optional<BlasProduct>> BlasProduct::prepare(std::shared_ptr<Blas> blas,
                                                        const LibraryProduct& product,
                                                        std::span<const DevicePtr> args) {
  BlasProduct out;
  out.blas_ = std::move(blas);
  HEDDLE_TRY(out.describe(product, args));
  if (!HEDDLE_TRY(out.choose())) return std::optional<BlasProduct>();
  return std::optional<BlasProduct>(std::move(out));
}

/// The library's matrices are stored by columns: our rows are its columns, so it computes
/// outᵀ = rhs · lhsᵀ.
Status BlasProduct::describe(const LibraryProduct& p, std::span<const DevicePtr> args) {
  const BlasLibrary& l = blas_->library();
  const auto address = [&](int argument, std::int64_t start, DType type) {
    return args[static_cast<std::size_t>(argument)] + static_cast<DevicePtr>(start * size_of(type));
  };
  const auto layout = [&](const LibraryProduct::Matrix& m, std::int64_t rows, std::int64_t columns,
                          DType type) -> Result<Owned<Handle>> {
    const bool by_rows = m.column == 1;
    const auto high = static_cast<std::uint64_t>(by_rows ? columns : rows);
    const auto wide = static_cast<std::uint64_t>(by_rows ? rows : columns);
    auto made = HEDDLE_TRY(
        owned(*blas_, "cublasLtMatrixLayoutCreate", l.MatrixLayoutDestroy, [&](Handle* h) {
          return l.MatrixLayoutCreate(h, type_of(type), high, wide, by_rows ? m.row : m.column);
        }));
    const auto batches = static_cast<std::int32_t>(p.batches);
    HEDDLE_TRY(check(l.MatrixLayoutSetAttribute(made.get(), kBatchCount, &batches, sizeof batches),
                     "batch count"));
    HEDDLE_TRY(check(l.MatrixLayoutSetAttribute(made.get(), kBatchStride, &m.batch, sizeof m.batch),
                     "batch stride"));
    return made;
  };
  desc_ = HEDDLE_TRY(owned(*blas_, "cublasLtMatmulDescCreate", l.MatmulDescDestroy, [&](Handle* h) {
    return l.MatmulDescCreate(h, p.tf32 ? kCompute32FastTf32 : kCompute32, kF32);
  }));
  const auto set = [&](int attribute, auto value) {
    return check(l.MatmulDescSetAttribute(desc_.get(), attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
  };
  a_layout_ = HEDDLE_TRY(layout(p.rhs, p.columns, p.depth, p.operands));
  b_layout_ = HEDDLE_TRY(layout(p.lhs, p.rows, p.depth, p.operands));
  d_layout_ = HEDDLE_TRY(layout(p.out, p.rows, p.columns, p.result));
  if (p.rhs.column == 1) HEDDLE_TRY(set(kTransA, std::int32_t{kTransposed}));
  if (p.lhs.column != 1) HEDDLE_TRY(set(kTransB, std::int32_t{kTransposed}));
  const std::int32_t epilogue = (p.relu ? kRelu : 0) | (p.bias >= 0 ? kBias : 0);
  HEDDLE_TRY(set(kEpilogue, epilogue == 0 ? std::int32_t{kDefault} : epilogue));
  if (p.bias >= 0) {
    HEDDLE_TRY(set(kBiasType, std::int32_t{type_of(p.result)}));
    HEDDLE_TRY(set(kBiasPointer, address(p.bias, p.bias_start, p.result)));
  }
  a_ = address(p.rhs.argument, p.rhs.start, p.operands);
  b_ = address(p.lhs.argument, p.lhs.start, p.operands);
  d_ = address(p.out.argument, p.out.start, p.result);
  return Ok{};
}

Result<bool> BlasProduct::choose() {
  const BlasLibrary& l = blas_->library();
  const auto preference = HEDDLE_TRY(owned(*blas_, "cublasLtMatmulPreferenceCreate",
                                           l.MatmulPreferenceDestroy, l.MatmulPreferenceCreate));
  const auto set = [&](int attribute, auto value) {
    return check(l.MatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  HEDDLE_TRY(set(kMaxWorkspace, kWorkspace));
  HEDDLE_TRY(set(kAlignmentA, alignment_of(a_)));
  HEDDLE_TRY(set(kAlignmentB, alignment_of(b_)));
  HEDDLE_TRY(set(kAlignmentC, alignment_of(d_)));
  HEDDLE_TRY(set(kAlignmentD, alignment_of(d_)));
  int found = 0;
  const int code = l.MatmulAlgoGetHeuristic(blas_->handle(), desc_.get(), a_layout_.get(),
                                            b_layout_.get(), d_layout_.get(), d_layout_.get(),
                                            preference.get(), 1, &choice_, &found);
  if (code == kNotSupported || (code == 0 && (found == 0 || choice_.state != 0))) return false;
  HEDDLE_TRY(check(code, "cublasLtMatmulAlgoGetHeuristic"));
  return true;
}

Status BlasProduct::launch(DevicePtr workspace, Handle stream) const {
  const float alpha = 1, beta = 0;
  return check(
      blas_->library().Matmul(blas_->handle(), desc_.get(), &alpha, a_, a_layout_.get(), b_,
                              b_layout_.get(), &beta, d_, d_layout_.get(), d_, d_layout_.get(),
                              choice_.algorithm, workspace, choice_.workspace, stream),
      "cublasLtMatmul");
}

}  // namespace heddle::runtime::cuda
