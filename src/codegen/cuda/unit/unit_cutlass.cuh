// Products and their epilogues as CUTLASS collectives for Hopper: TMA, warp-specialised.
#pragma once
#include "cutlass/cutlass.h"
//
#include "cutlass/cluster_launch.hpp"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace hdu {

namespace fusion = cutlass::epilogue::fusion;
using cute::_0;
using cute::_1;
using cute::Stride;
using f32 = float;
using f16 = cutlass::half_t;
using bf16 = cutlass::bfloat16_t;
using Long = int64_t;
constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;
/// Elements that the copy engine wants side by side.
template <class T>
constexpr int kVector = 16 / sizeof(T);

struct Cooperative {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
};
struct Pingpong {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
};
/// In memory a matrix runs along the first or the second of its axes.
using AlongRows = cutlass::layout::ColumnMajor;
using AlongColumns = cutlass::layout::RowMajor;

/// What the products of one unit have in common. A is rows by depth, B depth by columns.
template <class Operand_, class LayoutA_, class LayoutB_, int kM, int kN, int kK, class Schedule_>
struct Group {
  using Operand = Operand_;
  using LayoutA = LayoutA_;
  using LayoutB = LayoutB_;
  using Tile = cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::Int<kK>>;
  using Cluster = cute::Shape<cute::_2, _1, _1>;
  using Schedule = Schedule_;
};

template <class T>
T* pointer(const HeddleMatrix& m) {
  return reinterpret_cast<T*>(m.data);
}

/// The sums of products.
struct Sum {
  template <class G>
  using Node = fusion::Sm90AccFetch;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix*) {
    return {};
  }
};
/// Matrix `number`, through shared memory as the mainloop's result is: at most one of a product.
template <int number, class T>
struct Source {
  template <class G>
  using Node = fusion::Sm90SrcFetch<T>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix*) {
    return {};
  }
};
/// A vector along the columns, one for each batch.
template <int number, class T>
struct Row {
  template <class G>
  using Node = fusion::Sm90RowBroadcast<0, typename G::Tile, T, float, Stride<_0, _1, Long>>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix* m) {
    return {pointer<const T>(m[number]), T(0), {_0{}, _1{}, m[number].batch}};
  }
};
/// A vector along the rows.
template <int number, class T>
struct Column {
  template <class G>
  using Node = fusion::Sm90ColBroadcast<0, typename G::Tile, T, float, Stride<_1, _0, Long>>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix* m) {
    return {pointer<const T>(m[number]), T(0), {_1{}, _0{}, m[number].batch}};
  }
};
/// One number.
template <int number, class T>
struct Scalar {
  template <class G>
  using Node = fusion::Sm90ScalarBroadcast<T, Stride<_0, _0, Long>>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix* m) {
    return {{T(0)}, {pointer<const T>(m[number])}, {{_0{}, _0{}, m[number].batch}}};
  }
};
/// A matrix with columns side by side, and one with any strides, past shared memory.
template <int number, class T>
struct Load {
  template <class G>
  using Node = fusion::Sm90AuxLoad<0, void, T, Stride<Long, _1, Long>, void, void>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix* m) {
    return {pointer<const T>(m[number]), T(0), {m[number].row, _1{}, m[number].batch}};
  }
};
template <int number, class T>
struct Strided {
  template <class G>
  using Node = fusion::Sm90AuxLoad<0, void, T, Stride<Long, Long, Long>, void, void, 1>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix* m) {
    return {pointer<const T>(m[number]), T(0), {m[number].row, m[number].column, m[number].batch}};
  }
};
/// A function of f32 values (HDU_FUNCTION) over nodes.
template <template <class> class Function, class Result, class... Children>
struct Compute {
  template <class G>
  using Node = fusion::Sm90EVT<fusion::Sm90Compute<Function, Result, float, kRound>,
                               typename Children::template Node<G>...>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix* m) {
    return {Children::template arguments<G>(m)..., {}};
  }
};
/// Stores what a node computes, and passes it on unrounded.
template <int number, class T, class Child>
struct Store {
  template <class G>
  using Node = fusion::Sm90EVT<
      fusion::Sm90AuxStore<0, void, T, kRound, Stride<Long, _1, Long>, void, void>,
      typename Child::template Node<G>>;
  template <class G>
  static typename Node<G>::Arguments arguments(const HeddleMatrix* m) {
    return {Child::template arguments<G>(m),
            {pointer<T>(m[number]), {m[number].row, _1{}, m[number].batch}}};
  }
};
template <class Kernel>
class KernelCall final : public Call {
 public:
  explicit KernelCall(const typename Kernel::Arguments& arguments) : arguments_(arguments) {}
  int launch(unsigned long long workspace, void* stream_) override {
    const auto stream = static_cast<cudaStream_t>(stream_);
    void* const memory = reinterpret_cast<void*>(workspace);
    if (!ready_) {
      // Tensor maps are encoded once: the addresses of a run stay.
      if (Kernel::initialize_workspace(arguments_, memory, stream) != cutlass::Status::kSuccess)
        return failed("CUTLASS: cannot initialise the workspace");
      params_ = Kernel::to_underlying_arguments(arguments_, memory);
      ready_ = true;
    }
    void* list[] = {&params_};
    const auto status = cutlass::ClusterLauncher::launch(
        Kernel::get_grid_shape(params_), dim3(2, 1, 1), Kernel::get_block_shape(),
        Kernel::SharedStorageSize, stream,
        reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>), list);
    if (status == cutlass::Status::kSuccess) return HEDDLE_UNIT_OK;
    return failed(std::string("CUTLASS: launch: ") + cudaGetErrorString(cudaGetLastError()));
  }

 private:
  typename Kernel::Arguments arguments_;
  typename Kernel::Params params_;
  bool ready_ = false;
};

/// The product of a group whose result is what `Tree` computes; SourceType: of its Source, or void.
template <class G, class Result, class SourceType, int source, class Tree>
struct Product {
  using Operand = typename G::Operand;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename G::Tile, typename G::Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, SourceType, AlongColumns,
      kVector<std::conditional_t<std::is_void_v<SourceType>, Result, SourceType>>, Result,
      AlongColumns, kVector<Result>, typename G::Schedule::Epilogue,
      typename Tree::template Node<G>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Operand, typename G::LayoutA,
      kVector<Operand>, Operand, typename G::LayoutB, kVector<Operand>, float,
      typename G::Tile, typename G::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<
          static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename G::Schedule::Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, void>;

  template <class S>
  static S stride(const HeddleMatrix& m) {
    S out{};
    if constexpr (cute::is_same_v<cute::remove_cvref_t<decltype(cute::get<0>(out))>, _1>)
      cute::get<1>(out) = m.row == 1 ? m.column : m.row;
    else
      cute::get<0>(out) = m.column == 1 ? m.row : m.column;
    cute::get<2>(out) = m.batch;
    return out;
  }

  static int create(const HeddleProduct& p, std::unique_ptr<Call>& made, std::size_t& workspace) {
    const HeddleMatrix* m = p.matrices;
    typename Kernel::Arguments a{};
    a.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    a.problem_shape = cute::make_shape(static_cast<int>(p.rows), static_cast<int>(p.columns),
                                       static_cast<int>(p.depth), static_cast<int>(p.batches));
    a.mainloop.ptr_A = pointer<const Operand>(m[kLhs]);
    a.mainloop.dA = stride<typename Kernel::StrideA>(m[kLhs]);
    a.mainloop.ptr_B = pointer<const Operand>(m[kRhs]);
    a.mainloop.dB = stride<typename Kernel::StrideB>(m[kRhs]);
    a.epilogue.thread = Tree::template arguments<G>(m);
    if constexpr (!std::is_void_v<SourceType>) {
      a.epilogue.ptr_C = pointer<const SourceType>(m[source]);
      a.epilogue.dC = stride<typename Kernel::StrideC>(m[source]);
    }
    a.epilogue.ptr_D = pointer<Result>(m[kOut]);
    a.epilogue.dD = stride<typename Kernel::StrideD>(m[kOut]);
    if (cudaGetDevice(&a.hw_info.device_id) != cudaSuccess ||
        cudaDeviceGetAttribute(&a.hw_info.sm_count, cudaDevAttrMultiProcessorCount,
                               a.hw_info.device_id) != cudaSuccess)
      return failed("CUTLASS: no device");
    if (!Kernel::can_implement(a)) return HEDDLE_UNIT_REFUSED;
    const cudaError_t code = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>),
        cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize);
    if (code != cudaSuccess)
      return failed(std::string("CUTLASS: shared memory: ") + cudaGetErrorString(code));
    workspace = Kernel::get_workspace_size(a);
    made = std::make_unique<KernelCall<Kernel>>(a);
    return HEDDLE_UNIT_OK;
  }
};

}  // namespace hdu
