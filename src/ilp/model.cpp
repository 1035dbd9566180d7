#include "ilp/model.h"

#include <fmt/format.h>

#include <cctype>

namespace heddle::ilp {
namespace {

std::string lp_name(const std::string& name) {
  std::string out;
  for (char c : name) {
    out += std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' ? c : '_';
  }
  // LP numbers may start with a digit, a dot or an exponent's e.
  if (out.empty() || !(std::isalpha(static_cast<unsigned char>(out[0])) || out[0] == '_') ||
      out[0] == 'e' || out[0] == 'E') {
    out = "_" + out;
  }
  return out;
}

std::string sum_text(const Model& model, const std::vector<Term>& terms) {
  std::string out;
  for (const Term& t : terms) {
    out += fmt::format(" {} {} {}", t.coefficient < 0 ? '-' : '+', std::abs(t.coefficient),
                       lp_name(model.variables()[t.var].name));
  }
  return out.empty() ? " 0" : out;
}

std::string_view symbol(Sense sense) {
  switch (sense) {
    case Sense::at_most:
      return "<=";
    case Sense::at_least:
      return ">=";
    case Sense::equal:
      return "=";
  }
  return "";
}

}  // namespace

std::string to_lp(const Model& model) {
  std::vector<Term> costs;
  for (std::int32_t v = 0; v < model.variables().size(); ++v) {
    costs.push_back({VarId{v}, model.variables()[VarId{v}].cost});
  }
  std::string out = "Minimize\n cost:" + sum_text(model, costs) + "\nSubject To\n";
  for (const Row& row : model.rows()) {
    out += fmt::format(" {}:{} {} {}\n", lp_name(row.name), sum_text(model, row.terms),
                       symbol(row.sense), row.bound);
  }
  out += "Binary\n";
  for (const Variable& v : model.variables()) out += " " + lp_name(v.name) + "\n";
  return out + "End\n";
}

double objective(const Model& model, const std::vector<bool>& values) {
  double sum = 0;
  std::size_t i = 0;
  for (const Variable& v : model.variables()) sum += values[i++] ? v.cost : 0;
  return sum;
}

bool holds(const Row& row, const std::vector<bool>& values) {
  double sum = 0;
  for (const Term& t : row.terms) {
    if (values[static_cast<std::size_t>(t.var.value)]) sum += t.coefficient;
  }
  constexpr double kSlack = 1e-6;
  switch (row.sense) {
    case Sense::at_most:
      return sum <= row.bound + kSlack;
    case Sense::at_least:
      return sum >= row.bound - kSlack;
    case Sense::equal:
      return std::abs(sum - row.bound) <= kSlack;
  }
  return false;
}

RowId violated_row(const Model& model, const std::vector<bool>& values) {
  for (std::int32_t r = 0; r < model.rows().size(); ++r) {
    if (!holds(model.rows()[RowId{r}], values)) return RowId{r};
  }
  return {};
}

}  // namespace heddle::ilp
