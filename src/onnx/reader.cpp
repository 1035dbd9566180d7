#include "onnx/reader.h"

#include <filesystem>

#include "onnx/importer.h"

namespace heddle::onnx {
Result<Loaded> load_model(const std::string& path) {
  const std::string file_path = model_file(path);
  const FileBytes file = HEDDLE_TRY(map_file(file_path));
  auto model = parse_model(file.data, file.size);
  if (!model) return fail(model.error().code, "{}: {}", file_path, model.error().message);
  const std::filesystem::path parent = std::filesystem::path(file_path).parent_path();
  return Loaded{*std::move(model), parent.empty() ? "." : parent.string()};
}

Result<prim::Graph> import(const std::string& path, const ImportOptions& options) {
  const Loaded loaded = HEDDLE_TRY(load_model(path));
  return Importer(loaded.model, loaded.folder, options, nullptr).run();
}

Result<prim::Graph> import_bytes(const std::byte* data, std::size_t size, const std::string& folder,
                                 const ImportOptions& options) {
  return Importer(HEDDLE_TRY(parse_model(data, size)), folder, options, nullptr).run();
}

Result<Stage> import_stage(const std::string& path, const ImportOptions& options,
                           const HostTypes& made, const std::set<std::string>& done) {
  const Loaded loaded = HEDDLE_TRY(load_model(path));
  return Importer(loaded.model, loaded.folder, options, nullptr).run_stage(made, done);
}

Result<CheckReport> check(const std::string& path, const ImportOptions& options) {
  const Loaded loaded = HEDDLE_TRY(load_model(path));
  CheckReport report;
  Importer importer(loaded.model, loaded.folder, options, &report.problems);
  const auto fails = [&](const Error& error) {
    report.problems.push_back({"", "", error.message});
  };
  if (HEDDLE_TRY(works_on_strings(path))) {
    const Result<Stage> stage = importer.run_stage({}, {});
    if (!stage) fails(stage.error());
    if (stage) {
      report.waiting = stage->waiting;
      report.host = labels_of(stage->calls);
    }
  } else if (const Result<prim::Graph> graph = importer.run(); !graph) {
    fails(graph.error());
  }
  report.nodes = importer.nodes();
  return report;
}

}  // namespace heddle::onnx
