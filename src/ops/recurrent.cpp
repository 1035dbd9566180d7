#include <algorithm>
#include <cctype>

#include "ops/families.h"
#include "ops/util.h"

/// RNN, GRU, LSTM. The input projections of all steps are one matrix product; the recurrence is
/// unrolled over the (static) sequence, a step being one product with R and elementwise maps.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// Steps over all directions that are unrolled at most.
constexpr std::int64_t kMaxSteps = 1024;

struct Activation {
  std::string name;  ///< lower case
  double alpha = 0, beta = 0;
};

struct Recurrent {
  std::int64_t steps = 0, batch = 0, inputs = 0, hidden = 0, directions = 0, gates = 0;
  DType type = DType::f32;
  bool batch_first = false;
  bool reverse_only = false;
  double clip = 0;                      ///< 0: none
  std::vector<Activation> activations;  ///< per direction, those of one cell
};

/// Default alpha and beta of each activation; the names of the specification in lower case.
constexpr struct {
  std::string_view name;
  double alpha, beta;
} kActivations[] = {
    {"relu", 0, 0},         {"tanh", 0, 0},
    {"sigmoid", 0, 0},      {"affine", 1, 0},
    {"leakyrelu", 0.01, 0}, {"thresholdedrelu", 1, 0},
    {"scaledtanh", 1, 1},   {"hardsigmoid", 0.2, 0.5},
    {"elu", 1, 0},          {"softsign", 0, 0},
    {"softplus", 0, 0},
};

NodeId activate(Builder& b, const Activation& f, NodeId x) {
  const DType type = b.dtype(x);
  const auto positive = [&](double limit) {
    return b.map(ScalarFn::greater, {x, b.full(b.type(x), limit)});
  };
  if (f.name == "relu") return b.relu(x);
  if (f.name == "tanh") return b.tanh(x);
  if (f.name == "sigmoid") return b.sigmoid(x);
  if (f.name == "affine") return b.add(b.mul(x, f.alpha), f.beta);
  if (f.name == "leakyrelu") return b.select(positive(0), x, b.mul(x, f.alpha));
  if (f.name == "thresholdedrelu") {
    return b.select(positive(f.alpha), x, b.full(b.type(x), 0));
  }
  if (f.name == "scaledtanh") return b.mul(b.tanh(b.mul(x, f.beta)), f.alpha);
  if (f.name == "hardsigmoid") {
    const NodeId y = b.add(b.mul(x, f.alpha), f.beta);
    return b.min(b.max(y, b.scalar(type, 0)), b.scalar(type, 1));
  }
  if (f.name == "softsign") return b.div(x, b.add(b.map(ScalarFn::abs, {x}), 1.0));
  const NodeId above = positive(0), zero = b.full(b.type(x), 0);
  if (f.name == "softplus") {  // max(x, 0) + log(1 + exp(-|x|)) does not overflow
    const NodeId tail = b.exp(b.select(above, b.neg(x), x));
    return b.add(b.select(above, x, zero), b.log(b.add(tail, 1.0)));
  }
  HEDDLE_CHECK(f.name == "elu", "activation '{}' has no row", f.name);
  const NodeId below = b.select(above, zero, x);
  return b.select(above, x, b.mul(b.sub(b.exp(below), 1.0), f.alpha));
}

Result<std::vector<Activation>> activations_of(const Call& call, std::int64_t directions,
                                               const std::vector<std::string>& defaults) {
  std::vector<std::string> names;
  if (const auto it = call.attributes.find("activations"); it != call.attributes.end()) {
    if (const auto* given = std::get_if<std::vector<std::string>>(&it->second)) names = *given;
  }
  const std::size_t want = defaults.size() * static_cast<std::size_t>(directions);
  if (names.empty()) names = defaults;
  if (names.size() == defaults.size() && directions == 2) {  // the same for both directions
    const auto again = names;
    names.insert(names.end(), again.begin(), again.end());
  }
  if (names.size() != want) {
    return call.error("{} activations given, want {}", names.size(), want);
  }
  const auto reals = [&](std::string_view key) {
    const auto it = call.attributes.find(key);
    const auto* v =
        it == call.attributes.end() ? nullptr : std::get_if<std::vector<double>>(&it->second);
    return v != nullptr ? *v : std::vector<double>{};
  };
  const auto alphas = reals("activation_alpha"), betas = reals("activation_beta");
  std::vector<Activation> out;
  std::size_t alpha = 0, beta = 0;
  for (std::string& name : names) {
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto* row = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const auto& r) { return r.name == name; });
    if (row == std::end(kActivations)) return call.error("activation '{}' is not known", name);
    Activation f{name, row->alpha, row->beta};
    // The lists hold values only for activations that take any, in their order.
    const bool takes_alpha = row->alpha != 0, takes_beta = row->beta != 0 || name == "affine";
    if (takes_alpha && alpha < alphas.size()) f.alpha = alphas[alpha++];
    if (takes_beta && beta < betas.size()) f.beta = betas[beta++];
    out.push_back(f);
  }
  return out;
}

/// Checks X, W, R, B, sequence_lens and the initial states (inputs 0 to 5, and 6 for LSTM).
Result<Recurrent> read(const Call& call, Builder& b, std::int64_t gates,
                       const std::vector<std::string>& defaults) {
  Recurrent r;
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 1, 3, 3));
  HEDDLE_TRY(want_rank(call, b, 2, 3, 3));
  r.type = b.dtype(call.in(0));
  r.gates = gates;
  r.batch_first = call.attribute_int("layout", 0) != 0;
  const Shape x = b.shape(call.in(0));
  r.steps = r.batch_first ? x[1] : x[0];
  r.batch = r.batch_first ? x[0] : x[1];
  r.inputs = x[2];
  const int direction =
      HEDDLE_TRY(choice(call, "direction", "forward", {"forward", "reverse", "bidirectional"}));
  r.directions = direction == 2 ? 2 : 1;
  r.reverse_only = direction == 1;
  r.hidden = b.shape(call.in(2))[2];
  if (call.attribute_int("hidden_size", r.hidden) != r.hidden || r.hidden < 1) {
    return call.error("hidden_size is {}, R has shape {}", call.attribute_int("hidden_size", 0),
                      to_string(b.shape(call.in(2))));
  }
  const std::int64_t d = r.directions, h = r.hidden;
  HEDDLE_TRY(want_shape(call, b, 1, {d, gates * h, r.inputs}));
  HEDDLE_TRY(want_shape(call, b, 2, {d, gates * h, h}));
  const Shape state = r.batch_first ? Shape{r.batch, d, h} : Shape{d, r.batch, h};
  const Shape wanted[] = {{d, 2 * gates * h}, {r.batch}, state, state, {d, 3 * h}};
  for (int i = 1; i < static_cast<int>(call.args.size()); ++i) {
    if (!call.has(i)) continue;
    if (i >= 3 && i <= 7) HEDDLE_TRY(want_shape(call, b, i, wanted[i - 3]));
    if (i == 4) {
      HEDDLE_TRY(want_int(call, b, i));
    } else {
      HEDDLE_TRY(want_type(call, b, i, r.type));
    }
  }
  if (r.steps * d > kMaxSteps) {
    return call.unsupported("sequence of {} steps in {} directions, want at most {} in all",
                            r.steps, d, kMaxSteps);
  }
  if (r.steps < 1 || r.batch < 1 || r.inputs < 1) {
    return call.error("input 0 has shape {}: no sequence to run over", to_string(x));
  }
  r.clip = call.attribute_float("clip", 0);
  r.activations = HEDDLE_TRY(activations_of(call, d, defaults));
  return r;
}

/// What a cell sees of one direction.
struct Direction {
  NodeId projected;                 ///< [steps, batch, gates·hidden]: X·Wᵀ + Wb
  NodeId recurrence;                ///< [hidden, gates·hidden]: Rᵀ
  std::optional<NodeId> bias;       ///< [gates·hidden]: Rb
  std::optional<NodeId> peepholes;  ///< [3·hidden]
  std::vector<Activation> f;
  double clip = 0;
  std::int64_t hidden = 0;
};

/// Row d of a value whose first dimension is the direction, without it.
NodeId of_direction(Builder& b, NodeId x, std::int64_t d) {
  return b.squeeze(b.slice_axis(x, 0, d, 1), {0});
}
/// Columns of gate g out of [..., gates·hidden].
NodeId gate(Builder& b, NodeId x, std::int64_t hidden, std::int64_t g, std::int64_t count = 1) {
  return b.slice_axis(x, b.rank(x) - 1, g * hidden, count * hidden);
}
NodeId clipped(Builder& b, const Direction& d, NodeId x) {
  if (d.clip <= 0) return x;
  const DType type = b.dtype(x);
  return b.min(b.max(x, b.scalar(type, -d.clip)), b.scalar(type, d.clip));
}

Direction make_direction(const Call& call, Builder& b, const Recurrent& r, std::int64_t index) {
  Direction d;
  NodeId x = call.in(0);
  if (r.batch_first) x = b.transpose(x, {1, 0, 2});
  const NodeId w = b.transpose(of_direction(b, call.in(1), index), {1, 0});
  const NodeId flat = b.reshape(x, {r.steps * r.batch, r.inputs});
  d.projected = b.reshape(b.matmul(flat, w), {r.steps, r.batch, r.gates * r.hidden});
  d.recurrence = b.transpose(of_direction(b, call.in(2), index), {1, 0});
  if (call.has(3)) {
    const NodeId both = of_direction(b, call.in(3), index);
    const std::int64_t half = r.gates * r.hidden;
    d.projected = b.add(d.projected, b.slice_axis(both, 0, 0, half));
    d.bias = b.slice_axis(both, 0, half, half);
  }
  if (call.has(7)) d.peepholes = of_direction(b, call.in(7), index);
  const std::size_t per = r.activations.size() / static_cast<std::size_t>(r.directions);
  const auto first = r.activations.begin() + index * static_cast<std::int64_t>(per);
  d.f.assign(first, first + static_cast<std::ptrdiff_t>(per));
  d.clip = r.clip;
  d.hidden = r.hidden;
  return d;
}

struct State {
  NodeId h, c;  ///< [batch, hidden]; c is used by LSTM only
};

NodeId initial_state(const Call& call, Builder& b, const Recurrent& r, int input,
                     std::int64_t index) {
  if (!call.has(input)) return b.full({r.type, {r.batch, r.hidden}}, 0);
  NodeId x = call.in(input);
  if (r.batch_first) x = b.transpose(x, {1, 0, 2});
  return of_direction(b, x, index);
}

/// Runs one direction. Past the end of a batch's sequence the state stays and the output is zero;
/// run backwards, the state stays initial until the sequence's last element is reached.
template <class Cell>
std::pair<NodeId, State> run(const Call& call, Builder& b, const Recurrent& r, std::int64_t index,
                             const Cell& cell) {
  const Direction d = make_direction(call, b, r, index);
  const bool backwards = r.reverse_only || index == 1;
  State state{initial_state(call, b, r, 5, index), initial_state(call, b, r, 6, index)};
  std::optional<NodeId> length;
  if (call.has(4)) length = b.reshape(b.cast(call.in(4), DType::i64), {r.batch, 1});
  const NodeId zero = b.full({r.type, {r.batch, r.hidden}}, 0);
  std::vector<NodeId> outputs(static_cast<std::size_t>(r.steps));
  for (std::int64_t i = 0; i < r.steps; ++i) {
    const std::int64_t t = backwards ? r.steps - 1 - i : i;
    const NodeId x = of_direction(b, d.projected, t);
    State next = cell(d, x, state);
    NodeId output = next.h;
    if (length) {
      const NodeId runs = compare(b, ScalarFn::greater, *length, t);
      output = b.select(runs, next.h, zero);
      next.h = b.select(runs, next.h, state.h);
      next.c = b.select(runs, next.c, state.c);
    }
    outputs[static_cast<std::size_t>(t)] = output;
    state = next;
  }
  return {b.stack(outputs, 0), state};
}

/// Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden]; batch first with
/// layout 1.
template <class Cell>
Values run_all(const Call& call, Builder& b, const Recurrent& r, bool with_c, const Cell& cell) {
  std::vector<NodeId> ys, hs, cs;
  for (std::int64_t i = 0; i < r.directions; ++i) {
    const auto [y, state] = run(call, b, r, i, cell);
    ys.push_back(y);
    hs.push_back(state.h);
    cs.push_back(state.c);
  }
  NodeId y = b.stack(ys, 1), h = b.stack(hs, 0), c = b.stack(cs, 0);
  if (r.batch_first) {
    y = b.transpose(y, {2, 0, 1, 3});
    h = b.transpose(h, {1, 0, 2});
    c = b.transpose(c, {1, 0, 2});
  }
  Values all{y, h};
  if (with_c) all.push_back(c);
  all.resize(std::min<std::size_t>(all.size(), static_cast<std::size_t>(call.outputs)));
  return all;
}

/// x-part + h·Rᵀ (+ Rb), for all gates at once.
NodeId preactivation(Builder& b, const Direction& d, NodeId x, NodeId h) {
  NodeId sum = b.add(x, b.matmul(h, d.recurrence));
  if (d.bias) sum = b.add(sum, *d.bias);
  return sum;
}

/// h' = f(x + h·Rᵀ)
Result<Values> rnn(const Call& call, Builder& b) {
  const Recurrent r = HEDDLE_TRY(read(call, b, 1, {"Tanh"}));
  return run_all(call, b, r, false, [&](const Direction& d, NodeId x, const State& s) {
    const NodeId h = activate(b, d.f[0], clipped(b, d, preactivation(b, d, x, s.h)));
    return State{h, s.c};
  });
}

/// Gates z, r, h: h' = (1 - z)·g(x_h + (r·h)·Rhᵀ + Rbh) + z·h, or r·(h·Rhᵀ + Rbh) with
/// linear_before_reset.
Result<Values> gru(const Call& call, Builder& b) {
  const Recurrent r = HEDDLE_TRY(read(call, b, 3, {"Sigmoid", "Tanh"}));
  const bool linear_first = call.attribute_int("linear_before_reset", 0) != 0;
  return run_all(call, b, r, false, [&](const Direction& d, NodeId x, const State& s) {
    const std::int64_t n = d.hidden;
    NodeId zr = b.add(gate(b, x, n, 0, 2), b.matmul(s.h, gate(b, d.recurrence, n, 0, 2)));
    if (d.bias) zr = b.add(zr, gate(b, *d.bias, n, 0, 2));
    zr = activate(b, d.f[0], clipped(b, d, zr));
    const NodeId z = gate(b, zr, n, 0), reset = gate(b, zr, n, 1);
    const NodeId from = linear_first ? s.h : b.mul(reset, s.h);
    NodeId inner = b.matmul(from, gate(b, d.recurrence, n, 2));
    if (d.bias) inner = b.add(inner, gate(b, *d.bias, n, 2));
    if (linear_first) inner = b.mul(reset, inner);
    const NodeId g = activate(b, d.f[1], clipped(b, d, b.add(gate(b, x, n, 2), inner)));
    const NodeId keep = b.sub(b.full(b.type(z), 1), z);
    return State{b.add(b.mul(keep, g), b.mul(z, s.h)), s.c};
  });
}

/// Gates i, o, f, c with optional peepholes from the cell state; input_forget couples f = 1 - i.
Result<Values> lstm(const Call& call, Builder& b) {
  const Recurrent r = HEDDLE_TRY(read(call, b, 4, {"Sigmoid", "Tanh", "Tanh"}));
  const bool coupled = call.attribute_int("input_forget", 0) != 0;
  return run_all(call, b, r, true, [&](const Direction& d, NodeId x, const State& s) {
    const std::int64_t n = d.hidden;
    const NodeId all = preactivation(b, d, x, s.h);
    const auto part = [&](std::int64_t g, std::int64_t peephole, NodeId cell) {
      NodeId sum = gate(b, all, n, g);
      if (d.peepholes && peephole >= 0) {
        sum = b.add(sum, b.mul(gate(b, *d.peepholes, n, peephole), cell));
      }
      return clipped(b, d, sum);
    };
    const NodeId i = activate(b, d.f[0], part(0, 0, s.c));
    const NodeId f =
        coupled ? b.sub(b.full(b.type(i), 1), i) : activate(b, d.f[0], part(2, 2, s.c));
    const NodeId update = activate(b, d.f[1], part(3, -1, s.c));
    const NodeId c = b.add(b.mul(f, s.c), b.mul(i, update));
    const NodeId o = activate(b, d.f[0], part(1, 1, c));
    return State{b.mul(o, activate(b, d.f[2], c)), c};
  });
}

constexpr OpDef kRecurrentOps[] = {
    {"RNN", 1, 3, 6, rnn},
    {"GRU", 1, 3, 6, gru},
    {"LSTM", 1, 3, 8, lstm},
};

}  // namespace

std::span<const OpDef> recurrent_ops() { return kRecurrentOps; }

}  // namespace heddle::ops
