// Reads what text.cpp prints.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>

#include "ir/philox.h"
#include "ir/text.h"
#include "prim/text.h"
#include "prim/types.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Lexer;
using ir::Token;

constexpr std::size_t kMaxRank = 64;
constexpr std::size_t kMaxInlineElements = 1 << 16;
/// Of all `constant random` together: text of any length asks for no more than this.
constexpr std::int64_t kMaxRandomBytes = std::int64_t{64} << 20;

Result<TensorType> parse_type(Lexer& in) {
  const std::string name = HEDDLE_TRY(in.name("a type"));
  const auto dtype = dtype_named(name);
  if (!dtype) return in.wanted(fmt::format("an element type before this, not '{}'", name));
  TensorType type{*dtype, {}};
  HEDDLE_TRY(in.expect("["));
  while (!in.accept("]")) {
    if (!type.shape.empty()) HEDDLE_TRY(in.expect(","));
    type.shape.push_back(HEDDLE_TRY(in.integer("an extent")));
    if (type.shape.size() > kMaxRank) return in.wanted("fewer dimensions");
  }
  if (!checked_element_count(type.shape, type.dtype))
    return in.wanted(fmt::format("a type of reasonable size before this, not {}", to_string(type)));
  return type;
}

template <class T>
Result<std::vector<T>> parse_ints(Lexer& in, std::string_view keyword) {
  HEDDLE_TRY(in.expect(keyword));
  HEDDLE_TRY(in.expect("["));
  std::vector<T> values;
  while (!in.accept("]")) {
    if (!values.empty()) HEDDLE_TRY(in.expect(","));
    const std::int64_t v = HEDDLE_TRY(in.integer("an integer"));
    if (v < 0 || v > kMaxTensorBytes || (sizeof(T) == 4 && v > INT32_MAX))
      return in.wanted("a smaller integer before this");
    values.push_back(static_cast<T>(v));
    if (values.size() > kMaxRank) return in.wanted("fewer integers");
  }
  return values;
}

Result<std::vector<Expr>> parse_exprs(Lexer& in) {
  HEDDLE_TRY(in.expect("("));
  std::vector<Expr> exprs;
  while (!in.accept(")")) {
    if (!exprs.empty()) HEDDLE_TRY(in.expect(","));
    exprs.push_back(HEDDLE_TRY(ir::parse_expr(in)));
    if (exprs.size() > kMaxRank) return in.wanted("fewer coordinates");
  }
  return exprs;
}

Result<Access> parse_access(Lexer& in) {
  Access a;
  a.index = HEDDLE_TRY(parse_exprs(in));
  if (!in.accept("where")) return a;
  do {
    a.inside.push_back(HEDDLE_TRY(ir::parse_condition(in)));
    if (a.inside.size() > kMaxRank) return in.wanted("fewer conditions");
  } while (in.accept("and"));
  return a;
}

Result<int> parse_axis(Lexer& in) {
  HEDDLE_TRY(in.expect("axis"));
  const std::int64_t axis = HEDDLE_TRY(in.integer("an axis"));
  if (axis < 0 || axis > static_cast<std::int64_t>(kMaxRank))
    return in.wanted("an axis of the value");
  return static_cast<int>(axis);
}

Result<Hash> parse_hash(std::string_view digits) {
  Hash hash;
  const char* data = digits.data();
  if (digits.size() != 32 || std::from_chars(data, data + 16, hash.high, 16).ptr != data + 16 ||
      std::from_chars(data + 16, data + 32, hash.low, 16).ptr != data + 32)
    return fail("'{}' is no hash of 32 hexadecimal digits", digits.substr(0, 40));
  return hash;
}

/// A number of a literal list, kept as written until the type is known.
struct Literal {
  bool integral = false;
  std::int64_t integer = 0;
  double real = 0;
};

class Parser {
 public:
  Parser(std::string_view text, const ConstantTable& constants)
      : in_(text), constants_(constants) {}

  Result<Graph> run() {
    while (!in_.at_end()) {
      if (in_.accept("input")) {
        HEDDLE_TRY(parse_input());
      } else if (in_.accept("output")) {
        HEDDLE_TRY(parse_output());
      } else if (in_.accept("origin")) {
        HEDDLE_TRY(parse_origins());
      } else {
        HEDDLE_TRY(parse_node());
      }
    }
    if (g_.outputs.empty()) return in_.wanted("an output");
    return std::move(g_);
  }

 private:
  /// The first is the node's own.
  Status parse_origins() {
    also_.clear();
    do {
      Origin o;
      o.op = HEDDLE_TRY(in_.quoted("an operator"));
      o.name = HEDDLE_TRY(in_.quoted("a name"));
      const auto [entry, fresh] = origins_.try_emplace(o);
      if (fresh && o != Origin{}) entry->second = g_.set_origin(std::move(o));
      also_.push_back(entry->second);
    } while (in_.accept(","));
    g_.set_origin(also_.front());
    return Ok{};
  }

  Status parse_input() {
    const std::string name = HEDDLE_TRY(in_.quoted("the input's name"));
    HEDDLE_TRY(in_.expect(":"));
    g_.inputs.push_back({name, HEDDLE_TRY(parse_type(in_))});
    return Ok{};
  }

  Status parse_output() {
    const std::string name = HEDDLE_TRY(in_.quoted("the output's name"));
    HEDDLE_TRY(in_.expect("="));
    g_.outputs.push_back({name, HEDDLE_TRY(parse_ref())});
    return Ok{};
  }

  Result<NodeId> parse_ref() {
    const std::string name = HEDDLE_TRY(in_.name("a value %<number>"));
    const auto found = values_.find(name);
    if (found == values_.end())
      return in_.wanted(fmt::format("a value defined earlier, not '{}', before this", name));
    return found->second;
  }

  Status parse_node() {
    const int line = in_.peek().line;
    const std::string name = HEDDLE_TRY(in_.name("'input', 'output', 'origin' or %<number>"));
    if (name[0] != '%' || name.size() < 2) return in_.wanted("a value %<number> before this");
    if (values_.count(name) != 0) return in_.wanted(fmt::format("a new value, not '{}'", name));
    HEDDLE_TRY(in_.expect("="));
    const std::string kind = HEDDLE_TRY(in_.name("a kind of node"));
    Op op = HEDDLE_TRY(parse_head(kind));
    std::vector<NodeId> args;
    while (in_.peek().kind == Token::Kind::name && in_.peek().text[0] == '%') {
      args.push_back(HEDDLE_TRY(parse_ref()));
      if (!in_.accept(",")) break;
    }
    HEDDLE_TRY(parse_tail(op));
    HEDDLE_TRY(in_.expect(":"));
    const TensorType type = HEDDLE_TRY(parse_type(in_));
    if (std::holds_alternative<Constant>(op)) {
      if (!args.empty()) return in_.wanted("a constant without arguments before this");
      const NodeId id = g_.add_constant(HEDDLE_TRY(constant_value(type)));
      const Hash content = std::get<Constant>(g_[id].op).content;
      if (hash_ && *hash_ != content)
        return in_.wanted(fmt::format("the bytes of @{} before this, not those of @{}",
                                      to_string(*hash_), to_string(content)));
      g_.add_origins(id, also_);
      values_[name] = id;
      return Ok{};
    }
    const NodeId id = g_.add(std::move(op), std::move(args), type);
    g_.add_origins(id, also_);
    values_[name] = id;
    if (const Status status = verify_node(g_, id); !status)
      return fail("line {}: {}", line, status.error().message);
    return Ok{};
  }

  /// What stands before the arguments.
  Result<Op> parse_head(const std::string& kind) {
    if (kind == "input") return Op(Input{});
    if (kind == "constant") return Op(Constant{});
    if (kind == "iota") return Op(Iota{});
    if (kind == "view") return Op(View{});
    if (kind == "contract") return Op(Contract{});
    if (kind == "gather") return Op(Gather{});
    if (kind == "scatter") return Op(Scatter{});
    if (kind == "sort") return Op(Sort{});
    if (kind == "random") return Op(Random{});
    if (kind == "all_reduce") return Op(AllReduce{});
    if (kind == "map") {
      const std::string name = HEDDLE_TRY(in_.name("a scalar function"));
      const auto fn = ir::scalar_fn_named(name);
      if (!fn) return in_.wanted(fmt::format("a scalar function before this, not '{}'", name));
      return Op(Map{*fn});
    }
    if (kind == "reduce" || kind == "scan") {
      const std::string name = HEDDLE_TRY(in_.name("a monoid"));
      const auto fn = ir::monoid_named(name);
      if (!fn) return in_.wanted(fmt::format("a monoid before this, not '{}'", name));
      return kind == "reduce" ? Op(Reduce{*fn, {}}) : Op(Scan{*fn, 0, false, false});
    }
    return in_.wanted(fmt::format("a kind of node before this, not '{}'", kind));
  }

  /// What stands after the arguments.
  Status parse_tail(Op& op) {
    return std::visit([this](auto& o) { return tail(o); }, op);
  }
  Status tail(Input& o) {
    o.slot = static_cast<int>(
        std::clamp<std::int64_t>(HEDDLE_TRY(in_.integer("a slot")), -1, INT32_MAX));
    return Ok{};
  }
  Status tail(Constant&) {
    literals_.clear();
    hash_.reset();
    bytes_.reset();
    seed_.reset();
    if (in_.accept("random")) {
      seed_ = static_cast<std::uint64_t>(HEDDLE_TRY(in_.integer("a seed")));
      return Ok{};
    }
    if (in_.accept("bytes")) {
      bytes_ = HEDDLE_TRY(in_.quoted("hexadecimal digits"));
      return Ok{};
    }
    if (in_.peek().kind == Token::Kind::name && in_.peek().text[0] == '@') {
      hash_ = HEDDLE_TRY(parse_hash(in_.next().text.substr(1)));
      return Ok{};
    }
    HEDDLE_TRY(in_.expect("{"));
    while (!in_.accept("}")) {
      if (!literals_.empty()) HEDDLE_TRY(in_.expect(","));
      if (literals_.size() >= kMaxInlineElements) return in_.wanted("fewer elements");
      literals_.push_back(HEDDLE_TRY(parse_literal()));
    }
    return Ok{};
  }
  Result<Literal> parse_literal() {
    Lexer ahead = in_;
    const bool negative = in_.peek().text == "-";
    if (const auto integer = ahead.integer("a number")) {
      in_ = ahead;
      const double real = static_cast<double>(*integer);
      return Literal{true, *integer, negative && *integer == 0 ? -0.0 : real};
    }
    return Literal{false, 0, HEDDLE_TRY(in_.real("a number"))};
  }
  Status tail(Iota& o) {
    o.axis = HEDDLE_TRY(parse_axis(in_));
    return Ok{};
  }
  Status tail(Map&) { return Ok{}; }
  Status tail(View& o) {
    do {
      o.pieces.push_back(HEDDLE_TRY(parse_access(in_)));
    } while (in_.accept("else"));
    HEDDLE_TRY(in_.expect("fill"));
    o.fill = HEDDLE_TRY(in_.real("a fill value"));
    return Ok{};
  }
  Status tail(Reduce& o) {
    o.axes = HEDDLE_TRY(parse_ints<int>(in_, "axes"));
    return Ok{};
  }
  Status tail(Contract& o) {
    o.reduced = HEDDLE_TRY(parse_ints<std::int64_t>(in_, "reduce"));
    HEDDLE_TRY(in_.expect("lhs"));
    o.lhs = HEDDLE_TRY(parse_access(in_));
    HEDDLE_TRY(in_.expect("rhs"));
    o.rhs = HEDDLE_TRY(parse_access(in_));
    return Ok{};
  }
  Status tail(Gather& o) {
    o.axes = HEDDLE_TRY(parse_ints<int>(in_, "axes"));
    HEDDLE_TRY(in_.expect("base"));
    o.base = HEDDLE_TRY(parse_exprs(in_));
    return Ok{};
  }
  Status tail(Scatter& o) {
    o.axes = HEDDLE_TRY(parse_ints<int>(in_, "axes"));
    HEDDLE_TRY(in_.expect("base"));
    o.base = HEDDLE_TRY(parse_exprs(in_));
    HEDDLE_TRY(in_.expect("combine"));
    static constexpr std::string_view kNames[] = {"assign", "add", "mul", "max", "min"};
    const auto found = std::find(std::begin(kNames), std::end(kNames), in_.peek().text);
    if (found == std::end(kNames)) return in_.wanted("assign, add, mul, max or min");
    o.combine = static_cast<Scatter::Combine>(found - std::begin(kNames));
    in_.next();
    return Ok{};
  }
  Status tail(Scan& o) {
    o.axis = HEDDLE_TRY(parse_axis(in_));
    o.exclusive = in_.accept("exclusive");
    o.reverse = in_.accept("reverse");
    return Ok{};
  }
  Status tail(Sort& o) {
    o.axis = HEDDLE_TRY(parse_axis(in_));
    HEDDLE_TRY(in_.expect("count"));
    o.count = HEDDLE_TRY(in_.integer("a count"));
    o.descending = in_.accept("descending");
    return Ok{};
  }
  Status tail(AllReduce& o) {
    HEDDLE_TRY(in_.expect("channel"));
    const std::int64_t channel = HEDDLE_TRY(in_.integer("a channel"));
    if (channel < 0 || channel > INT32_MAX) return in_.wanted("a channel from 0 before this");
    o.channel = static_cast<int>(channel);
    return Ok{};
  }
  Status tail(Random& o) {
    if (in_.accept("normal"))
      o.kind = Random::Kind::normal;
    else
      HEDDLE_TRY(in_.expect("uniform"));
    HEDDLE_TRY(in_.expect("seed"));
    o.seed = static_cast<std::uint64_t>(HEDDLE_TRY(in_.integer("a seed")));
    return Ok{};
  }

  /// Philox numbers of `seed_`: floats in [-1, 1), integers in 0..6, booleans.
  Result<Tensor> random_value(const TensorType& type) {
    random_bytes_ += element_count(type.shape) * size_of(type.dtype);
    if (random_bytes_ > kMaxRandomBytes)
      return in_.wanted(fmt::format("at most {} bytes of random constants", kMaxRandomBytes));
    Tensor t(type);
    for (std::int64_t i = 0; i < t.count(); ++i) {
      const double u = ir::philox_uniform(*seed_, static_cast<std::uint64_t>(i));
      if (is_float(type.dtype))
        t.set(i, 2 * u - 1);
      else
        t.set_int(i, static_cast<std::int64_t>(u * (type.dtype == DType::b1 ? 2 : 7)));
    }
    return t;
  }

  Result<Tensor> constant_of_bytes(const TensorType& type) {
    const auto want = static_cast<std::size_t>(element_count(type.shape) * size_of(type.dtype));
    if (bytes_->size() != 2 * want)
      return in_.wanted(
          fmt::format("{} hexadecimal digits before this, not {}", 2 * want, bytes_->size()));
    Tensor t(type);
    auto* to = reinterpret_cast<unsigned char*>(t.mutable_data());
    for (std::size_t i = 0; i < want; ++i) {
      const char* from = bytes_->data() + 2 * i;
      if (std::from_chars(from, from + 2, to[i], 16).ptr != from + 2)
        return in_.wanted("hexadecimal digits before this");
    }
    return t;
  }

  Result<Tensor> constant_value(const TensorType& type) {
    if (seed_) return random_value(type);
    if (bytes_) return constant_of_bytes(type);
    if (hash_) {
      const auto found = constants_.find(*hash_);
      if (found == constants_.end())
        return in_.wanted(
            fmt::format("a file that has constant @{}, before this", to_string(*hash_)));
      if (found->second.type() != type)
        return in_.wanted(fmt::format("type {} for constant @{}", to_string(found->second.type()),
                                      to_string(*hash_)));
      return found->second;
    }
    if (element_count(type.shape) != static_cast<std::int64_t>(literals_.size()))
      return in_.wanted(fmt::format("{} elements before this, not {}", element_count(type.shape),
                                    literals_.size()));
    Tensor t(type);
    for (std::size_t i = 0; i < literals_.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (literals_[i].integral && !is_float(type.dtype))
        t.set_int(at, literals_[i].integer);
      else
        t.set(at, literals_[i].real);
    }
    return t;
  }

  Lexer in_;
  const ConstantTable& constants_;
  Graph g_;
  std::map<Origin, OriginId> origins_;
  std::vector<OriginId> also_;  ///< origins of the nodes that follow
  std::map<std::string, NodeId, std::less<>> values_;
  std::vector<Literal> literals_;
  std::optional<Hash> hash_;
  std::optional<std::string> bytes_;
  std::optional<std::uint64_t> seed_;
  std::int64_t random_bytes_ = 0;
};

}  // namespace

Result<Graph> parse_graph(std::string_view text, const ConstantTable& constants) {
  return Parser(text, constants).run();
}

Result<ConstantTable> load_constants(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return fail("cannot read constants from '{}'", path);
  const std::int64_t size = file.tellg();
  file.seekg(0);
  std::string line;
  if (!std::getline(file, line) || line != "hedc1")
    return fail("'{}' is no file of constants", path);
  ConstantTable table;
  while (file.peek() != std::ifstream::traits_type::eof()) {
    std::getline(file, line);
    if (line.size() < 34 || line.size() > 1000) return fail("'{}': malformed entry", path);
    const Hash hash = HEDDLE_TRY(parse_hash(std::string_view(line).substr(0, 32)));
    Lexer type_text(std::string_view(line).substr(33));
    const TensorType type = HEDDLE_TRY(parse_type(type_text));
    const std::int64_t bytes = *checked_element_count(type.shape, type.dtype) * size_of(type.dtype);
    if (bytes > size - file.tellg()) return fail("'{}' ends inside a constant", path);
    Tensor t(type);
    file.read(reinterpret_cast<char*>(t.mutable_data()), bytes);
    table.emplace(hash, std::move(t));
  }
  return table;
}

}  // namespace heddle::prim
