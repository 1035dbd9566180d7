// Gradients of every operator that has a row, against differences.
#include <set>

#include "grad/differences.h"
#include "rows.h"

namespace heddle::ops::rows {
namespace {

/// The row's inputs, finite and moved off the points where functions have corners or steps.
std::vector<Tensor> nearby(const std::vector<Tensor>& inputs, std::mt19937& rng) {
  std::vector<Tensor> out;
  for (const Tensor& t : inputs) {
    out.push_back(t);
    if (!is_float(t.type().dtype)) continue;
    out.back() = Tensor(t.type());
    for (std::int64_t i = 0; i < t.count(); ++i)
      out.back().set(
          i, (std::fabs(t.at(i)) < 100 ? t.at(i) : 1) + static_cast<double>(16 + rng() % 64) / 512);
  }
  return out;
}

bool floats_in_and_out(const Built& built) {
  bool in = false, out = false;
  for (const auto& i : built.graph.inputs) in |= is_float(i.type.dtype);
  for (const auto& o : built.graph.outputs) out |= is_float(built.graph[o.node].type.dtype);
  return in && out;
}

/// What checking found, by operator.
struct Found {
  std::set<std::string> checked, refused;

  void check(const Built& built, const std::string& op, const std::string& row, std::mt19937& rng) {
    for (int round = 0; round < 3; ++round) {
      const std::string wrong = grad::check(built.graph, rng, nearby(built.inputs, rng));
      if (wrong == "not smooth here") continue;
      if (wrong.find("no derivative") != std::string::npos) {
        refused.insert(op);
        continue;
      }
      EXPECT_EQ(wrong, "") << op << " " << row;
      checked.insert(op);
    }
  }
};

TEST(Gradients, OfOperatorsWithRows) {
  Found found;
  std::map<std::string, int> times;
  for (const Row& row : all_rows()) {
    if (!row.error.empty()) continue;
    const auto built = build(row);
    if (!built || !floats_in_and_out(*built)) continue;
    // Its own numbers for each row, so that no other row can change them.
    std::string key = row.op + " " + row.name;
    key += std::to_string(times[key]++);
    std::seed_seq seed(key.begin(), key.end());
    std::mt19937 rng(seed);
    found.check(*built, row.op, row.name, rng);
  }
  EXPECT_GE(found.checked.size(), 80u);
  // Products and extremes scattered into a tensor; running products.
  for (const std::string& op : found.refused)
    EXPECT_TRUE(op.starts_with("Scatter") || op == "CumProd" || op == "TensorScatter") << op;
}

/// The others are tried on tensors of values between 0 and 1, or above 1 (Acosh).
TEST(Gradients, OfOperatorsOnSimpleInputs) {
  std::mt19937 rng(9);
  Found found;
  for (const auto family : families())
    for (const OpDef& op : family)
      for (int inputs = std::max(1, op.min_inputs); inputs <= 3; ++inputs) {
        if (op.max_inputs >= 0 && inputs > op.max_inputs) break;
        for (const double shift : {0.1, 1.1}) {
          Row row{"simple", std::string(op.name), 25, {}, {}, {}, ""};
          for (int k = 0; k < inputs; ++k) {
            Value v = f32({2, 3, 4}, {});
            for (int e = 0; e < 24; ++e)
              v.data.push_back(shift + static_cast<double>(rng() % 64) / 128);
            row.inputs.push_back(std::move(v));
          }
          const auto built = build(row);
          if (!built || !floats_in_and_out(*built)) continue;
          const auto values = prim::interpret(built->graph, built->inputs);
          ASSERT_TRUE(values);
          bool defined = true;
          for (std::int64_t i = 0; i < (*values)[0].count(); ++i)
            defined &= std::isfinite((*values)[0].at(i));
          if (defined) found.check(*built, row.op, row.name, rng);
        }
      }
  EXPECT_GE(found.checked.size(), 80u);
  for (const std::string& op : found.refused) EXPECT_EQ(op, "CumProd");
}

}  // namespace
}  // namespace heddle::ops::rows
