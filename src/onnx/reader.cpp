#include "onnx/reader.h"

#include <filesystem>

#include "onnx/importer.h"

namespace heddle::onnx {
Result<Loaded> load_model(const std::string& path) {
  const std::string file_path = model_file(path);
  auto model = HEDDLE_TRY(parse_model_file(file_path));
  const std::filesystem::path parent = std::filesystem::path(file_path).parent_path();
  return Loaded{std::move(model), parent.empty() ? "." : parent.string()};
}

Result<prim::Graph> import(const std::string& path, const ImportOptions& options) {
  const Loaded loaded = HEDDLE_TRY(load_model(path));
  Importer importer(loaded.model, loaded.folder, options, nullptr);
  importer.take_bytes();
  return importer.run();
}

Result<std::vector<prim::Graph>> import_sizes(
    const std::string& path, const ImportOptions& options,
    const std::vector<std::map<std::string, std::int64_t>>& sizes) {
  const Loaded loaded = HEDDLE_TRY(load_model(path));
  std::vector<prim::Graph> graphs;
  graphs.reserve(sizes.size());  // the first one is referred to
  Initializers initializers;
  ImportOptions common = options;
  if (sizes.size() > 1) {
    common.dimensions.insert(sizes.back().begin(), sizes.back().end());
    Importer longest(loaded.model, loaded.folder, common, nullptr);
    if (longest.run()) common.steps = longest.steps();
    // One more, so that the longest, too, has steps that are cut off: graphs are alike then.
    for (auto& [node, steps] : common.steps) ++steps;
    common.dimensions = options.dimensions;
  }
  for (const auto& dimensions : sizes) {
    ImportOptions at = common;
    at.dimensions.insert(dimensions.begin(), dimensions.end());
    Importer importer(loaded.model, loaded.folder, at, nullptr);
    if (!graphs.empty()) importer.share(graphs[0], initializers);
    Result<prim::Graph> graph = importer.run();
    if (!graph) {
      std::string text;
      for (const auto& [name, extent] : dimensions) text += fmt::format("{}={}, ", name, extent);
      return fail(graph.error().code, "at {}{}", text, graph.error().message);
    }
    if (graphs.empty()) initializers = importer.initializers();
    graphs.push_back(*std::move(graph));
  }
  return graphs;
}

Result<Dimensions> dimensions(const std::string& path, const ImportOptions& options) {
  return dimensions_of(HEDDLE_TRY(load_model(path)).model->graph(), options);
}

Result<prim::Graph> import_bytes(const std::byte* data, std::size_t size, const std::string& folder,
                                 const ImportOptions& options) {
  return Importer(HEDDLE_TRY(parse_model(data, size)), folder, options, nullptr).run();
}

Result<Stage> import_stage(const Loaded& model, const ImportOptions& options,
                           const MadeValues& made, const std::set<std::string>& done) {
  return Importer(model.model, model.folder, options, nullptr).run_stage(made, done);
}

Result<Stage> import_stage(const std::string& path, const ImportOptions& options) {
  return import_stage(HEDDLE_TRY(load_model(path)), options, {}, {});
}

Result<CheckReport> check(const std::string& path, const ImportOptions& options) {
  const Loaded loaded = HEDDLE_TRY(load_model(path));
  CheckReport report;
  Importer importer(loaded.model, loaded.folder, options, &report.problems);
  const Result<Stage> stage = importer.run_stage({}, {});
  if (stage) {
    report.staged = !stage->is_last();
    report.waiting = stage->waiting;
    report.host = labels_of(stage->calls);
  } else {
    report.problems.push_back({"", "", stage.error().message});
  }
  importer.note_unknown_operators();
  report.nodes = importer.nodes();
  return report;
}

}  // namespace heddle::onnx
