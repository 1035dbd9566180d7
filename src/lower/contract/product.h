#pragma once
#include <algorithm>

#include "lower/contract/problem.h"
#include "lower/contract/schedule.h"
#include "lower/contract/values.h"

namespace heddle::lower::contract {

/// A reduction loop: neighbouring axes that step evenly through both operands run as one.
struct KLoop {
  std::vector<Axis> axes;  ///< outer to inner
  std::int64_t extent = 1;
};

/// One output of the kernel: `value` at a position of the contraction, where the contraction itself
/// appears as a load from the stand-in buffer `Product::result`.
struct Output {
  std::size_t position;  ///< in Cluster::outputs
  NodeId node;
  kernel::BufferId buffer, stand_in;
  Layout layout;
  ir::Expr offset;
  kernel::Value value;
  std::optional<EpilogueSum> sum = {};  ///< what becomes of the values, if not they are stored
};

/// A box that covers what a task reads of an operand. Each dimension of the operand is a function
/// of one affine form u of the loops (oh·stride + kh; reflected, divided or plain), and the box
/// holds the operand at u = low + place, places at `strides` in the task's scratch.
struct Box {
  struct Dim {
    ir::Var u;
    ir::Expr index;                   ///< the operand's coordinate, over u, batch and outer axes
    ir::Expr low;                     ///< u at reduction 0 (over row and tile: the task's first)
    ir::Expr local;                   ///< place: over row, tile and reduction axes, >= 0
    ir::Interval inside;              ///< outside these u the value is zero
    std::vector<ir::Condition> more;  ///< further conditions, over u, batch and outer axes
  };
  std::vector<Dim> dims;
  std::vector<int> order;  ///< dims from outermost to innermost in the source's memory
};

/// Everything symbolic about a cluster with one contraction: operands and outputs as expressions
/// over the axes of the problem, axes merged where memory allows it.
struct Product {
  Product(const Request& r, Problem p);

  const Request& request;
  Problem problem;
  kernel::Kernel kernel;
  Values values;
  kernel::Value a, b;
  kernel::BufferId result;
  std::vector<Output> outputs;
  bool sums() const {
    return std::any_of(outputs.begin(), outputs.end(),
                       [](const Output& o) { return o.sum.has_value(); });
  }
  std::vector<Axis> outer;  ///< batch axes and row axes that become tasks
  std::optional<Axis> row, tile, n;
  std::vector<Axis> n_axes;  ///< as in the problem, before merging
  std::vector<KLoop> k;
  std::optional<Box> box;
  bool a_across = false;  ///< memory of a runs along the tile axis
  Extents extents;
  Schedule base;  ///< operand sources
};

/// Analyses the cluster of a request; an error says why it is not one main loop with an epilogue.
enum class Form : std::uint8_t {
  joined,  ///< with the reductions that an instruction takes together (join_reductions)
  single,  ///< value by value
  copied,  ///< the same, bytes by four; as all rows are copied, those that overlap are one axis,
           ///< too
  boxed,   ///< bytes by four, rows as they lie; those of a small image are one axis
  rows,    ///< value by value, rows and columns of an image apart
  column,  ///< as joined, a single column of a constant as the columns' operand
  flat,    ///< value by value, all rows one axis, wherever they and their results lie
};
Result<std::unique_ptr<Product>> make_product(const Request& request, Form form = Form::joined);
/// The same with the roles of operands and axes given.
Result<std::unique_ptr<Product>> make_product(const Request& request, Problem problem,
                                              Form form = Form::joined);

/// The load that dominates reading a value: the first one that has no dynamic part.
const kernel::Load* first_load(const kernel::Value& v);
/// Elements from one value of the variable to the next; 0 without a load, or if they vary.
std::int64_t stride_of(const kernel::Load* load, ir::Var v);
/// Whether the box has so many places of a dimension, all of them inside the operand.
bool is_whole(const Box::Dim& dim, std::int64_t extent);
/// Fills in Product::extents, and what of the base schedule they decide.
void measure(Product& p);

/// Whether axes p (outer) and q (inner) step through every expression as one axis would.
bool chained(const std::vector<ir::Expr>& exprs, const Axis& p, const Axis& q);

/// The reductions, neighbours that step evenly through all of `exprs` as one: the inner one's
/// variable runs over both, the outer one's is 0.
std::vector<Axis> merged_reductions(const Product& p, const std::vector<ir::Expr>& exprs);

/// Tasks that read the same columns.
std::int64_t row_tasks(const Product& p, const Schedule& s);

/// Every index expression in a value.
std::vector<ir::Expr> expressions_of(const kernel::Value& v);

/// Where memory has axes p (outer) and q one after the other (taps and channels of a window), so do
/// conditions on p alone, put into the units of q: p >= low where p·extent + q >= low·extent.
kernel::Value in_units_of(const Axis& q, const Axis& p, const kernel::Value& v);

/// The bits of an integer, or of a value of bf16.
std::uint32_t bits_at(const Tensor& t, std::int64_t i);
/// A word of so many parts, the first of which is at `offset` and each further one `next` behind.
std::uint32_t word_at(const Tensor& source, std::int64_t offset, std::int64_t next, int parts);

/// Replaces loads from stand-in buffers by other values.
kernel::Value replace_loads(const kernel::Value& v,
                            const std::vector<std::pair<kernel::BufferId, kernel::Value>>& with);

}  // namespace heddle::lower::contract
