#include "rows.h"

#include <cmath>

#include "ops/host.h"
#include "prim/interpret.h"

namespace heddle::ops::rows {
namespace {

Tensor to_tensor(const Value& v) {
  Tensor t(v.type);
  HEDDLE_CHECK(t.count() == static_cast<std::int64_t>(v.data.size()), "{} values for {}",
               v.data.size(), to_string(v.type));
  for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, v.data[static_cast<std::size_t>(i)]);
  return t;
}

void expect_close(const Tensor& found, const Value& want, std::size_t output) {
  EXPECT_EQ(to_string(found.type()), to_string(want.type)) << "output " << output;
  if (found.type() != want.type) return;
  for (std::int64_t i = 0; i < found.count(); ++i) {
    const double f = found.at(i), w = want.data[static_cast<std::size_t>(i)];
    if (std::isnan(w) && std::isnan(f)) continue;
    if (f == w) continue;
    EXPECT_NEAR(f, w, 1e-5 * std::max(1.0, std::fabs(w)))
        << "output " << output << ", element " << i;
  }
}

}  // namespace

Result<Built> build(const Row& row) {
  Built built;
  prim::Graph& graph = built.graph;
  prim::Builder b(graph);
  Call call;
  call.op = row.op;
  call.name = "it";
  call.opset = row.opset;
  call.outputs = std::max<int>(1, static_cast<int>(row.want.size()));
  call.output_used.assign(static_cast<std::size_t>(call.outputs), true);
  call.attributes = row.attributes;
  call.graph = &graph;
  std::vector<Tensor>& inputs = built.inputs;
  for (const Value& v : row.inputs) {
    if (v.absent) {
      call.args.emplace_back();
    } else if (v.known) {
      call.args.emplace_back(graph.add_constant(to_tensor(v)));
    } else {
      call.args.emplace_back(graph.add_input("x" + std::to_string(inputs.size()), v.type));
      inputs.push_back(to_tensor(v));
    }
  }
  Result<Values> expanded = expand(call, b);
  if (!expanded && expanded.error().code == ErrorCode::unsupported && may_run_on_host(call)) {
    std::vector<Tensor> args;
    for (const Value& v : row.inputs) args.push_back(v.absent ? Tensor() : to_tensor(v));
    expanded = Values();
    for (const HostValue& value : HEDDLE_TRY(run_on_host(call, args)))
      expanded->push_back(graph.add_constant(value.tensor));
  }
  const Values values = HEDDLE_TRY(std::move(expanded));
  if (values.size() < row.want.size()) return fail("{} results", values.size());
  for (std::size_t i = 0; i < std::max<std::size_t>(1, row.want.size()); ++i)
    graph.outputs.push_back({"y" + std::to_string(i), values[i]});
  return built;
}

void check(const Row& row) {
  const Result<Built> built = build(row);
  if (!row.error.empty()) {
    ASSERT_FALSE(built.ok()) << "wanted the error: " << row.error;
    EXPECT_NE(built.error().message.find(row.error), std::string::npos) << built.error().message;
    return;
  }
  ASSERT_TRUE(built.ok()) << built.error().message;
  const Status sound = prim::verify(built->graph);
  ASSERT_TRUE(sound.ok()) << sound.error().message;
  const auto found = prim::interpret(built->graph, built->inputs);
  ASSERT_TRUE(found.ok()) << found.error().message;
  for (std::size_t i = 0; i < row.want.size(); ++i) expect_close((*found)[i], row.want[i], i);
}

std::vector<Row> all_rows() {
  std::vector<Row> all = seeds();
  for (const auto& rows :
       {shape_rows(), index_rows(), reduce_rows(), gather_rows(), resize_rows(), vision_rows(),
        recurrent_rows(), signal_rows(), attention_rows(), quantize_rows(), contrib_rows(),
        layer_rows(), classical_rows(), misc_rows(), bounded_rows()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

TEST_P(OpRows, Agrees) { check(GetParam()); }

}  // namespace heddle::ops::rows
