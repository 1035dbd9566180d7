// Asynchronous copies and tensor-core products.
#include "codegen/cuda/emitter.h"

namespace heddle::codegen::cuda {

using namespace kernel;

void PhaseEmitter::copy(const Copy& x) {
  const std::int64_t bytes = x.count * size_of(k_.buffers[x.to].dtype);
  const std::string to = fmt::format("b{} + {}", x.to.value, index(x.to_offset));
  std::string from = index(x.from_offset), valid;
  if (!x.conditions.empty()) {
    valid = fresh('c');
    line(fmt::format("const bool {} = {};", valid, conditions(x.conditions)));
    from = fmt::format("({} ? {} : 0)", valid, from);
    valid = ", " + valid;
  }
  line(fmt::format("hd::copy_async<{}>({}, b{} + {}{});", bytes, to, x.from.value, from, valid));
}

void PhaseEmitter::mma(const Mma& x) {
  const auto operand = [&](const Mma::Operand& o) {
    return fmt::format("b{} + {}", o.buffer.value, index(o.offset));
  };
  // Strides of the dimension that is not contiguous; which one it is is part of the type.
  line(fmt::format("hd::multiply_tiles<{}, {}, {}, {}, {}, {}, {}, {}>(b{}, {}, {});", x.tiles_m,
                   x.tiles_n, x.k, x.warps_n, x.a.row, x.a.step, x.b.row, x.b.step, x.acc.value,
                   operand(x.a), operand(x.b)));
}

}  // namespace heddle::codegen::cuda
