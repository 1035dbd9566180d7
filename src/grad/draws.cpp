#include "grad/draws.h"

#include <numbers>

#include "prim/builder.h"
#include "support/hash.h"

namespace heddle::grad {
namespace {

using ir::ScalarFn;
using prim::Builder;
using prim::NodeId;
using prim::Random;

/// Streams of different draws and nodes have nothing in common: an odd factor spreads draws over
/// all keys, seeds are hashed.
constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15u;
std::uint64_t mixed(std::uint64_t node, std::uint64_t seed) {
  const std::uint64_t both[] = {node, seed};
  return hash_bytes({reinterpret_cast<const char*>(both), sizeof(both)}).low;
}

/// The numbers of ir/philox.h by maps, from a key that is data.
class Stream {
 public:
  Stream(Builder& b, const TensorType& type, NodeId key) : b_(b), type_(type), key_(key) {
    const NodeId line = b.iota({DType::i64, {element_count(type.shape)}}, 0);
    position_ = b.reshape(line, type.shape);
  }
  NodeId uniform() { return b_.cast(number(position_), type_.dtype); }
  NodeId normal() {
    const NodeId one = b_.scalar_int(DType::i64, 1), two = b_.scalar_int(DType::i64, 2);
    const NodeId odd = b_.map(ScalarFn::floor_mod, {position_, two});
    const NodeId pair = b_.sub(position_, odd);
    const NodeId u = b_.add(number(pair), 0x1p-24), v = number(b_.add(pair, one));
    const NodeId radius = b_.sqrt(b_.mul(b_.log(u), -2));
    const NodeId angle = b_.mul(v, 2 * std::numbers::pi);
    const NodeId wave = b_.select(b_.map(ScalarFn::equal, {odd, b_.scalar_int(DType::i64, 0)}),
                                  b_.map(ScalarFn::cos, {angle}), b_.map(ScalarFn::sin, {angle}));
    return b_.cast(b_.mul(radius, wave), type_.dtype);
  }

 private:
  /// In [0, 1).
  NodeId number(NodeId at) {
    return b_.mul(b_.cast(b_.map(ScalarFn::random_bits, {at, key_}), DType::f32), 0x1p-24);
  }

  Builder& b_;
  TensorType type_;
  NodeId key_, position_;
};

bool draws(const prim::Graph& g) {
  for (const NodeId id : prim::live_nodes(g))
    if (std::holds_alternative<Random>(g[id].op)) return true;
  return false;
}

}  // namespace

prim::Graph with_draws(const prim::Graph& g, std::uint64_t seed, std::string_view input) {
  if (!draws(g)) return g;
  prim::Graph wide = g;
  wide.add_input(std::string(input), {DType::i64, {}});
  const prim::Input draw{static_cast<int>(wide.inputs.size()) - 1};
  return prim::rebuild(wide, [&](prim::Graph& out, const prim::Node& n, NodeId) {
    const auto* random = std::get_if<Random>(&n.op);
    if (random == nullptr) return out.add(n.op, n.args, n.type);
    Builder b(out);
    const NodeId number = out.add(draw, {}, {DType::i64, {}});
    const auto scalar = [&](std::uint64_t v) {
      return b.scalar_int(DType::i64, static_cast<std::int64_t>(v));
    };
    const NodeId key = b.add(b.mul(number, scalar(kStride)), scalar(mixed(random->seed, seed)));
    Stream stream(b, n.type, key);
    return random->kind == Random::Kind::uniform ? stream.uniform() : stream.normal();
  });
}

}  // namespace heddle::grad
