#include "driver/constant_bytes.h"

#include <algorithm>
#include <map>
#include <set>

namespace heddle::driver {
namespace {

/// A way to compute a product, from the largest constants to the smallest.
struct Form {
  std::string_view schedule;  ///< as descriptions begin
  double bytes;               ///< of the constant as it is stored, in shares of the constant
  double loss;                ///< of taking the next form, in shares of the time as written
  double work;                ///< multiplications, in shares of those as written
  std::size_t next;
  lower::Tuning tuning;
};
const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"winograd F(4x4", 4, 0.2, 1.0 / 4, 1, {}},
      {"winograd F(2x2", 16.0 / 9, 0.55, 4.0 / 9, 4, {{"winograd", 2}, {"strassen", 0}}},
      {"strassen", 7.0 / 4, 0.1, 7.0 / 8, 4, {}},
      {"pieces", 3.0 / 2, 1.2, 1, 4, {}},
      {"contract", 1, 0, 1, 4, {{"winograd", 0}, {"strassen", 0}, {"pieces", 0}}},
  };
  return all;
}

struct Product {
  std::size_t kernel, form, first_form;
  double constant;  ///< bytes, as they were
  double work;      ///< operations as written
  double saved() const {
    return (forms()[form].bytes - forms()[forms()[form].next].bytes) * constant;
  }
  double loss_of_a_byte() const { return forms()[form].loss * work / saved(); }
};

double work_of(const prim::Graph& graph, const lower::Cluster& cluster) {
  double work = 0;
  for (const prim::NodeId id : cluster.nodes)
    if (const auto* k = std::get_if<prim::Contract>(&graph[id].op))
      work += static_cast<double>(element_count(graph[id].type.shape)) *
              static_cast<double>(element_count(k->reduced));
  return work;
}

}  // namespace

double most_added_bytes(double of_products, double of_windows) {
  constexpr double kAnyhow = 24 << 20;
  return of_windows + 0.4 * (of_products - of_windows) + kAnyhow;
}

std::vector<SmallerForm> smaller_forms(const prim::Graph& graph,
                                       const std::vector<CompiledKernel>& kernels) {
  std::vector<Product> products;
  std::set<prim::NodeId> seen;
  double added = 0;
  double of_products = 0, of_windows = 0;
  for (std::size_t k = 0; k < kernels.size(); ++k)
    for (const lower::Argument& a : kernels[k].lowered.arguments) {
      const Tensor* constant = graph.constant_of(a.node);
      if (constant == nullptr || a.kind != lower::Argument::Kind::packed) continue;
      const std::string& schedule = kernels[k].lowered.schedule;
      // Of bytes Winograd's convolution has 16 bits, as all others have where it is.
      const bool of_bytes = size_of(constant->dtype()) == 1;
      const bool winograd = schedule.starts_with("winograd");
      const auto bytes = static_cast<double>(!of_bytes  ? constant->bytes()
                                             : winograd ? 2 * constant->bytes()
                                                        : a.packed.bytes());
      if (seen.insert(a.node).second) {
        of_products += bytes;
        if (winograd) of_windows += bytes;
        if (schedule.starts_with("pieces")) of_windows += bytes / 4;
      }
      added += static_cast<double>(a.packed.bytes()) - bytes;
      if (of_bytes && !winograd) continue;
      for (std::size_t f = 0; f + 1 < forms().size(); ++f)
        if (schedule.starts_with(forms()[f].schedule))
          products.push_back({k, f, f, bytes, work_of(graph, kernels[k].planned.cluster)});
    }
  const double most = most_added_bytes(of_products, of_windows);
  while (added > most) {
    Product* least = nullptr;
    for (Product& p : products)
      if (p.saved() > 0 && (!least || p.loss_of_a_byte() < least->loss_of_a_byte())) least = &p;
    if (least == nullptr) break;
    added -= least->saved();
    least->form = forms()[least->form].next;
  }
  std::vector<SmallerForm> out;
  for (const Product& p : products)
    if (p.form != p.first_form) {
      const Form &before = forms()[p.first_form], &now = forms()[p.form];
      out.push_back({p.kernel, now.tuning, 2 * (now.work - before.work) * p.work});
    }
  return out;
}

}  // namespace heddle::driver
