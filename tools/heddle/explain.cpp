#include <fstream>
#include <set>

#include "common.h"
#include "driver/report.h"
#include "onnx/reader.h"
#include "staged.h"
#include "step.h"

namespace heddle::tool {
namespace {

struct ExplainFlags : ModelFlags {
  std::string html, node;
  int top = 0;
};

}  // namespace

nlohmann::json ports_json(const std::vector<runtime::Port>& ports) {
  std::set<std::string> extents;
  for (const runtime::Port& port : ports)
    for (std::size_t axis = 0; axis < port.type.shape.size(); ++axis)
      extents.insert(onnx::extent_name(port.name, static_cast<int>(axis)));
  nlohmann::json list = nlohmann::json::array();
  for (const runtime::Port& port : ports)
    if (!port.name.starts_with("heddle:") && !extents.contains(port.name))
      list.push_back({{"name", port.name}, {"type", to_string(port.type)}});
  return list;
}

namespace {

Status run(const ExplainFlags& flags) {
  if (flags.training.distributed) {
    if (!flags.html.empty())
      return fail(ErrorCode::usage, "--distributed: found --html, want --json or text");
    fmt::print("{}", HEDDLE_TRY(explain_distributed(flags, flags.node, flags.top)));
    return Ok{};
  }
  const bool staged = HEDDLE_TRY(is_staged(flags));
  Result<Model> compiled = staged ? unsupported("") : compile_model(flags);
  if (staged || (!compiled && works_in_stages(flags, compiled.error()))) {
    if (!flags.html.empty())
      return unsupported("--html: '{}' runs in stages, want a model that is one program",
                         flags.model);
    return explain_staged(flags, flags.node);
  }
  const Model model = HEDDLE_TRY(std::move(compiled));
  nlohmann::json report = nlohmann::json::parse(model.program->manifest, nullptr, false);
  if (!report.is_object() || !report.contains("kernels"))
    return fail("{}: the artefact holds no report", flags.model);
  if (!flags.html.empty()) {
    std::ofstream file(flags.html);
    file << driver::explain_html(report);
    file.close();
    if (!file) return fail("{}: cannot write", flags.html);
    if (!flags.json) {
      fmt::print("{}\n", flags.html);
      return Ok{};
    }
  }
  if (flags.json) {
    report["inputs"] = ports_json(model.program->inputs);
    report["outputs"] = ports_json(model.program->outputs);
    if (model.sized)
      for (const runtime::SizeCase& row : model.sized->cases)
        report["dispatch"].push_back({{"sizes", row.sizes}, {"program", row.program}});
    if (model.sized)
      for (const auto& program : model.sized->programs)
        report["programs"].push_back(ports_json(program->inputs));
    if (model.chain) report["links"] = model.chain->links.size();
    if (model.sized)
      for (const auto& [name, expr] : model.sized->facts) report["facts"][name] = expr.text();
    fmt::print("{}\n", report.dump(2));
    return Ok{};
  }
  if (model.chain)
    fmt::print(
        "values decide shapes: {} links run one after another:\n{}{}below: the largest program "
        "of the last one\n",
        model.chain->links.size(), model.chain->table(), model.notes);
  if (model.sized)
    fmt::print("dispatch table, {} sizes:\n{}{}below: the program of {}\n",
               model.sized->cases.size(), model.sized->table(), model.notes, model.sizes);
  fmt::print("{}", HEDDLE_TRY(driver::explain_text(report, flags.node, flags.top)));
  return Ok{};
}

}  // namespace

Verb add_explain(CLI::App& verb) {
  auto flags = std::make_shared<ExplainFlags>();
  add_model_flags(verb, *flags);
  add_step_flags(verb, *flags);
  verb.add_flag("--no-loss-value", flags->training.silent,
                "of --train: only the gradient of the loss is computed")
      ->needs("--train");
  verb.add_flag(
          "--distributed", flags->training.distributed,
          "of --train: as processes that share each step run it, in two programs; as text or with "
          "--json")
      ->needs("--train");
  verb.add_option("--html", flags->html, "write a self-contained page");
  verb.add_option("--node", flags->node, "only the kernels that cover this source node, in detail");
  verb.add_option("--top", flags->top, "only the dearest N kernels (0: all, in execution order)");
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
