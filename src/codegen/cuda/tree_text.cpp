// Products with epilogue trees as text: a function for each output, and the tree of what it reads.
#include "codegen/cuda/tree_text.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "codegen/cuda/emitter.h"
#include "kernel/traverse.h"
#include "support/hash.h"

namespace heddle::codegen::cuda {
namespace {

using kernel::TreeProduct;
using kernel::Value;

std::string element(DType t) { return fmt::format("hdu::{}", name_of(t)); }

struct Writer {
  const TreeProduct& p;
  std::string text = {};
  int source = -1;  ///< the matrix that goes through shared memory

  int outputs() const { return static_cast<int>(p.values.size()); }
  const TreeProduct::Matrix& matrix(int number) const {
    return p.matrices[static_cast<std::size_t>(number)];
  }
  bool is_loaded(int number) const { return number >= TreeProduct::kOut + outputs(); }
  bool lies_in_rows(int number) const {
    return matrix(number).column == 1 && matrix(number).row > 0 &&
           p.is_aligned(matrix(number), p.columns);
  }

  std::string leaf(int number) const {
    if (number == TreeProduct::kSums) return "hdu::Sum";
    const TreeProduct::Matrix& m = matrix(number);
    const char* kind = number == source              ? "Source"
                       : m.row == 0 && m.column == 0 ? "Scalar"
                       : m.row == 0 && m.column == 1 ? "Row"
                       : m.row == 1 && m.column == 0 ? "Column"
                       : lies_in_rows(number)        ? "Load"
                                                     : "Strided";
    return fmt::format("hdu::{}<{}, {}>", kind, number, element(m.dtype));
  }

  static std::set<int> loads_of(const Value& v) {
    std::set<int> out;
    kernel::for_each_value(v, [&](const Value& x) {
      if (const auto* load = std::get_if<kernel::Load>(&x->op)) out.insert(load->buffer.value);
    });
    return out;
  }

  /// `HD_FN float f0(float a0, …)`: the arguments are `numbers`, in that order.
  void function(int position, const std::vector<int>& numbers) {
    const Value& v = p.values[static_cast<std::size_t>(position)];
    std::unordered_map<const kernel::ValueNode*, std::string> names;
    std::string body, parameters;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      parameters += fmt::format("{}float a{}", i == 0 ? "" : ", ", i);
    kernel::for_each_value(v, [&](const Value& x) {
      if (const auto* imm = std::get_if<kernel::Imm>(&x->op)) {
        names[x.get()] = literal(*imm, x->dtype);
      } else if (const auto* load = std::get_if<kernel::Load>(&x->op)) {
        const auto at = std::find(numbers.begin(), numbers.end(), load->buffer.value);
        names[x.get()] = fmt::format("a{}", at - numbers.begin());
      } else {
        const auto& apply = std::get<kernel::Apply>(x->op);
        std::vector<std::string> args;
        for (const Value& arg : apply.args) args.push_back(names.at(arg.get()));
        const std::string name = fmt::format("t{}", names.size());
        body += fmt::format("  const {} {} = {};\n", type_of(x->dtype), name,
                            call_text(apply, x->dtype, args));
        names[x.get()] = name;
      }
    });
    text +=
        fmt::format("HD_FN float f{0}({1}) {{\n{2}  return {3};\n}}\nHDU_FUNCTION(F{0}, f{0})\n",
                    position, parameters, body, names.at(v.get()));
  }

  /// The tree of an output: what it reads, and before that the store of the output before it.
  std::string tree(int position) {
    const bool last = position + 1 == outputs();
    std::vector<int> numbers;
    std::string children;
    if (position > 0) {
      numbers.push_back(TreeProduct::kOut + outputs() - position);
      children = tree(position - 1);
    }
    std::set<int> loads = loads_of(p.values[static_cast<std::size_t>(position)]);
    if (position == 0) loads.insert(TreeProduct::kSums);
    for (int number : loads) {
      if (number != TreeProduct::kSums && !is_loaded(number)) continue;
      numbers.push_back(number);
      children += (children.empty() ? "" : ", ") + leaf(number);
    }
    function(position, numbers);
    const int number = TreeProduct::kOut + outputs() - 1 - position;
    const DType stored = matrix(number).dtype;
    const std::string made = fmt::format("hdu::Compute<F{}, {}, {}>", position,
                                         last ? element(stored) : "float", children);
    return last ? made : fmt::format("hdu::Store<{}, {}, {}>", number, element(stored), made);
  }

  std::string group() const {
    const kernel::TreeTile& t = kernel::kTreeTiles[static_cast<std::size_t>(p.tile - 1)];
    return fmt::format("hdu::Group<{}, hdu::{}, hdu::{}, {}, {}, {}, hdu::{}>",
                       element(matrix(0).dtype),
                       matrix(TreeProduct::kLhs).column == 1 ? "AlongColumns" : "AlongRows",
                       matrix(TreeProduct::kRhs).column == 1 ? "AlongRows" : "AlongColumns", t.m,
                       t.n, t.k, t.pingpong ? "Pingpong" : "Cooperative");
  }
};

}  // namespace

UnitEntry tree_text(const TreeProduct& p) {
  Writer w{p};
  for (int i = TreeProduct::kOut + w.outputs(); i < static_cast<int>(p.matrices.size()); ++i)
    if (w.source < 0 && w.lies_in_rows(i)) w.source = i;
  const std::string tree = w.tree(w.outputs() - 1);
  w.text += fmt::format("using P = hdu::Product<Group, {}, {}, {}, {}>;\n",
                        element(w.matrix(TreeProduct::kOut).dtype),
                        w.source < 0 ? "void" : element(w.matrix(w.source).dtype), w.source, tree);
  UnitEntry out{w.group(), {}, {}};
  out.name = "p" + to_string(hash_bytes(out.group + w.text)).substr(0, 16);
  out.text = fmt::format("namespace {} {{\n{}}}  // namespace {}\n", out.name, w.text, out.name);
  return out;
}

UnitProduct unit_product(const TreeProduct& p, std::string name) {
  UnitProduct out{0, std::move(name), p.batches, p.rows, p.columns, p.depth, {}};
  for (const TreeProduct::Matrix& m : p.matrices)
    out.matrices.push_back({m.argument, m.start * size_of(m.dtype), m.batch, m.row, m.column});
  return out;
}

}  // namespace heddle::codegen::cuda
