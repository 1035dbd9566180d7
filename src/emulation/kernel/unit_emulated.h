// Units of products on the CPU (codegen/cuda/unit/unit.cuh says what each name means): the tree of
// a product is walked element by element, with the checks that CUTLASS and the copy engine make.
#pragma once
#include <dlfcn.h>

#include <initializer_list>

namespace hdu {

using f32 = float;
using f16 = hd::f16;
using bf16 = hd::bf16;
struct Cooperative {};
struct Pingpong {};
struct AlongRows {};
struct AlongColumns {};
template <class Operand_, class LayoutA_, class LayoutB_, int, int, int, class>
struct Group {
  using Operand = Operand_;
  using LayoutA = LayoutA_;
  using LayoutB = LayoutB_;
};

/// What the stand-in for the driver does for units.
struct Driver {
  int (*call)(const char* name);  ///< counts; an injected error
  int (*holds)(unsigned long long at, unsigned long long bytes);
  int (*enqueue)(void* stream, int (*work)(void*), void* data, void (*drop)(void*));
};
inline const Driver& driver() {
  static const Driver found = [] {
    void* library = ::dlopen(HEDDLE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    Driver d;
    d.call = reinterpret_cast<decltype(d.call)>(::dlsym(library, "heddle_fake_call"));
    d.holds = reinterpret_cast<decltype(d.holds)>(::dlsym(library, "heddle_fake_holds"));
    d.enqueue = reinterpret_cast<decltype(d.enqueue)>(::dlsym(library, "heddle_fake_enqueue"));
    return d;
  }();
  return found;
}

template <class T>
T& element(const HeddleMatrix& m, long long at) {
  return reinterpret_cast<T*>(m.data)[at];
}
template <class T>
bool held(const HeddleMatrix& m, long long last) {
  return m.data % sizeof(T) == 0 && driver().holds(m.data, (last + 1) * sizeof(T));
}
/// 16 bytes at once, along the axis that is contiguous.
template <class T>
bool aligned(const HeddleMatrix& m, bool by_columns, long long extent) {
  constexpr int kVector = 16 / sizeof(T);
  const long long pitch = by_columns ? m.row : m.column;
  return m.data % 16 == 0 && pitch % kVector == 0 && extent % kVector == 0 &&
         m.batch % kVector == 0 && (by_columns ? m.column : m.row) == 1;
}

struct Place {
  const HeddleMatrix* m;
  long long b, i, j;
  float sum;
};
/// A vector of one for HDU_FUNCTION.
struct One {
  static constexpr int kElements = 1;
  float value = 0;
  float& operator[](int) { return value; }
  float operator[](int) const { return value; }
};

struct Sum {
  static bool fits(const HeddleProduct&) { return true; }
  static float at(const Place& p) { return p.sum; }
};
/// Reads with these strides only; -1: the matrix's own.
template <int number, class T, int row, int column>
struct Read {
  static long long offset(const HeddleMatrix& m, long long b, long long i, long long j) {
    return b * m.batch + i * (row < 0 ? m.row : row) + j * (column < 0 ? m.column : column);
  }
  static bool fits(const HeddleProduct& p) {
    const HeddleMatrix& m = p.matrices[number];
    return number < p.count && held<T>(m, offset(m, p.batches - 1, p.rows - 1, p.columns - 1));
  }
  static float at(const Place& p) {
    return hd::widen(element<T>(p.m[number], offset(p.m[number], p.b, p.i, p.j)));
  }
};
template <int number, class T>
struct InRows : Read<number, T, -1, 1> {
  static bool fits(const HeddleProduct& p) {
    return Read<number, T, -1, 1>::fits(p) && aligned<T>(p.matrices[number], true, p.columns);
  }
};
template <int number, class T>
using Source = InRows<number, T>;
template <int number, class T>
using Load = InRows<number, T>;
template <int number, class T>
using Strided = Read<number, T, -1, -1>;
template <int number, class T>
using Row = Read<number, T, 0, 1>;
template <int number, class T>
using Column = Read<number, T, 1, 0>;
template <int number, class T>
using Scalar = Read<number, T, 0, 0>;

template <template <class> class Function, class Result, class... Children>
struct Compute {
  static bool fits(const HeddleProduct& p) { return (Children::fits(p) && ...); }
  static float at(const Place& p) { return Function<One>{}(One{Children::at(p)}...)[0]; }
};
template <int number, class T, class Child>
struct Store {
  static bool fits(const HeddleProduct& p) { return InRows<number, T>::fits(p) && Child::fits(p); }
  static float at(const Place& p) {
    const float value = Child::at(p);
    element<T>(p.m[number], p.b * p.m[number].batch + p.i * p.m[number].row + p.j) =
        hd::narrow<T>(value);
    return value;
  }
};

struct Sizes {
  HeddleProduct product;
  HeddleMatrix matrices[32];
};

template <class G, class Result, class SourceType, int source, class Tree>
struct Product {
  using Operand = typename G::Operand;
  static constexpr bool kLhsByRows = hd::kSame<typename G::LayoutA, AlongColumns>;
  static constexpr bool kRhsByRows = hd::kSame<typename G::LayoutB, AlongRows>;
  static constexpr std::size_t kWorkspace = 4096;

  static int run(void* data) {
    const Sizes& s = *static_cast<const Sizes*>(data);
    const HeddleProduct& p = s.product;
    const HeddleMatrix* m = s.matrices;
    for (long long b = 0; b < p.batches; ++b)
      for (long long i = 0; i < p.rows; ++i)
        for (long long j = 0; j < p.columns; ++j) {
          double sum = 0;
          const long long l = b * m[kLhs].batch + i * m[kLhs].row;
          const long long r = b * m[kRhs].batch + j * m[kRhs].row;
          for (long long k = 0; k < p.depth; ++k)
            sum +=
                hd::widen(element<Operand>(m[kLhs], l + k * m[kLhs].column)) *
                static_cast<double>(hd::widen(element<Operand>(m[kRhs], r + k * m[kRhs].column)));
          element<Result>(m[kOut], b * m[kOut].batch + i * m[kOut].row + j) =
              hd::narrow<Result>(Tree::at({m, b, i, j, static_cast<float>(sum)}));
        }
    return 0;
  }

  struct Made final : Call {
    Sizes sizes;
    int launch(unsigned long long workspace, void* stream) override {
      if (driver().call("unit_launch") != 0 || !driver().holds(workspace, kWorkspace))
        return failed("launch: injected");
      auto* copy = new Sizes(sizes);
      return driver().enqueue(stream, &run, copy, [](void* d) { delete static_cast<Sizes*>(d); })
                 ? failed("launch: no such stream")
                 : HEDDLE_UNIT_OK;
    }
  };

  static int create(const HeddleProduct& p, std::unique_ptr<Call>& made, std::size_t& workspace) {
    if (const int code = driver().call("unit_create"))
      return code == HEDDLE_UNIT_REFUSED ? code : failed("create: injected");
    const HeddleMatrix* m = p.matrices;
    const auto last = [&](const HeddleMatrix& x, long long rows, long long columns) {
      return (p.batches - 1) * x.batch + (rows - 1) * x.row + (columns - 1) * x.column;
    };
    if (!aligned<Operand>(m[kLhs], kLhsByRows, kLhsByRows ? p.depth : p.rows) ||
        !aligned<Operand>(m[kRhs], kRhsByRows, kRhsByRows ? p.depth : p.columns) ||
        !aligned<Result>(m[kOut], true, p.columns))
      return HEDDLE_UNIT_REFUSED;
    if (!held<Operand>(m[kLhs], last(m[kLhs], p.rows, p.depth)) ||
        !held<Operand>(m[kRhs], last(m[kRhs], p.columns, p.depth)) ||
        !held<Result>(m[kOut], last(m[kOut], p.rows, p.columns)) || !Tree::fits(p))
      return failed("create: a matrix is not in device memory, or not aligned");
    auto call = std::make_unique<Made>();
    call->sizes.product = p;
    for (int i = 0; i < p.count; ++i) call->sizes.matrices[i] = m[i];
    made = std::move(call);
    workspace = kWorkspace;
    return HEDDLE_UNIT_OK;
  }
};

}  // namespace hdu
