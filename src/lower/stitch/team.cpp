// Rows that several threads of a GPU block work on together.
#include <algorithm>

#include "lower/stitch/emitter.h"

namespace heddle::lower::stitch {

using kernel::Body;
using kernel::Store;

void Emitter::set_team(Team team) {
  HEDDLE_CHECK(current_, "a team without a task");
  team_ = std::move(team);
  team_->level = current_;
}

bool Emitter::shared_by_team(const std::vector<Expr>& exprs) const {
  // Elsewhere some members may be absent, even where no more loops are open.
  if (!team_ || !encloses(level_of(exprs), team_->level)) return false;
  return std::none_of(exprs.begin(), exprs.end(),
                      [&](const Expr& e) { return ir::depends_on(e, team_->member); });
}

void Emitter::nested(const std::function<void()>& make,
                     const std::function<kernel::Stmt(Body)>& wrap) {
  levels_.push_back(std::make_unique<Level>());
  Level* level = levels_.back().get();
  level->parent = current_;
  level->depth = current_->depth + 1;
  current_ = level;
  make();
  HEDDLE_CHECK(current_ == level, "a loop is still open");
  current_ = level->parent;
  if (!level->body.empty()) append(wrap(std::move(level->body)));
}

void Emitter::under(std::vector<ir::Condition> conditions, const std::function<void()>& make) {
  if (conditions.empty()) return make();
  nested(make, [&](Body body) { return kernel::when(std::move(conditions), std::move(body)); });
}

void Emitter::with(Var var, Expr value, std::int64_t begin, std::int64_t end,
                   const std::function<void()>& make) {
  values_.ranges()[static_cast<std::size_t>(var.index)] = ir::Interval{begin, end - 1};
  nested(
      [&] {
        bound_at_[static_cast<std::size_t>(var.index)] = current_;
        make();
      },
      [&](Body body) { return kernel::let(var, std::move(value), begin, end, std::move(body)); });
}

void Emitter::decode(const Expr& linear, const Shape& extents,
                     const std::function<void(const Index& position)>& make) {
  if (extents.size() <= 1) return make(extents.empty() ? Index{} : Index{linear});
  Index position(extents.size(), Expr(0));
  const std::function<void(std::size_t, const Expr&)> next = [&](std::size_t left,
                                                                 const Expr& rest) {
    if (left == 0) return make(position);
    const std::size_t d = left - 1;
    const Expr at = values_.simplified(d == 0 ? rest : ir::floor_mod(rest, extents[d]));
    const Expr outer = values_.simplified(ir::floor_div(rest, extents[d]));
    const Var v = fresh(extents[d]);
    with(v, at, 0, extents[d], [&] {
      position[d] = Expr(v);
      next(d, outer);
    });
  };
  next(extents.size(), linear);
}

/// Whole rounds first; in the last one some members may have nothing to do.
void Emitter::deal(std::int64_t count, const std::function<void(const Expr& at)>& make) {
  const std::int64_t size = team_ ? team_->size : 1;
  const Expr member = size == 1 ? Expr(0) : Expr(team_->member);
  const std::int64_t full = count / size, rest = count % size;
  if (full > 0) {
    const std::optional<Var> loop = full > 1 ? std::optional(open(full)) : std::nullopt;
    make((loop ? Expr(*loop) * Expr(size) : Expr(0)) + member);
    if (loop) close(*loop, full);
  }
  if (rest == 0) return;
  const Var at = fresh(count);
  with(at, Expr(full * size) + member, full * size, count, [&] { make(Expr(at)); });
}

void Emitter::store_once(const std::vector<Expr>& depends, std::vector<ir::Condition> conditions,
                         const std::function<Store()>& make) {
  const bool shared = shared_by_team(depends);
  State s = enter(shared ? team_->level : current_, on_lanes(depends));
  phase_ = {};
  std::optional<Store> made;
  prepared([&] {
    made = make();
    return std::vector<Value>{made->value};
  });
  if (shared && team_->size > 1) conditions.push_back({Expr(team_->member), 0, 1});
  if (shared) conditions.insert(conditions.end(), team_->valid.begin(), team_->valid.end());
  under(std::move(conditions), [&] { store({*made}); });
  restore(std::move(s));
}

}  // namespace heddle::lower::stitch
