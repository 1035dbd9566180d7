#include <fmt/format.h>

#include <unordered_map>

#include "kernel/lexer.h"
#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::kernel {
namespace {

// Text form: one statement a line. Values are written as nested calls; a node that is used twice or
// lies deep is named first by `let %n = …`, so that a DAG prints in linear size.
constexpr int kInlineDepth = 10;

constexpr std::string_view kUses[] = {"plain", "tiles", "events"};

class Printer {
 public:
  std::string run(const Kernel& k) {
    out_ = fmt::format("kernel \"{}\" vars={}{} {{\n", k.name, k.variables,
                       k.resident ? " resident" : "");
    for (std::int32_t i = 0; i < k.buffers.size(); ++i) print(BufferId{i}, k.buffers[BufferId{i}]);
    print(k.body, 1);
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  void print(BufferId id, const Buffer& b) {
    out_ += fmt::format("  buffer b{} \"{}\" {}[{}] {}", id.value, b.name, name_of(b.dtype), b.size,
                        kScopeNames[static_cast<int>(b.scope)]);
    if (b.argument >= 0) out_ += fmt::format(" arg={}", b.argument);
    if (b.written) out_ += " written";
    if (b.lanes != 1) out_ += fmt::format(" lanes={}", b.lanes);
    if (b.use != Use::plain) out_ += fmt::format(" {}", kUses[static_cast<int>(b.use)]);
    out_ += '\n';
  }

  void line(int depth, const std::string& text) {
    out_.append(static_cast<std::size_t>(depth) * 2, ' ');
    out_ += text + "\n";
  }

  void print(const Body& body, int depth) {
    for (const Stmt& s : body) print(s, depth);
  }

  void print(const Stmt& s, int depth) {
    match(
        s.op,
        [&](const For& x) {
          line(depth,
               fmt::format("for {} d{} in {}..{} {{", kBindingNames[static_cast<int>(x.binding)],
                           x.var.index, x.begin, x.end));
          print(*x.body, depth + 1);
          line(depth, "}");
        },
        [&](const Let& x) {
          line(depth, fmt::format("let d{} = {} in {}..{} {{", x.var.index, ir::to_string(x.value),
                                  x.begin, x.end));
          print(*x.body, depth + 1);
          line(depth, "}");
        },
        [&](const Store& x) {
          prepare(s, depth);
          line(depth, fmt::format("b{}[{}{}] = {}", x.buffer.value, ir::to_string(x.offset),
                                  dynamic(x.dynamic), use(x.value)));
        },
        [&](const If& x) {
          line(depth, fmt::format("if {} {{", conditions(x.conditions)));
          print(*x.body, depth + 1);
          line(depth, "}");
        },
        [&](const Barrier& x) {
          line(depth, fmt::format("barrier {}{}", kScopeNames[static_cast<int>(x.scope)],
                                  x.async ? " async" : ""));
        },
        [&](const Combine& x) {
          line(depth, fmt::format("combine {} b{}[{}..{}] over {} by {}", ir::name_of(x.fn),
                                  x.buffer.value, x.offset, x.offset + x.count, x.width, x.stride));
        },
        [&](const Routine& x) {
          std::string text = fmt::format("routine {}(", x.name);
          for (std::size_t i = 0; i < x.buffers.size(); ++i)
            text += fmt::format("{}b{}", i ? ", " : "", x.buffers[i].value);
          text += ";";
          for (std::size_t i = 0; i < x.integers.size(); ++i)
            text += fmt::format("{}{}", i ? ", " : " ", ir::to_string(x.integers[i]));
          line(depth, text + ")");
        },
        [&](const Copy& x) {
          line(depth,
               fmt::format("copy b{}[{}] <- b{}[{}] x {}{}{}", x.to.value,
                           ir::to_string(x.to_offset), x.from.value, ir::to_string(x.from_offset),
                           x.count, x.conditions.empty() ? "" : " if ", conditions(x.conditions)));
        },
        [&](const CopyGroup& x) {
          line(depth, x.commit ? "copies commit" : fmt::format("copies wait {}", x.left));
        },
        [&](const MmaWait& x) { line(depth, fmt::format("products wait {}", x.left)); },
        [&](const Mma& x) {
          line(depth, fmt::format("mma b{} += {} * {} warps {} x {} tiles {} x {} k {}{}",
                                  x.acc.value, operand(x.a), operand(x.b), x.warps_m, x.warps_n,
                                  x.tiles_m, x.tiles_n, x.k, x.warpgroup ? " warpgroup" : ""));
        },
        [&](const Event& x) { line(depth, event(x)); },
        [&](const TileCopy& x) { line(depth, tile(x)); },
        [&](const Roles& x) {
          for (const Roles::Role& role : x.roles) {
            line(depth,
                 fmt::format("{} {} registers {} {{", &role == &x.roles[0] ? "role" : "beside",
                             role.threads, role.registers));
            print(*role.body, depth + 1);
            line(depth, "}");
          }
        },
        [&](const Prefetch& x) {
          line(depth, fmt::format("prefetch b{}[{}]{}{}", x.buffer.value, ir::to_string(x.offset),
                                  x.far ? " far" : "", x.page ? " page" : ""));
        },
        [&](const TileProduct& x) { line(depth, product(x)); });
  }

  static std::string product(const TileProduct& x) {
    const auto operand = [](const TileProduct::Operand& o) {
      const std::string type = o.type == DType::bf16 ? "" : fmt::format("{} ", name_of(o.type));
      std::string runs;
      for (const auto& run : o.runs) runs += fmt::format(", {} skip {}", run.steps, run.further);
      return fmt::format("{}b{}[{} by {}, {}{}]", type, o.buffer.value, ir::to_string(o.offset),
                         o.step, o.block, runs);
    };
    std::string rows = x.a_row == TileProduct{}.a_row ? "" : fmt::format(" by {}", x.a_row);
    if (x.height != TileProduct::kRows) rows += fmt::format(" each {}", x.height);
    if (x.row_bytes != TileProduct::kRowBytes) rows += fmt::format(" wide {}", x.row_bytes);
    std::string text = fmt::format("tiles b{}[{}] {} {} * {} rows {}{} columns {} depth {} terms",
                                   x.acc.value, ir::to_string(x.to), x.add ? "+=" : "=",
                                   operand(x.a), operand(x.b), x.rows, rows, x.columns, x.depth);
    for (const TileProduct::Term& t : x.terms)
      text += fmt::format("{} {} {}", &t == &x.terms[0] ? "" : ",", t.a, t.b);
    if (x.ahead) text += " ahead";
    if (x.along) text += fmt::format(" along d{}", x.along->index);
    for (const TileProduct::Fetch& f : x.fetches)
      text += fmt::format(" fetch b{}[{}] rows {} by {} lines {}{}{}", f.buffer.value,
                          ir::to_string(f.offset), f.rows, f.pitch, f.lines, f.far ? " far" : "",
                          f.page ? " page" : "");
    return text;
  }

  static std::string event(const Event& x) {
    if (x.kind == Event::Kind::init)
      return fmt::format("event init b{} for {}", x.events.value, x.count);
    const std::string at = fmt::format("b{}[{}]", x.events.value, ir::to_string(x.index));
    if (x.kind == Event::Kind::wait)
      return fmt::format("event wait {} parity {}", at, ir::to_string(x.parity));
    return fmt::format("event arrive {} bytes {}", at, x.count);
  }

  static std::string tile(const TileCopy& x) {
    const auto list = [](const auto& items, const auto& text) {
      std::string out;
      for (const auto& one : items) out += (out.empty() ? "" : ", ") + text(one);
      return out;
    };
    const auto number = [](std::int64_t n) { return std::to_string(n); };
    const auto expr = [](const Expr& e) { return ir::to_string(e); };
    return fmt::format("tile b{}[{}] <- b{} extents {} strides {} box {} at {} event b{}[{}]",
                       x.to.value, expr(x.to_offset), x.from.value, list(x.extents, number),
                       list(x.strides, number), list(x.box, number), list(x.at, expr),
                       x.events.value, expr(x.event));
  }

  static std::string operand(const Mma::Operand& o) {
    return fmt::format("b{}[{} by {}, {}]", o.buffer.value, ir::to_string(o.offset), o.row, o.step);
  }

  /// Names the shared and the deep nodes of a statement's values.
  void prepare(const Stmt& s, int depth) {
    names_.clear();
    texts_.clear();
    std::unordered_map<const ValueNode*, int> uses, depths;
    std::vector<Value> order;
    for_each_value_of(s, [&](const Value& root) {
      for_each_value(root, [&](const Value& v) {
        if (depths.count(v.get())) return;
        int deepest = 0;
        for_each_child(*v, [&](const Value& c) {
          ++uses[c.get()];
          deepest = std::max(deepest, depths[c.get()]);
        });
        const bool deep = deepest + 1 >= kInlineDepth;
        depths[v.get()] = deep ? 0 : deepest + 1;
        if (deep) uses[v.get()] += 2;
        order.push_back(v);
      });
      ++uses[root.get()];
    });
    for (const Value& v : order) {
      std::string text = value(*v);
      if (uses[v.get()] > 1 && !std::holds_alternative<Imm>(v->op)) {
        const std::string name = fmt::format("%{}", names_.size());
        names_.emplace(v.get(), name);
        line(depth, fmt::format("let {} = {}", name, text));
      } else {
        texts_.emplace(v.get(), std::move(text));
      }
    }
  }

  std::string use(const Value& v) const {
    auto name = names_.find(v.get());
    return name != names_.end() ? name->second : texts_.at(v.get());
  }

  std::string dynamic(const std::vector<Load::Dynamic>& parts) const {
    std::string text;
    for (const Load::Dynamic& d : parts)
      text += fmt::format("; {} : {} * {}", use(d.value), d.extent, d.stride);
    return text;
  }

  static std::string conditions(const Conditions& list) {
    std::string text;
    for (const ir::Condition& c : list) text += (text.empty() ? "" : " & ") + ir::to_string(c);
    return text;
  }

  std::string value(const ValueNode& v) const {
    const std::string_view type = name_of(v.dtype);
    return match(
        v.op,
        [&](const Imm& x) {
          if (is_float(v.dtype)) return fmt::format("{}({})", type, x.real);
          return fmt::format("{}({})", type, x.integer);
        },
        [&](const Load& x) {
          return fmt::format("load.{} b{}[{}{}]", type, x.buffer.value, ir::to_string(x.offset),
                             dynamic(x.dynamic));
        },
        [&](const Apply& x) {
          std::string args;
          for (const Value& arg : x.args) args += (args.empty() ? "" : ", ") + use(arg);
          return fmt::format("{}.{}({})", ir::info(x.fn).name, type, args);
        },
        [&](const Index& x) { return fmt::format("index.{}({})", type, ir::to_string(x.expr)); },
        [&](const Guard& x) {
          return fmt::format("guard.{}({}; {}; {})", type, conditions(x.conditions), use(x.then),
                             use(x.otherwise));
        },
        [&](const LaneReduce& x) {
          return fmt::format("lanes_{}.{} b{}[{}]", ir::name_of(x.fn), type, x.buffer.value,
                             ir::to_string(x.offset));
        },
        [&](const RandomBits& x) {
          return fmt::format("{}.{}({}; {})", x.normal ? "random_normal" : "random_uniform", type,
                             x.seed, ir::to_string(x.counter));
        });
  }

  std::string out_;
  std::unordered_map<const ValueNode*, std::string> names_, texts_;
};

}  // namespace

std::string to_string(const Kernel& k) { return Printer().run(k); }

}  // namespace heddle::kernel
