// What a block works on together: sorting, asynchronous copies, tensor-core products, roles.
#include <algorithm>

#include "codegen/cuda/emitter.h"
#include "kernel/bounds.h"

namespace heddle::codegen::cuda {

using namespace kernel;

void PhaseEmitter::routine(const Routine& x) {
  if (x.name != "heddle_sort") {
    error_ = fmt::format("routine '{}' has no device code", x.name);
    return;
  }
  line(meet_);
  const std::string start = index(x.integers[4]);
  line(fmt::format("hdk::sort_positions<{5}>(b{0} + {2}, b{1} + {2}, {3}, {4}{6});",
                   x.buffers[0].value, x.buffers[1].value, start, index(x.integers[0]),
                   x.integers[2].is_constant(0) ? "false" : "true", info_.threads, meeting_));
}

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
  if (x.warpgroup) {
    line("hd::wgmma_fence();");
    if (k_.buffers[x.a.buffer].use == Use::tiles)
      line(fmt::format("hd::start_tile_products<{}>(b{}, {}, {});", x.tiles_n, x.acc.value,
                       operand(x.a), operand(x.b)));
    else
      line(fmt::format("hd::start_products<{}, {}, {}, {}>(b{}, {}, {});", x.tiles_n, x.k, x.a.step,
                       x.b.step, x.acc.value, operand(x.a), operand(x.b)));
    line("hd::wgmma_commit();");
    return;
  }
  // Strides of the dimension that is not contiguous; which one it is is part of the type.
  line(fmt::format("hd::multiply_tiles<{}, {}, {}, {}, {}, {}, {}, {}>(b{}, {}, {});", x.tiles_m,
                   x.tiles_n, x.k, x.warps_n, x.a.row, x.a.step, x.b.row, x.b.step, x.acc.value,
                   operand(x.a), operand(x.b)));
}

void PhaseEmitter::event(const Event& x) {
  bool completed = false;  // by tiles
  const std::string events = fmt::format("b{}", x.events.value);
  const std::string at = x.kind == Event::Kind::init ? "" : events + " + " + index(x.index);
  switch (x.kind) {
    case Event::Kind::init:
      for (std::int64_t i = 0; i < k_.buffers[x.events].size; ++i)
        line(fmt::format("hd::mbarrier_init({} + {}, {});", events, i, x.count));
      // Threads see it after the barrier, the copy engine after a fence.
      for_each_stmt(*phase_.body, [&](const Stmt& s) {
        const TileCopy* copy = std::get_if<TileCopy>(&s.op);
        completed = completed || (copy && copy->events == x.events);
      });
      if (completed) line("hd::mbarrier_fence();");
      return;
    case Event::Kind::arrive:
      return line(x.count ? fmt::format("hd::mbarrier_arrive_expect({}, {});", at, x.count)
                          : fmt::format("hd::mbarrier_arrive({});", at));
    case Event::Kind::wait:
      return line(fmt::format("hd::mbarrier_wait({}, {});", at, index(x.parity)));
  }
}

/// Equal tensors share a map.
void PhaseEmitter::tile(const TileCopy& x) {
  const auto parameter = std::find(parameters_.begin(), parameters_.end(), x.from);
  HEDDLE_CHECK(parameter != parameters_.end(), "'{}' is no parameter", k_.buffers[x.from].name);
  const TileMap map{static_cast<int>(parameter - parameters_.begin()), k_.buffers[x.from].dtype,
                    x.extents, x.strides, x.box};
  auto found = std::find(info_.maps.begin(), info_.maps.end(), map);
  if (found == info_.maps.end()) found = info_.maps.insert(found, map);
  std::string at;
  for (const ir::Expr& e : x.at) at += fmt::format("static_cast<int>({}), ", index(e));
  line(fmt::format("hd::tma_load_{}d(b{} + {}, &m{}, {}b{} + {});", x.box.size(), x.to.value,
                   index(x.to_offset), found - info_.maps.begin(), at, x.events.value,
                   index(x.event)));
}

/// Branches of one `if`, so that the compiler gives each its registers.
void PhaseEmitter::roles(const Roles& x) {
  constexpr int kAll = 65536, kStep = 8, kMost = 255;
  const int usual = std::min(kMost, kAll / info_.threads / kStep * kStep);
  std::int64_t first = 0;
  for (const Roles::Role& role : x.roles) {
    const std::int64_t end = first + role.threads;
    const bool last = &role == &x.roles.back();
    const std::string head = last ? "{" : fmt::format("if (threadIdx.x < {}) {{", end);
    open(first == 0 ? head : "} else " + head);
    if (role.registers != 0) {
      shares_registers_ = true;
      line(fmt::format("hd::registers_{}<{}>();", role.registers > usual ? "increase" : "decrease",
                       role.registers));
    }
    set_range(ranges_, thread_, ir::Interval{first, end - 1});
    body(*role.body);
    --depth_;
    if (last) line("}");
    first = end;
  }
}

}  // namespace heddle::codegen::cuda
