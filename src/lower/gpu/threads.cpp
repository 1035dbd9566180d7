// Tasks of one thread each (scans, updates in order) as blocks of threads.
#include <algorithm>

#include "kernel/traverse.h"
#include "lower/gpu/nest.h"

namespace heddle::lower::gpu {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::For;
using kernel::Stmt;

kernel::Kernel with_threads(kernel::Kernel k, int threads, bool exactly) {
  Body out;
  for (const Stmt& s : k.body) {
    const For* phase = std::get_if<For>(&s.op);
    if (!phase || kernel::threads_of(*phase) > 0) {
      out.push_back(s);
      continue;
    }
    const std::int64_t count = phase->end;
    const int block =
        exactly ? threads : static_cast<int>(std::clamp<std::int64_t>(count, 1, threads));
    const std::int64_t blocks = (count + block - 1) / block;
    const Var task = k.new_var(), thread = k.new_var();
    const Expr number = Expr(task) * Expr(block) + Expr(thread);
    Body body{kernel::let(phase->var, number, 0, std::max<std::int64_t>(count, 1), *phase->body)};
    kernel::for_each_stmt(body, [&](const Stmt& x) {
      if (const auto* store = std::get_if<kernel::Store>(&x.op))
        if (k.buffers[store->buffer].scope == kernel::Scope::block)
          k.buffers[store->buffer].scope = kernel::Scope::lane;
    });
    out.push_back(kernel::loop(task, 0, blocks, Binding::grid,
                               {kernel::loop(thread, 0, block, Binding::thread, std::move(body))}));
  }
  k.body = std::move(out);
  return k;
}

}  // namespace heddle::lower::gpu
