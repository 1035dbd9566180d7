#pragma once
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <functional>

#include "ir/scalar.h"

namespace heddle::codegen::cpu {

/// Lanes of a vector; 1 for a scalar.
inline unsigned width_of(llvm::Value* v) {
  const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  return type ? type->getNumElements() : 1;
}

/// LLVM spelling of scalar functions. Every function works alike on scalars and on vectors:
/// operands have equal shapes, and shapes are carried by the LLVM types.
class Ops {
 public:
  using Make = std::function<llvm::Value*()>;
  /// A two-way branch at the builder's position.
  using Branch = std::function<llvm::Value*(llvm::Value* condition, const Make&, const Make&)>;
  /// modern: the machine has fused multiply-add and converts f16; else routines do, per lane.
  /// x86_bytes: of a register of an x86 processor; 0 for others. quads, bf16_pairs: as in Machine.
  Ops(llvm::Module& module, llvm::IRBuilder<>& b, bool modern, int x86_bytes, bool quads,
      bool bf16_pairs, Branch branch)
      : module_(module),
        b_(b),
        modern_(modern),
        x86_bytes_(x86_bytes),
        quads_(quads),
        bf16_pairs_(bf16_pairs),
        branch_(std::move(branch)) {}

  /// Element type in registers: i1 for b1, float for f16 and bf16 (computed in f32).
  llvm::Type* compute(DType t) const;
  /// Element type in memory: i8 for b1, i16 for bf16 and f16.
  llvm::Type* storage(DType t) const;
  /// From memory form to register form, and back (round to nearest even).
  llvm::Value* from_storage(llvm::Value* v, DType t);
  llvm::Value* to_storage(llvm::Value* v, DType t);

  /// fn(args): `from` is the type of the last argument, `to` that of the result.
  llvm::Value* apply(ir::ScalarFn fn, llvm::ArrayRef<llvm::Value*> args, DType from, DType to);
  llvm::Value* cast(llvm::Value* v, DType from, DType to);
  llvm::Constant* constant(DType t, double real, std::int64_t integer) const;
  /// All lanes combined by a tree: log2(lanes) steps, neighbours last.
  llvm::Value* reduce(ir::Monoid m, llvm::Value* vector, DType t);

  /// `v` in each of `width` lanes; `v` itself if it is a vector or width is 1.
  llvm::Value* splat(llvm::Value* v, unsigned width);
  /// `element` or a vector of it, shaped as `like` is.
  static llvm::Type* shaped(llvm::Type* element, llvm::Value* like);
  /// sum + ScalarFn::dot4 of x and y.
  llvm::Value* dot4(llvm::Value* sum, llvm::Value* x, llvm::Value* y);
  /// sum + kernel::product_of_halves of x and y; null where no instruction is as wide.
  llvm::Value* add_bf16_products(llvm::Value* sum, llvm::Value* x, llvm::Value* y);
  /// numerator / (1 + e^y), or of -y, in f32; without a numerator 1 is, else it is NaN where y is.
  /// `narrow`: bf16 is all that is kept (narrow.h), of whose last place an eighth may be missing,
  /// and 0 is as good as 2^-126. Null where the parts are no slower.
  llvm::Value* logistic(llvm::Value* numerator, llvm::Value* y, bool negative, bool narrow);
  /// e^(±x), no more exact than that. Null where an exact one takes no longer.
  llvm::Value* narrow_exp(llvm::Value* x, double sign = 1);
  /// 1 + fn(y), fn erf or tanh: of its own size no less exact, also where next to nothing is left.
  /// Null as before.
  llvm::Value* narrow_one_plus(ir::ScalarFn fn, llvm::Value* y);
  /// Calls `name` on each lane of the arguments (libm).
  llvm::Value* per_lane(const std::string& name, llvm::ArrayRef<llvm::Value*> args,
                        llvm::Type* result);
  /// Vectors of f32 that are rounded and bounded within [low, high] to those integers, as i32;
  /// those of NaN have no low bits. Null where it is something else.
  llvm::Value* bounded_to_nearest(llvm::Value* v, double low, double high);

 private:
  llvm::Value* apply_float(ir::ScalarFn fn, llvm::ArrayRef<llvm::Value*> args, DType type);
  llvm::Value* float_unary(ir::ScalarFn fn, llvm::Value* x, DType type);
  llvm::Value* apply_int(ir::ScalarFn fn, llvm::ArrayRef<llvm::Value*> args, DType type);
  llvm::Value* int_unary(ir::ScalarFn fn, llvm::Value* x, DType type);
  llvm::Value* int_division(ir::ScalarFn fn, llvm::Value* x, llvm::Value* y, bool is_unsigned);
  llvm::Value* int_power(llvm::Value* x, llvm::Value* y, DType type);
  llvm::Value* saturated(llvm::Value* v, DType to);
  llvm::Value* nearest(llvm::Value* v);
  /// The bits of bf16 nearest to f32; to_bf16, with denormals flushed, is null where no instruction
  /// is as wide.
  llvm::Value* to_bf16(llvm::Value* v);
  llvm::Value* to_bf16_exactly(llvm::Value* v);
  llvm::Value* stored_bf16(llvm::Value* v);
  /// To what `t` holds, in the type that v has.
  llvm::Value* rounded(llvm::Value* v, DType t);
  llvm::Value* dot2(llvm::Value* x, llvm::Value* y);
  llvm::Value* random_bits(llvm::Value* position, llvm::Value* key);
  llvm::Value* shift(ir::ScalarFn fn, llvm::Value* x, llvm::Value* y, DType type);
  llvm::Value* extreme(llvm::Value* x, llvm::Value* y, bool want_max);
  llvm::Value* power(llvm::Value* x, llvm::Value* y, DType type);
  llvm::Value* libm(ir::ScalarFn fn, llvm::ArrayRef<llvm::Value*> args, DType type);

  // Polynomials for f32, in math.cpp.
  llvm::Value* quotient_by_constant(llvm::Value* x, llvm::Value* y);
  llvm::Value* exp_f32(llvm::Value* x);
  llvm::Value* log_f32(llvm::Value* x);
  llvm::Value* tanh_f32(llvm::Value* x);
  llvm::Value* erf_f32(llvm::Value* x);
  llvm::Value* odd_rational(llvm::Value* x, double limit, llvm::ArrayRef<double> p,
                            llvm::ArrayRef<double> q);
  llvm::Value* about_reciprocal(llvm::Value* x);
  llvm::Value* sine_f32(llvm::Value* x, bool cosine);
  llvm::Value* polynomial(llvm::Value* x, llvm::ArrayRef<double> high_first);

  llvm::Constant* real(llvm::Value* like, double value) const;
  llvm::Value* avx512(llvm::Intrinsic::ID of_8, llvm::Intrinsic::ID of_16,
                      llvm::SmallVector<llvm::Value*> args);
  llvm::Value* scaled(llvm::Value* x, llvm::Value* n);
  llvm::Value* unless_nan(llvm::Value* x, llvm::Value* v);
  llvm::Value* bounded(llvm::Value* x, double limit);
  llvm::Value* short_exp(llvm::Value* x, llvm::Value* n, double sign, double scale);
  llvm::Constant* integer(llvm::Type* like, std::int64_t value) const;
  llvm::Value* intrinsic(llvm::Intrinsic::ID id, llvm::ArrayRef<llvm::Value*> args);

  llvm::Module& module_;
  llvm::IRBuilder<>& b_;
  bool modern_;
  int x86_bytes_;
  bool quads_, bf16_pairs_;
  Branch branch_;
};

}  // namespace heddle::codegen::cpu
