#pragma once
#include <optional>
#include <span>

#include "runtime/cuda/gpu.h"
#include "support/library_product.h"

namespace heddle::runtime::cuda {

/// Entry points of cuBLASLt, loaded at run time; names without "cublasLt".
struct BlasLibrary {
  int (*Create)(Handle* handle);
  int (*Destroy)(Handle handle);
  int (*MatmulDescCreate)(Handle* desc, int compute, int scale);
  int (*MatmulDescDestroy)(Handle desc);
  int (*MatmulDescSetAttribute)(Handle desc, int attribute, const void* value, std::size_t bytes);
  int (*MatrixLayoutCreate)(Handle* layout, int type, std::uint64_t rows, std::uint64_t columns,
                            std::int64_t pitch);
  int (*MatrixLayoutDestroy)(Handle layout);
  int (*MatrixLayoutSetAttribute)(Handle layout, int attribute, const void* value,
                                  std::size_t bytes);
  int (*MatmulPreferenceCreate)(Handle* preference);
  int (*MatmulPreferenceDestroy)(Handle preference);
  int (*MatmulPreferenceSetAttribute)(Handle preference, int attribute, const void* value,
                                      std::size_t bytes);
  int (*MatmulAlgoGetHeuristic)(Handle library, Handle desc, Handle a, Handle b, Handle c, Handle d,
                                Handle preference, int wanted, void* results, int* found);
  int (*Matmul)(Handle library, Handle desc, const void* alpha, DevicePtr a, Handle a_layout,
                DevicePtr b, Handle b_layout, const void* beta, DevicePtr c, Handle c_layout,
                DevicePtr d, Handle d_layout, const void* algorithm, DevicePtr workspace,
                std::size_t bytes, Handle stream);
};

/// cuBLASLt on one GPU.
class Blas {
 public:
  /// Errors: missing (no such library, an old one). `gpu`'s context must be current.
  static Result<std::shared_ptr<Blas>> open(std::shared_ptr<Gpu> gpu, const std::string& path);

  const BlasLibrary& library() const { return library_; }
  Handle handle() const { return handle_.get(); }
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  BlasLibrary library_{};
  Owned<Handle> handle_;
};

/// A product with the algorithm that the library advises for its sizes and addresses.
class BlasProduct {
 public:
  /// `args`: addresses by argument. nullopt where the library has no algorithm for it.
  static Result<std::optional<BlasProduct>> prepare(std::shared_ptr<Blas> blas,
                                                    const LibraryProduct& product,
                                                    std::span<const DevicePtr> args);
  std::int64_t workspace_bytes() const { return static_cast<std::int64_t>(choice_.workspace); }
  Status launch(DevicePtr workspace, Handle stream) const;

 private:
  /// cublasLtMatmulHeuristicResult_t.
  struct Choice {
    std::uint64_t algorithm[8];
    std::size_t workspace;
    int state;
    float waves;
    int reserved[4];
  };
  static_assert(sizeof(Choice) == 96);
  Status describe(const LibraryProduct& product, std::span<const DevicePtr> args);
  Result<bool> choose();
  std::shared_ptr<Blas> blas_;
  Owned<Handle> desc_, a_layout_, b_layout_, d_layout_;
  DevicePtr a_ = 0, b_ = 0, d_ = 0;
  Choice choice_{};
};

}  // namespace heddle::runtime::cuda
