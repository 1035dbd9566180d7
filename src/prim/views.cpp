// Data movement: every function here makes one View.
#include <algorithm>
#include <numeric>

#include "prim/access.h"
#include "prim/builder.h"

namespace heddle::prim {

using ir::Expr;
using ir::Var;

NodeId Builder::view(NodeId x, Shape out, Access access, double fill) {
  HEDDLE_CHECK(access.index.size() == shape(x).size(), "view of {} with {} coordinates",
               to_string(type(x)), access.index.size());
  auto simple = simplified(access, out);
  if (!simple) return full({dtype(x), std::move(out)}, fill);
  if (out == shape(x) && *simple == identity_access(out)) return x;
  if (simple->inside.empty()) fill = 0;  // never seen, so equal views look equal
  const DType t = dtype(x);
  return graph_.add(View{{*std::move(simple)}, fill}, {x}, {t, std::move(out)});
}

NodeId Builder::reshape(NodeId x, Shape out) {
  HEDDLE_CHECK(element_count(out) == element_count(shape(x)), "reshape of {} to {}",
               to_string(type(x)), to_string(out));
  std::vector<Expr> vars;
  for (std::size_t k = 0; k < out.size(); ++k) vars.push_back(var(k));
  Access a;
  a.index = unflatten(flat_index(vars, out), shape(x));
  return view(x, std::move(out), std::move(a));
}

NodeId Builder::transpose(NodeId x, std::vector<int> order) {
  const Shape from = shape(x);
  HEDDLE_CHECK(order.size() == from.size(), "transpose of {} with {} axes", to_string(from),
               order.size());
  Shape out;
  Access a;
  a.index.resize(from.size(), Expr(-1));
  for (std::size_t k = 0; k < order.size(); ++k) {
    const auto source = static_cast<std::size_t>(order[k]);
    HEDDLE_CHECK(source < from.size() && a.index[source].is_constant(-1),
                 "transpose axes are no permutation");
    out.push_back(from[source]);
    a.index[source] = var(k);
  }
  return view(x, std::move(out), std::move(a));
}

NodeId Builder::broadcast(NodeId x, Shape out) {
  const Shape from = shape(x);
  if (from == out) return x;
  HEDDLE_CHECK(from.size() <= out.size(), "broadcast of {} to {}", to_string(from), to_string(out));
  Access a;
  for (std::size_t k = 0; k < from.size(); ++k) {
    const std::size_t at = out.size() - from.size() + k;
    HEDDLE_CHECK(from[k] == 1 || from[k] == out[at], "broadcast of {} to {}", to_string(from),
                 to_string(out));
    a.index.push_back(from[k] == 1 ? Expr(0) : var(at));
  }
  return view(x, std::move(out), std::move(a));
}

NodeId Builder::unsqueeze(NodeId x, std::vector<int> axes) {
  const Shape from = shape(x);
  Shape out;
  Access a;
  std::size_t next = 0;
  for (std::size_t k = 0; k < from.size() + axes.size(); ++k) {
    if (std::find(axes.begin(), axes.end(), static_cast<int>(k)) != axes.end()) {
      out.push_back(1);
      continue;
    }
    HEDDLE_CHECK(next < from.size(), "unsqueeze of {}: axes out of range", to_string(from));
    out.push_back(from[next++]);
    a.index.push_back(var(k));
  }
  return view(x, std::move(out), std::move(a));
}

NodeId Builder::squeeze(NodeId x, std::vector<int> axes) {
  const Shape from = shape(x);
  Shape out;
  Access a;
  for (std::size_t k = 0; k < from.size(); ++k) {
    const bool drop = std::find(axes.begin(), axes.end(), static_cast<int>(k)) != axes.end();
    HEDDLE_CHECK(!drop || from[k] == 1, "squeeze of axis {} of {}", k, to_string(from));
    a.index.push_back(drop ? Expr(0) : var(out.size()));
    if (!drop) out.push_back(from[k]);
  }
  return view(x, std::move(out), std::move(a));
}

NodeId Builder::slice(NodeId x, Shape start, Shape size, Shape step) {
  const Shape& from = shape(x);
  HEDDLE_CHECK(
      start.size() == from.size() && size.size() == from.size() && step.size() == from.size(),
      "slice of {} with {} starts", to_string(from), start.size());
  Access a;
  for (std::size_t k = 0; k < from.size(); ++k) {
    if (size[k] > 0) {
      const std::int64_t last = start[k] + (size[k] - 1) * (size[k] > 1 ? step[k] : 0);
      HEDDLE_CHECK(start[k] >= 0 && start[k] < from[k] && last >= 0 && last < from[k],
                   "slice {}+{}*{} outside axis {} of {}", start[k], size[k], step[k], k,
                   to_string(from));
    }
    a.index.push_back(size[k] > 1 ? var(k) * step[k] + start[k] : Expr(start[k]));
  }
  return view(x, std::move(size), std::move(a));
}

NodeId Builder::slice_axis(NodeId x, int axis, std::int64_t start, std::int64_t size,
                           std::int64_t step) {
  Shape starts(shape(x).size(), 0), sizes = shape(x), steps(shape(x).size(), 1);
  const auto k = static_cast<std::size_t>(axis);
  HEDDLE_CHECK(k < sizes.size(), "slice of axis {} of {}", axis, to_string(type(x)));
  starts[k] = start;
  sizes[k] = size;
  steps[k] = step;
  return slice(x, std::move(starts), std::move(sizes), std::move(steps));
}

NodeId Builder::pad(NodeId x, Shape before, Shape after, double fill) {
  const Shape from = shape(x);
  HEDDLE_CHECK(before.size() == from.size() && after.size() == from.size(),
               "pad of {} with {} amounts", to_string(from), before.size());
  Shape out;
  Access a;
  for (std::size_t k = 0; k < from.size(); ++k) {
    out.push_back(from[k] + before[k] + after[k]);
    HEDDLE_CHECK(out[k] >= 0, "pad of axis {} of {} by {}, {}", k, to_string(from), before[k],
                 after[k]);
    a.index.push_back(var(k) - before[k]);
    a.inside.push_back({a.index.back(), 0, from[k]});
  }
  return view(x, std::move(out), std::move(a), fill);
}

NodeId Builder::concat(std::vector<NodeId> parts, int axis) {
  HEDDLE_CHECK(!parts.empty(), "concat of nothing");
  const auto at = static_cast<std::size_t>(axis);
  Shape out = shape(parts[0]);
  const DType t = dtype(parts[0]);
  HEDDLE_CHECK(at < out.size(), "concat along axis {} of {}", axis, to_string(out));
  out[at] = 0;
  for (const NodeId p : parts) {
    Shape other = shape(p);
    HEDDLE_CHECK(other.size() == out.size() && dtype(p) == t, "concat of {} and {}",
                 to_string(type(parts[0])), to_string(type(p)));
    out[at] += other[at];
    other[at] = out[at];
    HEDDLE_CHECK(other == out, "concat of {} and {}", to_string(type(parts[0])),
                 to_string(type(p)));
  }
  View v;
  std::vector<NodeId> args;
  std::int64_t offset = 0;
  for (const NodeId p : parts) {
    const std::int64_t extent = shape(p)[at];
    if (extent > 0 || parts.size() == 1) {
      Access a = identity_access(shape(p));
      if (parts.size() > 1) a.inside.push_back({var(at), offset, offset + extent});
      a.index[at] = var(at) - offset;
      if (auto s = simplified(a, out)) {
        v.pieces.push_back(*std::move(s));
        args.push_back(p);
      }
    }
    offset += extent;
  }
  if (args.empty()) return full({t, std::move(out)}, 0);
  if (args.size() == 1) return view(args[0], std::move(out), v.pieces[0]);
  return graph_.add(std::move(v), std::move(args), {t, std::move(out)});
}

NodeId Builder::stack(std::vector<NodeId> parts, int axis) {
  for (NodeId& p : parts) p = unsqueeze(p, {axis});
  return concat(std::move(parts), axis);
}

NodeId Builder::flip(NodeId x, std::vector<int> axes) {
  Access a;
  const Shape out = shape(x);
  for (std::size_t k = 0; k < out.size(); ++k) {
    const bool flipped = std::find(axes.begin(), axes.end(), static_cast<int>(k)) != axes.end();
    a.index.push_back(flipped ? Expr(out[k] - 1) - var(k) : var(k));
  }
  return view(x, out, std::move(a));
}

}  // namespace heddle::prim
