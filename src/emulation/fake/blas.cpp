// cuBLASLt: products of matrices stored by columns, done when the stream is waited for.
#include <algorithm>
#include <cstring>

#include "emulation/fake/state.h"
#include "support/dtype.h"

namespace heddle::emulation::fake {

struct MatmulDesc {
  int compute = 0;
  std::int32_t trans_a = 0, trans_b = 0, epilogue = 1, bias_type = -1;
  std::uint64_t bias = 0;
};
struct MatrixLayout {
  int type = 0;
  std::int64_t rows = 0, columns = 0, pitch = 0, stride = 0;
  std::int32_t batches = 1;
};
struct MatmulPreference {
  std::uint64_t workspace = 0;
};

namespace {

// Values of cublasLt.h.
constexpr int kInvalid = 7, kUnsupported = 15;
constexpr int kCompute32 = 68, kCompute32FastTf32 = 77, kRelu = 2, kBias = 4;
constexpr std::size_t kWorkspace = 4096;  // that the one algorithm asks for
constexpr std::uint64_t kAlgorithm = 0x68656464;

/// Copies an attribute of the size that the library wants.
template <class T>
int assign(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof to) return kInvalid;
  return std::memcpy(&to, value, bytes), 0;
}

std::optional<DType> type_of(int type) {
  if (type == 0) return DType::f32;
  if (type == 2) return DType::f16;
  if (type == 14) return DType::bf16;
  return std::nullopt;
}
double read(std::uint64_t at, std::int64_t i, DType type) {
  if (type == DType::f32) return reinterpret_cast<const float*>(at)[i];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(at)[i];
  return type == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}
void write(std::uint64_t at, std::int64_t i, DType type, float value) {
  if (type == DType::f32)
    reinterpret_cast<float*>(at)[i] = value;
  else
    reinterpret_cast<std::uint16_t*>(at)[i] =
        type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
}

struct Operand {
  std::uint64_t at;
  MatrixLayout layout;
  DType type;
  bool transposed = false;
  std::int64_t rows() const { return transposed ? layout.columns : layout.rows; }
  std::int64_t columns() const { return transposed ? layout.rows : layout.columns; }
  std::int64_t place(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    if (transposed) std::swap(row, column);
    return batch * layout.stride + row + column * layout.pitch;
  }
  bool held() const {
    if (layout.rows < 1 || layout.columns < 1) return false;
    const std::int64_t last = place(layout.batches - 1, rows() - 1, columns() - 1) + 1;
    return at % static_cast<std::uint64_t>(size_of(type)) == 0 &&
           state().holds(at, static_cast<std::uint64_t>(last * size_of(type)));
  }
};

struct Product {
  MatmulDesc desc;
  Operand a, b, d;

  bool fits() const {
    return a.rows() == d.rows() && a.columns() == b.rows() && b.columns() == d.columns() &&
           a.type == b.type && a.layout.batches == d.layout.batches &&
           b.layout.batches == d.layout.batches && !d.transposed &&
           (d.type == a.type || d.type == DType::f32);
  }
  int run() const {
    for (std::int64_t z = 0; z < d.layout.batches; ++z)
      for (std::int64_t j = 0; j < d.columns(); ++j)
        for (std::int64_t i = 0; i < d.rows(); ++i) {
          double sum = 0;
          for (std::int64_t k = 0; k < a.columns(); ++k)
            sum += read(a.at, a.place(z, i, k), a.type) * read(b.at, b.place(z, k, j), b.type);
          if ((desc.epilogue & kBias) != 0) sum += read(desc.bias, i, d.type);
          if ((desc.epilogue & kRelu) != 0) sum = std::max(sum, 0.0);
          write(d.at, d.place(z, i, j), d.type, static_cast<float>(sum));
        }
    return kOk;
  }
};

std::optional<Product> product_of(const MatmulDesc& desc, std::uint64_t a, const MatrixLayout& al,
                                  std::uint64_t b, const MatrixLayout& bl, std::uint64_t d,
                                  const MatrixLayout& dl) {
  const auto ta = type_of(al.type), tb = type_of(bl.type), td = type_of(dl.type);
  if (!ta || !tb || !td) return std::nullopt;
  Product p{desc, {a, al, *ta, desc.trans_a != 0}, {b, bl, *tb, desc.trans_b != 0}, {d, dl, *td}};
  if (!p.fits() || (desc.compute != kCompute32 && desc.compute != kCompute32FastTf32))
    return std::nullopt;
  if ((desc.epilogue & kBias) != 0 && type_of(desc.bias_type) != td) return std::nullopt;
  return p;
}

}  // namespace
}  // namespace heddle::emulation::fake

using heddle::emulation::fake::MatmulDesc;
using heddle::emulation::fake::MatmulPreference;
using heddle::emulation::fake::MatrixLayout;
using namespace heddle::emulation;
using fake::Call;
using fake::state;

HEDDLE_FAKE std::size_t cublasLtGetVersion() { return 130000; }
HEDDLE_FAKE int cublasLtCreate(int** handle) {
  const Call call("cublasLtCreate");
  if (call.code != 0) return call.code;
  ++state().blas;
  return *handle = new int(0), 0;
}
HEDDLE_FAKE int cublasLtDestroy(int* handle) {
  --state().blas;
  return delete handle, 0;
}
HEDDLE_FAKE int cublasLtMatmulDescCreate(MatmulDesc** desc, int compute, int scale) {
  const Call call("cublasLtMatmulDescCreate");
  if (call.code != 0) return call.code;
  if (scale != 0) return fake::kUnsupported;
  ++state().blas;
  *desc = new MatmulDesc;
  return (*desc)->compute = compute, 0;
}
HEDDLE_FAKE int cublasLtMatmulDescDestroy(MatmulDesc* desc) {
  --state().blas;
  return delete desc, 0;
}
HEDDLE_FAKE int cublasLtMatmulDescSetAttribute(MatmulDesc* desc, int attribute, const void* value,
                                               std::size_t bytes) {
  const Call call("cublasLtMatmulDescSetAttribute");
  if (call.code != 0) return call.code;
  switch (attribute) {
    case 3:
      return fake::assign(desc->trans_a, value, bytes);
    case 4:
      return fake::assign(desc->trans_b, value, bytes);
    case 7:
      return fake::assign(desc->epilogue, value, bytes);
    case 8:
      return fake::assign(desc->bias, value, bytes);
    case 26:
      return fake::assign(desc->bias_type, value, bytes);
    default:
      return fake::kInvalid;
  }
}
HEDDLE_FAKE int cublasLtMatrixLayoutCreate(MatrixLayout** layout, int type, std::uint64_t rows,
                                           std::uint64_t columns, std::int64_t pitch) {
  const Call call("cublasLtMatrixLayoutCreate");
  if (call.code != 0) return call.code;
  if (pitch < static_cast<std::int64_t>(rows)) return fake::kInvalid;
  ++state().blas;
  *layout = new MatrixLayout;
  **layout = {type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), pitch, 0,
              1};
  return 0;
}
HEDDLE_FAKE int cublasLtMatrixLayoutDestroy(MatrixLayout* layout) {
  --state().blas;
  return delete layout, 0;
}
HEDDLE_FAKE int cublasLtMatrixLayoutSetAttribute(MatrixLayout* layout, int attribute,
                                                 const void* value, std::size_t bytes) {
  const Call call("cublasLtMatrixLayoutSetAttribute");
  if (call.code != 0) return call.code;
  if (attribute == 5) return fake::assign(layout->batches, value, bytes);
  return attribute == 6 ? fake::assign(layout->stride, value, bytes) : fake::kInvalid;
}
HEDDLE_FAKE int cublasLtMatmulPreferenceCreate(MatmulPreference** preference) {
  const Call call("cublasLtMatmulPreferenceCreate");
  if (call.code != 0) return call.code;
  ++state().blas;
  return *preference = new MatmulPreference, 0;
}
HEDDLE_FAKE int cublasLtMatmulPreferenceDestroy(MatmulPreference* preference) {
  --state().blas;
  return delete preference, 0;
}
HEDDLE_FAKE int cublasLtMatmulPreferenceSetAttribute(MatmulPreference* preference, int attribute,
                                                     const void* value, std::size_t bytes) {
  const Call call("cublasLtMatmulPreferenceSetAttribute");
  if (call.code != 0) return call.code;
  if (attribute == 1) return fake::assign(preference->workspace, value, bytes);
  return attribute >= 5 && attribute <= 8 && bytes == 4 ? 0 : fake::kInvalid;
}
/// cublasLtMatmulHeuristicResult_t.
struct Advice {
  std::uint64_t algorithm[8];
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
HEDDLE_FAKE int cublasLtMatmulAlgoGetHeuristic(void*, const MatmulDesc* desc, const MatrixLayout* a,
                                               const MatrixLayout* b, const MatrixLayout*,
                                               const MatrixLayout* d,
                                               const MatmulPreference* preference, int wanted,
                                               Advice* advice, int* found) {
  const Call call("cublasLtMatmulAlgoGetHeuristic");
  if (call.code != 0) return call.code;
  *found = 0;
  if (wanted < 1 || preference->workspace < fake::kWorkspace) return fake::kUnsupported;
  if (!fake::product_of(*desc, 0, *a, 0, *b, 0, *d)) return fake::kUnsupported;
  *advice = {{fake::kAlgorithm}, fake::kWorkspace, 0, 1, {}};
  return *found = 1, 0;
}
HEDDLE_FAKE int cublasLtMatmul(void*, const MatmulDesc* desc, const float* alpha, std::uint64_t a,
                               const MatrixLayout* al, std::uint64_t b, const MatrixLayout* bl,
                               const float* beta, std::uint64_t c, const MatrixLayout* cl,
                               std::uint64_t d, const MatrixLayout* dl,
                               const std::uint64_t* algorithm, std::uint64_t workspace,
                               std::size_t bytes, fake::Stream* stream) {
  const Call call("cublasLtMatmul");
  if (call.code != 0) return call.code;
  if (!state().streams.contains(stream) || *alpha != 1 || *beta != 0 || c != d || cl != dl)
    return fake::kInvalid;
  if (*algorithm != fake::kAlgorithm || bytes < fake::kWorkspace ||
      !state().holds(workspace, bytes))
    return fake::kInvalid;
  const auto product = fake::product_of(*desc, a, *al, b, *bl, d, *dl);
  if (!product || !product->a.held() || !product->b.held() || !product->d.held())
    return fake::kInvalid;
  const auto bias =
      static_cast<std::uint64_t>(product->d.rows() * heddle::size_of(product->d.type));
  if ((desc->epilogue & fake::kBias) != 0 && !state().holds(desc->bias, bias))
    return fake::kInvalid;
  return state().enqueue(*stream, [product = *product, workspace, bytes] {
    std::memset(reinterpret_cast<void*>(workspace), 0xff, bytes);
    return product.run();
  });
}
