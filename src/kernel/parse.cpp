#include "kernel/parse.h"

#include <map>

#include "kernel/lexer.h"

namespace heddle::kernel {
namespace {

constexpr int kMaxDepth = 200;  // nesting that malformed text may ask of our stack

/// Recursive descent over the text; errors unwind as ParseError, inside this file only.
class Parser : Lexer {
 public:
  using Lexer::Lexer;

  std::vector<Kernel> run() {
    std::vector<Kernel> all;
    do all.push_back(kernel());
    while (skip(), text_.substr(at_).starts_with("kernel"));
    if (at_ != text_.size()) error("text after the kernel");
    return all;
  }

 private:
  Kernel kernel() {
    Kernel k;
    lets_.clear();
    kernel_ = &k;
    expect("kernel");
    k.name = quoted();
    expect("vars");
    expect("=");
    k.variables = static_cast<std::int32_t>(integer(0, 1 << 20));
    k.resident = accept("resident");
    expect("{");
    while (accept("buffer")) buffer();
    k.body = body();
    return k;
  }

  DType type_named(const std::string& name) {
    auto type = dtype_named(name);
    if (!type) error(fmt::format("unknown type '{}'", name));
    return *type;
  }
  DType suffix() {
    expect(".");
    return type_named(word());
  }

  void buffer() {
    const BufferId want{kernel_->buffers.size()};
    prefix('b');
    if (integer() != want.value) error("buffers must be numbered in order");
    Buffer b;
    b.name = quoted();
    b.dtype = type_named(word());
    expect("[");
    b.size = integer(0, std::int64_t{1} << 40);
    expect("]");
    b.scope = static_cast<Scope>(choice(kScopeNames));
    while (true) {
      if (accept("arg")) {
        expect("=");
        b.argument = static_cast<int>(integer(0, 1 << 20));
      } else if (accept("written")) {
        b.written = true;
      } else if (accept("lanes")) {
        expect("=");
        b.lanes = static_cast<int>(integer(1, 1 << 12));
      } else if (accept("tiles")) {
        b.use = Use::tiles;
      } else if (accept("events")) {
        b.use = Use::events;
      } else {
        break;
      }
    }
    kernel_->add_buffer(std::move(b));
  }
  /// The letter in front of a number: b0, d3.
  void prefix(char letter) {
    skip();
    if (at_ >= text_.size() || text_[at_] != letter) error(fmt::format("want {}<number>", letter));
    ++at_;
  }
  BufferId buffer_id() {
    prefix('b');
    const std::int64_t id = integer(0, 1 << 30);
    if (id >= kernel_->buffers.size()) error(fmt::format("no buffer b{}", id));
    return BufferId{static_cast<std::int32_t>(id)};
  }

  struct Deeper {
    explicit Deeper(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxDepth) parser.error("nested too deeply");
    }
    ~Deeper() { --parser.depth_; }
    Parser& parser;
  };

  // Index expressions: sums of products; / and % are floor division by a positive constant.
  Expr expr() {
    Deeper deeper(*this);
    Expr out = product();
    while (true) {
      if (accept("+"))
        out = out + product();
      else if (accept("-"))
        out = out - product();
      else
        return out;
    }
  }
  Expr product() {
    Expr out = atom();
    while (true) {
      if (accept("*")) {
        const Expr right = atom();
        if (!out.constant() && !right.constant()) error("product of two expressions");
        out = out * right;
      } else if (accept("/")) {
        out = ir::floor_div(out, integer(1, INT64_MAX));
      } else if (accept("%")) {
        out = ir::floor_mod(out, integer(1, INT64_MAX));
      } else {
        return out;
      }
    }
  }
  Expr atom() {
    Deeper deeper(*this);
    if (accept("(")) {
      Expr out = expr();
      expect(")");
      return out;
    }
    const bool low = accept("min");
    if (low || accept("max")) {
      expect("(");
      const Expr a = expr();
      expect(",");
      const Expr b = expr();
      expect(")");
      return low ? ir::min(a, b) : ir::max(a, b);
    }
    skip();
    if (at_ < text_.size() && text_[at_] == 'd') {
      ++at_;
      return Expr(variable());
    }
    if (at_ + 1 < text_.size() && text_[at_] == '-' && !std::isdigit(text_[at_ + 1])) {
      ++at_;
      return Expr(-1) * atom();
    }
    return Expr(integer());
  }
  Var variable() { return Var{static_cast<std::int32_t>(integer(0, kernel_->variables - 1))}; }
  std::vector<ir::Condition> conditions() {
    std::vector<ir::Condition> out;
    do {
      const std::int64_t low = integer();
      expect("<=");
      Expr e = expr();
      expect("<");
      out.push_back({std::move(e), low, integer()});
    } while (accept("&"));
    return out;
  }

  std::vector<Load::Dynamic> dynamic() {
    std::vector<Load::Dynamic> out;
    while (accept(";")) {
      Load::Dynamic d;
      d.value = value();
      expect(":");
      d.extent = integer();
      expect("*");
      d.stride = integer();
      out.push_back(std::move(d));
    }
    return out;
  }

  static Value make(decltype(ValueNode::op) op, DType dtype) {
    return std::make_shared<const ValueNode>(ValueNode{std::move(op), dtype});
  }

  Value value() {
    Deeper deeper(*this);
    if (accept("%")) {
      auto found = lets_.find(integer());
      if (found == lets_.end()) error("value used before its let");
      return found->second;
    }
    const std::string name = word();
    if (auto type = dtype_named(name)) return immediate(*type);
    const DType dtype = suffix();
    if (name == "load") {
      Load x;
      x.buffer = buffer_id();
      expect("[");
      x.offset = expr();
      x.dynamic = dynamic();
      expect("]");
      return make(std::move(x), dtype);
    }
    if (name.starts_with("lanes_")) {
      auto fn = ir::monoid_named(name.substr(6));
      if (!fn) error(fmt::format("unknown reduction '{}'", name));
      LaneReduce x{*fn, {}, 0};
      x.offset = element(x.buffer);
      return make(std::move(x), dtype);
    }
    expect("(");
    Value out = call(name, dtype);
    expect(")");
    return out;
  }
  Value immediate(DType type) {
    expect("(");
    Value out = is_float(type) ? imm(type, number<double>()) : imm_int(type, integer());
    expect(")");
    return out;
  }
  Value call(const std::string& name, DType dtype) {
    if (name == "index") return make(Index{expr()}, dtype);
    if (name == "guard") {
      Guard x;
      x.conditions = conditions();
      expect(";");
      x.then = value();
      expect(";");
      x.otherwise = value();
      return make(std::move(x), dtype);
    }
    if (name == "random_normal" || name == "random_uniform") {
      RandomBits x{number<std::uint64_t>(), name == "random_normal", 0};
      expect(";");
      x.counter = expr();
      return make(std::move(x), dtype);
    }
    auto fn = ir::scalar_fn_named(name);
    if (!fn) error(fmt::format("unknown function '{}'", name));
    std::vector<Value> args;
    do args.push_back(value());
    while (accept(","));
    if (static_cast<int>(args.size()) != ir::info(*fn).arity)
      error(fmt::format("{} takes {} arguments, found {}", name, ir::info(*fn).arity, args.size()));
    return apply(*fn, std::move(args), dtype);
  }

  Body body() {
    Deeper deeper(*this);
    Body out;
    while (!accept("}")) {
      if (accept("let")) {
        if (!accept("%")) {
          out.push_back(let_index());
          continue;
        }
        const std::int64_t name = integer();
        expect("=");
        lets_[name] = value();
        continue;
      }
      out.push_back(statement());
    }
    return out;
  }
  Stmt statement() {
    if (accept("for")) {
      const Binding binding = static_cast<Binding>(choice(kBindingNames));
      prefix('d');
      const Var var = variable();
      expect("in");
      const std::int64_t begin = integer();
      expect("..");
      const std::int64_t end = integer();
      expect("{");
      return loop(var, begin, end, binding, body());
    }
    if (accept("if")) {
      auto list = conditions();
      expect("{");
      return when(std::move(list), body());
    }
    if (accept("barrier")) {
      const auto scope = static_cast<Scope>(choice(kScopeNames));
      return {Barrier{scope, accept("async")}};
    }
    if (accept("combine")) return combine();
    if (accept("routine")) return routine();
    if (accept("copy")) return copy();
    if (accept("copies")) {
      if (accept("commit")) return {CopyGroup{}};
      expect("wait");
      return {CopyGroup{false, static_cast<int>(integer(0, 64))}};
    }
    if (accept("products")) {
      expect("wait");
      return {MmaWait{static_cast<int>(integer(0, 64))}};
    }
    if (accept("mma")) return mma();
    if (accept("prefetch")) return prefetch();
    if (accept("tiles")) return tiles();
    if (accept("event")) return event();
    if (accept("tile")) return tile();
    if (accept("role")) return roles();
    Store x;
    x.buffer = buffer_id();
    expect("[");
    x.offset = expr();
    x.dynamic = dynamic();
    expect("]");
    expect("=");
    x.value = value();
    return {std::move(x)};
  }
  Stmt let_index() {
    prefix('d');
    const Var var = variable();
    expect("=");
    Expr value = expr();
    expect("in");
    const std::int64_t begin = integer();
    expect("..");
    const std::int64_t end = integer();
    expect("{");
    return let(var, std::move(value), begin, end, body());
  }
  Stmt combine() {
    Combine x;
    const std::string name = word();
    const auto fn = ir::monoid_named(name);
    if (!fn) error(fmt::format("unknown reduction '{}'", name));
    x.fn = *fn;
    x.buffer = buffer_id();
    expect("[");
    x.offset = integer(0, INT32_MAX);
    expect("..");
    x.count = static_cast<int>(integer(x.offset, INT32_MAX) - x.offset);
    expect("]");
    expect("over");
    x.width = static_cast<int>(integer(1, kClusterBlocks * kBlockThreads));
    expect("by");
    x.stride = static_cast<int>(integer(1, kBlockThreads));
    return {x};
  }
  TileProduct::Operand tiles_of() {
    const DType type = accept("u8") ? DType::u8 : accept("i8") ? DType::i8 : DType::bf16;
    TileProduct::Operand o{buffer_id(), 0, 0, 0, type, {}};
    expect("[");
    o.offset = expr();
    expect("by");
    o.step = integer(0, INT32_MAX);
    expect(",");
    o.block = integer(0, INT32_MAX);
    while (accept(",")) {
      TileProduct::Operand::Run run;
      run.steps = integer(1, INT32_MAX);
      expect("skip");
      run.further = integer(0, INT32_MAX);
      o.runs.push_back(run);
    }
    expect("]");
    return o;
  }
  Stmt tiles() {
    TileProduct x;
    x.to = element(x.acc);
    x.add = accept("+=");
    if (!x.add) expect("=");
    x.a = tiles_of();
    expect("*");
    x.b = tiles_of();
    expect("rows");
    x.rows = static_cast<int>(integer(1, 256));
    if (accept("by")) x.a_row = integer(0, INT32_MAX);
    if (accept("each")) x.height = static_cast<int>(integer(1, TileProduct::kRows));
    if (accept("wide")) x.row_bytes = static_cast<int>(integer(1, TileProduct::kRowBytes));
    expect("columns");
    x.columns = static_cast<int>(integer(1, 256));
    expect("depth");
    x.depth = integer(1, INT32_MAX);
    expect("terms");
    do {
      TileProduct::Term t;
      t.a = integer(0, INT32_MAX);
      t.b = integer(0, INT32_MAX);
      x.terms.push_back(t);
    } while (accept(","));
    x.ahead = accept("ahead");
    if (accept("along")) {
      prefix('d');
      x.along = variable();
    }
    while (accept("fetch")) {
      TileProduct::Fetch f;
      f.offset = element(f.buffer);
      expect("rows");
      f.rows = integer(1, INT32_MAX);
      expect("by");
      f.pitch = integer(0, INT32_MAX);
      expect("lines");
      f.lines = static_cast<int>(integer(1, INT32_MAX));
      f.far = accept("far");
      f.page = accept("page");
      x.fetches.push_back(std::move(f));
    }
    return {std::move(x)};
  }
  Stmt prefetch() {
    Prefetch x;
    x.offset = element(x.buffer);
    x.far = accept("far");
    x.page = accept("page");
    return {std::move(x)};
  }
  Stmt routine() {
    Routine x;
    x.name = word();
    expect("(");
    if (!accept(";")) {
      do x.buffers.push_back(buffer_id());
      while (accept(","));
      expect(";");
    }
    if (!accept(")")) {
      do x.integers.push_back(expr());
      while (accept(","));
      expect(")");
    }
    return {std::move(x)};
  }

  Stmt copy() {
    Copy x;
    x.to_offset = element(x.to);
    expect("<-");
    x.from_offset = element(x.from);
    expect("x");
    x.count = static_cast<int>(integer(1, 16));
    if (accept("if")) x.conditions = conditions();
    return {std::move(x)};
  }
  Mma::Operand operand() {
    Mma::Operand o{buffer_id(), 0, 1, 1};
    expect("[");
    o.offset = expr();
    expect("by");
    o.row = integer(1, 1 << 20);
    expect(",");
    o.step = integer(1, 1 << 20);
    expect("]");
    return o;
  }
  Stmt mma() {
    Mma x;
    x.acc = buffer_id();
    expect("+=");
    x.a = operand();
    expect("*");
    x.b = operand();
    const auto count = [&] { return static_cast<int>(integer(1, 256)); };
    expect("warps");
    x.warps_m = count();
    expect("x");
    x.warps_n = count();
    expect("tiles");
    x.tiles_m = count();
    expect("x");
    x.tiles_n = count();
    expect("k");
    x.k = count();
    x.warpgroup = accept("warpgroup");
    return {std::move(x)};
  }
  Expr element(BufferId& buffer) {
    buffer = buffer_id();
    expect("[");
    Expr at = expr();
    expect("]");
    return at;
  }
  Stmt event() {
    Event x{Event::Kind::init, {}, 0, 0, 0};
    if (accept("init")) {
      x.events = buffer_id();
      expect("for");
      x.count = integer(1, 1 << 20);
      return {std::move(x)};
    }
    x.kind = accept("arrive") ? Event::Kind::arrive : Event::Kind::wait;
    if (x.kind == Event::Kind::wait) expect("wait");
    x.index = element(x.events);
    if (x.kind == Event::Kind::wait) {
      expect("parity");
      x.parity = expr();
    } else {
      expect("bytes");
      x.count = integer(0, 1 << 20);
    }
    return {std::move(x)};
  }
  template <class Item, class Read>
  std::vector<Item> list(std::string_view name, Read&& read) {
    expect(name);
    std::vector<Item> out;
    do out.push_back(read());
    while (accept(","));
    return out;
  }
  Stmt tile() {
    TileCopy x;
    x.to_offset = element(x.to);
    expect("<-");
    x.from = buffer_id();
    const auto number = [&] { return integer(1, std::int64_t{1} << 40); };
    x.extents = list<std::int64_t>("extents", number);
    x.strides = list<std::int64_t>("strides", number);
    x.box = list<std::int64_t>("box", number);
    x.at = list<Expr>("at", [&] { return expr(); });
    expect("event");
    x.event = element(x.events);
    return {std::move(x)};
  }
  Stmt roles() {
    Roles x;
    do {
      Roles::Role role;
      role.threads = static_cast<int>(integer(1, 1024));
      expect("registers");
      role.registers = static_cast<int>(integer(0, 255));
      expect("{");
      role.body = std::make_shared<const Body>(body());
      x.roles.push_back(std::move(role));
    } while (accept("beside"));
    return {std::move(x)};
  }

  int depth_ = 0;
  Kernel* kernel_ = nullptr;
  std::map<std::int64_t, Value> lets_;
};

}  // namespace

Result<Kernel> parse_kernel(std::string_view text) {
  std::vector<Kernel> all = HEDDLE_TRY(parse_kernels(text));
  if (all.size() != 1) return fail("kernel text: found {} kernels, want one", all.size());
  return std::move(all[0]);
}

Result<std::vector<Kernel>> parse_kernels(std::string_view text) {
  try {
    return Parser(text).run();
  } catch (const ParseError& e) {
    return fail("{}", e.message);
  }
}

}  // namespace heddle::kernel
