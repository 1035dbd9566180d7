#include "lower/stitch/axes.h"

#include <algorithm>
#include <set>

#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::lower::stitch {

using ir::IndexNode;

namespace {

constexpr int kMaxSplits = 8;

/// Divisors q for which (c·v + …) / q or % q appears.
void divisors(const Expr& e, Var v, std::set<std::int64_t>& out) {
  const IndexNode& node = e.node();
  for (const IndexNode::Term& t : node.terms) divisors(t.atom, v, out);
  for (const Expr& arg : node.args) divisors(arg, v, out);
  if (node.kind != IndexNode::Kind::div && node.kind != IndexNode::Kind::mod) return;
  const auto c = ir::coefficient_of(node.args[0], v);
  if (c && *c > 0 && node.constant % *c == 0) out.insert(node.constant / *c);
}

class Chooser {
 public:
  Chooser(std::vector<Axis> order, std::vector<Touch> touches, ir::Ranges& ranges, int lanes,
          const std::function<Var(std::int64_t)>& fresh)
      : ranges_(ranges), lanes_(lanes), fresh_(fresh) {
    for (const Axis& a : order) axes_.originals.emplace_back(a.var, Expr(a.var));
    axes_.loops = std::move(order);
    axes_.touches = std::move(touches);
  }

  Axes run() {
    for (int i = 0; i < kMaxSplits && split_one(); ++i) {
    }
    while (fuse_one()) {
    }
    return std::move(axes_);
  }

 private:
  void replace(Var v, const Expr& by) {
    const auto rule = [&](Var x) { return x == v ? std::optional<Expr>(by) : std::nullopt; };
    for (auto& [original, e] : axes_.originals) e = ir::substitute(e, rule);
    for (Touch& t : axes_.touches)
      if (ir::depends_on(t.offset, v))
        t.offset = ir::simplify(ir::substitute(t.offset, rule), ranges_);
  }

  bool split_one() {
    for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
      const Axis axis = axes_.loops[i];
      std::set<std::int64_t> found;
      for (const Touch& t : axes_.touches) divisors(t.offset, axis.var, found);
      for (std::int64_t q : found) {
        if (q <= 1 || q >= axis.extent || axis.extent % q != 0) continue;
        if (q < lanes_ && axis.extent % lanes_ == 0) continue;
        const Axis outer{fresh_(axis.extent / q), axis.extent / q}, inner{fresh_(q), q};
        axes_.loops[i] = outer;
        axes_.loops.insert(axes_.loops.begin() + static_cast<std::ptrdiff_t>(i) + 1, inner);
        replace(axis.var, Expr(outer.var) * Expr(q) + Expr(inner.var));
        return true;
      }
    }
    return false;
  }

  /// True if every touch sees (outer, inner) as one position outer·extent + inner.
  bool one_position(const Axis& outer, const Axis& inner) const {
    return std::all_of(axes_.touches.begin(), axes_.touches.end(), [&](const Touch& t) {
      const auto a = ir::coefficient_of(t.offset, outer.var);
      const auto b = ir::coefficient_of(t.offset, inner.var);
      return a && b && *a == *b * inner.extent;
    });
  }

  bool fuse_one() {
    for (std::size_t i = 0; i + 1 < axes_.loops.size(); ++i) {
      const Axis outer = axes_.loops[i], inner = axes_.loops[i + 1];
      if (!one_position(outer, inner)) continue;
      const std::int64_t extent = outer.extent * inner.extent;
      const Axis fused{fresh_(extent), extent};
      // c·q·outer + c·inner -> c·fused: affine touches are rewritten without division.
      for (Touch& t : axes_.touches) {
        const std::int64_t c = *ir::coefficient_of(t.offset, inner.var);
        t.offset = t.offset - Expr(outer.var) * Expr(c * inner.extent) - Expr(inner.var) * Expr(c) +
                   Expr(fused.var) * Expr(c);
      }
      axes_.loops[i] = fused;
      axes_.loops.erase(axes_.loops.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      replace(outer.var, ir::floor_div(Expr(fused.var), inner.extent));
      replace(inner.var, ir::floor_mod(Expr(fused.var), inner.extent));
      return true;
    }
    return false;
  }

  ir::Ranges& ranges_;
  const int lanes_;
  const std::function<Var(std::int64_t)>& fresh_;
  Axes axes_;
};

}  // namespace

void collect_touches(const kernel::Kernel& k, const Value& root, std::vector<Touch>& out) {
  kernel::for_each_value(root, [&](const Value& v) {
    match(
        v->op,
        [&](const kernel::Load& x) {
          const std::int64_t bytes = size_of(k.buffers[x.buffer].dtype);
          out.push_back({x.dynamic.empty() ? Touch::Kind::load : Touch::Kind::other, x.offset,
                         bytes, 1, false, 0, 0, x.buffer});
        },
        [&](const kernel::Guard& x) {
          const bool chooses = !std::holds_alternative<kernel::Imm>(x.otherwise->op);
          for (const ir::Condition& c : x.conditions)
            out.push_back({Touch::Kind::other, c.expr, 0, 1, chooses, c.low, c.high, {}});
        },
        [&](const kernel::Index& x) {
          out.push_back({Touch::Kind::other, x.expr, 0, 1, false, 0, 0, {}});
        },
        [&](const kernel::RandomBits& x) {
          out.push_back({Touch::Kind::other, x.counter, 0, 1, false, 0, 0, {}});
        },
        [](const auto&) {});
  });
}

Axes choose_axes(const std::vector<Axis>& order, std::vector<Touch> touches, ir::Ranges& ranges,
                 int lanes, const std::function<Var(std::int64_t)>& fresh) {
  return Chooser(order, std::move(touches), ranges, lanes, fresh).run();
}

double vector_score(const std::vector<Touch>& touches, Var var, std::int64_t least_bytes) {
  double score = 0;
  for (const Touch& t : touches) {
    if (t.kind == Touch::Kind::other) continue;
    const auto c = ir::coefficient_of(t.offset, var);
    const double bytes = static_cast<double>(std::max(t.bytes, least_bytes)) * t.weight *
                         (t.kind == Touch::Kind::store ? 1.5 : 1);
    if (c && *c == 1) score += bytes;
    // Divided positions are near each other: neither gained nor lost, unless they are stored.
    if (c ? *c < 0 || *c > 1 : t.kind == Touch::Kind::store) score -= bytes;
  }
  return score;
}

std::int64_t largest_step(const std::vector<Touch>& touches, Var var) {
  std::int64_t step = 0;
  for (const Touch& t : touches) {
    if (t.kind == Touch::Kind::other) continue;
    const auto c = ir::coefficient_of(t.offset, var);
    if (c) step = std::max(step, (*c < 0 ? -*c : *c) * t.bytes);
  }
  return step;
}

}  // namespace heddle::lower::stitch
