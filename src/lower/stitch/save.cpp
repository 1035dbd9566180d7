// Intermediates kept in scratch memory between the phases of a row: exp(x - max) of a softmax is
// computed while it is summed and read back while the row is written.
#include <algorithm>

#include "lower/stitch/emitter.h"

namespace heddle::lower::stitch {

using kernel::Store;

/// Offset of `index` in the scratch buffer, if it is of the same row.
std::optional<Expr> Emitter::saved_offset(const Saved& s, NodeId node, const Index& index) const {
  const Shape& shape = g_[node].type.shape;
  Expr offset(0);
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (s.inner[d]) {
      offset = offset * Expr(shape[d]) + index[d];
    } else if (!(index[d] == s.index[d])) {
      return std::nullopt;
    }
  }
  if (s.laned) {
    const Expr block(static_cast<std::int64_t>(lanes_per_vector_) * s.lanes->count);
    offset = offset * block + s.lanes->place(lanes_per_vector_);
  }
  if (team_) offset = offset + Expr(team_->point) * Expr(s.size);
  return values_.simplified(offset);
}

Value Emitter::saved_value(NodeId node, const Index& index) {
  const auto found = saved_.find(node);
  if (found == saved_.end()) return nullptr;
  for (const Saved& s : found->second) {
    if (!done(s.phase) || !encloses(s.level, current_)) continue;
    if (s.laned && lanes_ != s.lanes) continue;
    if (const auto offset = saved_offset(s, node, index))
      return kernel::load(s.buffer, *offset, compute_type(g_[node].type.dtype));
  }
  return nullptr;
}

/// Called while a reduction's term is computed: stores the value if the reduction's loops visit
/// every element of the node's row.
void Emitter::save(NodeId node, const Index& index, const Value& value) {
  if (dry_ || phase_.number == 0 || std::find(save_.begin(), save_.end(), node) == save_.end())
    return;
  // Threads alone have no memory for rows but registers: they compute again.
  if (target_.is_gpu() && !(phase_.team && team_ && encloses(phase_.row, team_->level))) return;
  // Blocks of a cluster have parts of a row, not always the same ones.
  if (team_ && team_->size > kernel::kBlockThreads) return;
  const Shape& shape = g_[node].type.shape;
  Saved s{{}, phase_.number, index, {}, false, lanes_, phase_.row};
  std::vector<bool> used(phase_.coordinates.size(), false);
  std::int64_t size = 1;
  for (std::size_t d = 0; d < index.size(); ++d) {
    bool inner = false;
    for (std::size_t r = 0; r < used.size() && !inner; ++r) {
      inner = !used[r] && phase_.extents[r] == shape[d] && shape[d] > 1 &&
              phase_.coordinates[r] == index[d];
      if (inner) used[r] = true;
    }
    if (!inner && !encloses(level_of({index[d]}), phase_.row)) return;
    const bool on = on_lanes({index[d]});
    if (!inner && on && !encloses(lanes_->level, phase_.row)) return;
    s.laned |= !inner && on;
    s.inner.push_back(inner);
    if (inner) size *= shape[d];
  }
  if (s.laned) size *= static_cast<std::int64_t>(lanes_per_vector_) * lanes_->count;
  const DType type = compute_type(g_[node].type.dtype);
  auto& list = saved_[node];
  // The same reduction comes here once for each part of its loops, with lanes of its own.
  const auto known = std::find_if(list.begin(), list.end(), [&](const Saved& k) {
    return k.level == s.level && k.phase == s.phase && k.laned == s.laned &&
           (!s.laned || k.lanes == s.lanes);
  });
  const auto position = static_cast<std::size_t>(known - list.begin());
  if (position == list.size()) {
    const bool kept = std::any_of(list.begin(), list.end(), [&](const Saved& k) {
      return k.level == s.level && done(k.phase) && (!s.laned || k.lanes == s.lanes);
    });
    s.size = size;
    if (team_) size *= team_->points;
    const std::int64_t room = target_.is_gpu() ? target_.shared_bytes / 3 : target_.l2_bytes / 2;
    // What is one number for all of a team's terms is no row: its members would all store it.
    const bool row = !team_ || std::find(s.inner.begin(), s.inner.end(), true) != s.inner.end();
    if (kept || !row || size == 1 || saved_bytes_ + size * size_of(type) > room) return;
    saved_bytes_ += size * size_of(type);
    s.buffer = scratch("row", type, size, kernel::Scope::block, 1);
    list.push_back(s);
  }
  const Saved& entry = list[position];
  if (const auto offset = saved_offset(entry, node, index))
    pending_.push_back(Store{entry.buffer, *offset, value, {}});
}

bool Emitter::done(int phase) const {
  return std::find(done_.begin(), done_.end(), phase) != done_.end();
}

}  // namespace heddle::lower::stitch
