#include "training_checks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>

#include "prim/rewrite.h"

namespace heddle::tool {
namespace {

using prim::NodeId;

/// Error of the first element of a port's samples that is none of those wanted.
Status want_each(const Data& data, const std::vector<runtime::Port>& ports, const std::string& name,
                 const std::function<Status(const Tensor&, std::int64_t, std::int64_t)>& want) {
  for (std::size_t p = 0; p < ports.size(); ++p) {
    if (ports[p].name != name) continue;
    const Tensor& t = data.tensors[p];
    for (std::int64_t i = 0; i < t.count(); ++i)
      HEDDLE_TRY(want(t, i, i / (t.count() / data.samples)));
  }
  return Ok{};
}

/// What a node is the view or cast of.
NodeId source_of(const prim::Graph& g, NodeId id) {
  for (;;) {
    const prim::Node& n = g[id];
    const auto* view = std::get_if<prim::View>(&n.op);
    const bool one = view && view->pieces.size() == 1 && view->pieces[0].inside.empty();
    if (!one && !prim::is_map(n, ir::ScalarFn::cast)) return id;
    id = n.args[0];
  }
}

/// The input that an index is, or is where it is not negative (select(i < 0, i + extent, i)).
const prim::Input* input_of(const prim::Graph& g, NodeId index) {
  NodeId id = source_of(g, index);
  if (prim::is_map(g[id], ir::ScalarFn::select)) {
    const NodeId negative = source_of(g, g[id].args[0]), i = source_of(g, g[id].args[2]);
    if (!prim::is_map(g[negative], ir::ScalarFn::less) || source_of(g, g[negative].args[0]) != i ||
        prim::splat_value(g, g[negative].args[1]) != 0.0)
      return nullptr;
    id = i;
  }
  return std::get_if<prim::Input>(&g[id].op);
}

}  // namespace

Status want_classes(const Data& data, const std::vector<runtime::Port>& ports, std::int64_t classes,
                    std::optional<std::int64_t> ignored, const std::string& path) {
  return want_each(
      data, ports, "target", [&](const Tensor& t, std::int64_t i, std::int64_t sample) -> Status {
        const std::int64_t found = t.int_at(i);
        if ((found >= 0 && found < classes) || found == ignored) return Ok{};
        return fail("{}: sample {}: class {}, want 0 to {}", path, sample, found, classes - 1);
      });
}

Status want_probabilities(const Data& data, const std::vector<runtime::Port>& ports,
                          const std::string& path) {
  return want_each(data, ports, "target",
                   [&](const Tensor& t, std::int64_t i, std::int64_t sample) -> Status {
                     const double found = t.at(i);
                     if (found >= 0 && found <= 1) return Ok{};
                     return fail("{}: sample {}: {}, want 0 to 1", path, sample, found);
                   });
}

std::map<std::string, std::int64_t> positions_of(const prim::Graph& graph) {
  std::map<std::string, std::int64_t> out;
  for (const NodeId id : prim::live_nodes(graph)) {
    const prim::Node& n = graph[id];
    const auto* gather = std::get_if<prim::Gather>(&n.op);
    for (std::size_t k = 0; gather && k < gather->axes.size(); ++k) {
      const prim::Input* input = input_of(graph, n.args[1 + k]);
      if (!input || is_float(graph.inputs[static_cast<std::size_t>(input->slot)].type.dtype))
        continue;
      const std::int64_t rows =
          graph[n.args[0]].type.shape[static_cast<std::size_t>(gather->axes[k])];
      const auto [at, fresh] =
          out.emplace(graph.inputs[static_cast<std::size_t>(input->slot)].name, rows);
      if (!fresh) at->second = std::min(at->second, rows);
    }
  }
  return out;
}

Status want_positions(const Data& data, const std::vector<runtime::Port>& ports,
                      const std::map<std::string, std::int64_t>& rows) {
  for (const auto& [name, count] : rows)
    HEDDLE_TRY(want_each(data, ports, name,
                         [&](const Tensor& t, std::int64_t i, std::int64_t sample) -> Status {
                           const std::int64_t found = t.int_at(i);
                           if (found >= -count && found < count) return Ok{};
                           return fail("'{}': sample {}: found {}, want a row of {} ({} to {})",
                                       name, sample, found, count, -count, count - 1);
                         }));
  return Ok{};
}

namespace {

/// Files are written under this name first.
Status want_made(const char* flag, const std::string& path) {
  const std::string part = path + ".part";
  std::error_code failed;
  const bool there = std::filesystem::exists(part, failed);
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0)
    return fail("{} {}: '{}' cannot be written: {}", flag, path, part, std::strerror(errno));
  ::close(file);
  if (!there) ::unlink(part.c_str());
  return Ok{};
}

}  // namespace

Status want_writable(const char* flag, std::string& path, const std::vector<std::string>& others) {
  namespace fs = std::filesystem;
  if (path.empty()) return Ok{};
  std::error_code failed;
  constexpr int kMostLinks = 40;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, failed); ++i)
    path = (fs::path(path).parent_path() / fs::read_symlink(path, failed)).string();
  if (fs::is_directory(path, failed)) return fail("{} {}: a folder, want a file", flag, path);
  if (fs::exists(path, failed) && !fs::is_regular_file(path, failed))
    return fail("{} {}: no regular file", flag, path);
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::is_directory(folder, failed))
    return fail("{} {}: '{}' is no folder", flag, path, folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return fail("{} {}: folder '{}' cannot be written to: {}", flag, path, folder,
                std::strerror(errno));
  for (const std::string& other : others)
    for (const std::string& own : {path, path + ".part"})
      if (!other.empty() &&
          fs::weakly_canonical(other, failed) == fs::weakly_canonical(own, failed))
        return fail("{} {}: the same file is {} already", flag, own, other);
  return want_made(flag, path);
}

std::string name_of_not_finite(const std::vector<Tensor>& batch,
                               const std::vector<runtime::Port>& ports) {
  for (std::size_t p = 0; p < batch.size(); ++p)
    for (std::int64_t i = 0; is_float(batch[p].dtype()) && i < batch[p].count(); ++i)
      if (!std::isfinite(batch[p].at(i))) return ports[p].name;
  return "";
}

}  // namespace heddle::tool
