#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "driver/fusion.h"
#include "driver/report.h"
#include "driver/source_map.h"

namespace heddle::driver {
namespace {

using nlohmann::json;

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string color_of(const json& kernel) {
  const std::string bound = kernel["cost"]["bound"];
  return bound == "compute" ? "#cfe3f7" : bound == "memory" ? "#fbe3c8" : "#e6e6e6";
}

std::string short_sources(const json& kernel) {
  std::map<std::string, int> counts;
  std::vector<std::string> order;
  for (const json& source : kernel["sources"])
    if (counts[source["op"]]++ == 0) order.push_back(source["op"]);
  std::string text;
  for (std::size_t i = 0; i < order.size() && i < 4; ++i)
    text += fmt::format("{}{}{}", i ? " + " : "", order[i],
                        counts[order[i]] > 1 ? fmt::format(" ×{}", counts[order[i]]) : "");
  return order.size() > 4 ? text + " …" : text;
}

/// The kernels as a graph in Graphviz's language: an edge is a value that goes through memory.
std::string dot_of(const json& report) {
  std::map<int, std::set<std::size_t>> producer;
  std::set<std::pair<std::size_t, std::size_t>> drawn;  // several values are one edge
  std::string dot =
      "digraph plan {\n rankdir=TB; nodesep=0.2; ranksep=0.25;\n"
      " node [shape=box style=\"rounded,filled\" fontname=\"Helvetica\" fontsize=10 "
      "color=\"#888888\"];\n"
      " edge [color=\"#999999\" arrowsize=0.6 fontname=\"Helvetica\" fontsize=8];\n";
  const json& kernels = report["kernels"];
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    for (const json& output : kernels[k]["outputs"]) producer[output["id"]] = {k};
    dot += fmt::format(" k{} [label=\"{}  {}\\n{:.1f} µs\" fillcolor=\"{}\" href=\"#k{}\"];\n", k,
                       k, short_sources(kernels[k]), kernels[k]["cost"]["us"].get<double>(),
                       color_of(kernels[k]), k);
  }
  for (const json& join : report.value("joins", json::array()))
    for (const int part : join["parts"])
      producer[join["id"]].insert(producer[part].begin(), producer[part].end());
  for (std::size_t k = 0; k < kernels.size(); ++k)
    for (const json& input : kernels[k]["inputs"])
      if (input.contains("id"))
        for (const std::size_t from : producer[input["id"]])
          if (drawn.emplace(from, k).second)
            dot += fmt::format(" k{} -> k{} [tooltip=\"{}\"];\n", from, k,
                               input["type"].get<std::string>());
  return dot + "}\n";
}

constexpr std::size_t kManyKernels = 150;  // laid out with less care, which takes seconds
constexpr int kLayoutSeconds = 60;

/// Lays the graph out with Graphviz; empty where `dot` is not installed, or not done in time.
std::string svg_of(const std::string& dot, std::size_t kernels) {
  namespace fs = std::filesystem;
  const fs::path file = fs::temp_directory_path() / fmt::format("heddle-plan-{}.dot", ::getpid());
  std::ofstream(file) << dot;
  std::string svg;
  const char* quick =
      kernels > kManyKernels ? "-Gnslimit=1 -Gnslimit1=1 -Gmclimit=0.2 -Gsplines=line" : "";
  const std::string command =
      fmt::format("timeout {} dot {} -Tsvg '{}' 2>/dev/null", kLayoutSeconds, quick, file.string());
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    char chunk[65536];
    while (const std::size_t got = std::fread(chunk, 1, sizeof chunk, pipe)) svg.append(chunk, got);
    ::pclose(pipe);
  }
  std::error_code error;
  fs::remove(file, error);
  const std::size_t begin = svg.find("<svg");
  const bool whole = svg.find("</svg>") != std::string::npos;
  return begin == std::string::npos || !whole ? "" : svg.substr(begin);
}

/// Launches, resources and text of a CUDA kernel; nothing for other kernels.
std::string cuda_html(const json& kernel) {
  if (!kernel.contains("phases")) return "";
  std::string html =
      "<table><tr><th>function<th>blocks<th>threads<th>registers<th>spilled bytes<th>shared "
      "bytes<th>occupancy<th>limited by</tr>";
  for (const json& p : kernel["phases"])
    html += fmt::format(
        "<tr><td><code>{}</code><td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.0f} %<td>{}</tr>",
        p["symbol"].get<std::string>(), p["blocks"].get<std::int64_t>(), p["threads"].get<int>(),
        p.value("registers", 0), p.value("spill_bytes", 0), p["shared_bytes"].get<std::int64_t>(),
        100 * p.value("occupancy", 0.0), p.value("occupancy_limit", "-"));
  html += fmt::format("</table><p>roofline: {:.2f} µs ({} bound), {:.0f} % of the {} time</p>\n",
                      kernel["roofline"]["floor_us"].get<double>(),
                      kernel["roofline"]["bound"].get<std::string>(),
                      100 * kernel["roofline"]["share"].get<double>(),
                      kernel["cost"]["provenance"].get<std::string>());
  return html + "<details><summary>CUDA text</summary><pre>" +
         escaped(annotated(kernel["source"], kernel.value("source_map", json()))) +
         "</pre></details>\n";
}

/// What a training step's plan has fused; nothing for other programs.
std::string fusion_html(const json& report) {
  std::string items;
  for (const std::string& line : fusion_lines(report.value("fusion", json::object())))
    items += "<li>" + escaped(line) + "\n";
  return items.empty() ? "" : "<h2>Training step</h2>\n<ul>\n" + items + "</ul>\n";
}

std::string mode_html(const json& report) {
  if (!report.contains("mode")) return "";
  const json& mode = report["mode"];
  std::string html =
      fmt::format("<h2>Mode</h2>\n<p>{} ({})</p>\n", escaped(mode["chosen"].get<std::string>()),
                  escaped(mode["reason"].get<std::string>()));
  if (mode["measured"].empty()) return html;
  html += "<table class=mode><tr><th>measured<th>time of a run</tr>\n";
  for (const json& m : mode["measured"])
    html += fmt::format("<tr><td>{}<td class=us>{:.1f} µs</tr>\n",
                        escaped(m["mode"].get<std::string>()), m["us"].get<double>());
  return html + "</table>\n";
}

std::string kernel_html(std::size_t k, const json& kernel, double total) {
  const json& cost = kernel["cost"];
  std::string html = fmt::format(
      "<details id=\"k{}\"><summary><span class=n>{}</span><span class=us>{:.1f} µs</span>"
      "<span class=bar><i style=\"width:{:.1f}%;background:{}\"></i></span>{}</summary>\n",
      k, k, cost["us"].get<double>(), 100 * cost["us"].get<double>() / total, color_of(kernel),
      escaped(short_sources(kernel)));
  html +=
      fmt::format("<p>{} bound, {} cost; {:.2f} MB, {:.3f} GFLOP; schedule <code>{}</code></p>\n",
                  cost["bound"].get<std::string>(), cost["provenance"].get<std::string>(),
                  cost["bytes"].get<double>() / 1e6, cost["flops"].get<double>() / 1e9,
                  escaped(kernel["schedule"].get<std::string>()));
  html += cuda_html(kernel);
  html += "<p>covers</p><pre>";
  for (const json& source : kernel["sources"])
    html += fmt::format("{} {}\n", escaped(source["op"].get<std::string>()),
                        escaped(source["name"].get<std::string>()));
  html += "</pre><p>as primitives</p><pre>";
  for (const json& primitive : kernel["primitives"])
    html += escaped(primitive.get<std::string>()) + "\n";
  html += "</pre>";
  for (const json& r : kernel["rejected"])
    html += fmt::format(
        "<p class=rejected>rejected: a kernel of {} primitives at {:.1f} µs (plan {:+.1f} µs): "
        "{}</p>\n",
        r["primitives"].get<int>(), r["cost"]["us"].get<double>(), r["plan_delta_us"].get<double>(),
        escaped(r["reason"].get<std::string>()));
  return html + "</details>\n";
}

constexpr std::string_view kStyle = R"(
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
.plan{overflow:auto;max-height:70vh;border:1px solid #ddd;border-radius:6px;padding:.5rem}
.legend b{padding:.1rem .5rem;border-radius:4px;font-weight:400;margin-right:.6rem}
summary{cursor:pointer;display:flex;gap:.8rem;align-items:center;padding:.15rem 0}
.n{width:2.5rem;text-align:right;color:#888}.us{width:6rem;text-align:right}
.bar{width:12rem;background:#f4f4f4;height:.8rem}.bar i{display:block;height:100%}
details[open]{background:#fafafa;border-radius:6px;padding-bottom:.5rem}
details p,details pre,details table{margin:.4rem 0 .4rem 3.3rem}pre{overflow:auto;font-size:13px}th,td{padding:0 .8rem 0 0;text-align:left}.rejected{color:#844}
)";

/// A kernel that is clicked in the picture opens.
constexpr std::string_view kScript = R"(<script>
const show=()=>{const d=document.getElementById(location.hash.slice(1));if(d)d.open=true}
addEventListener('hashchange',show);show()
</script>
)";

}  // namespace

std::string explain_html(const json& report) {
  const json& plan = report["plan"];
  double total = 1e-9;
  for (const json& kernel : report["kernels"])
    total = std::max(total, kernel["cost"]["us"].get<double>());
  const std::string svg = svg_of(dot_of(report), report["kernels"].size());
  std::string html =
      "<!doctype html><html lang=en><meta charset=utf-8><title>Heddle plan</title><style>" +
      std::string(kStyle) + "</style>\n<h1>Plan</h1>\n";
  html += fmt::format(
      "<p>{} kernels for {} primitives; {:.1f} µs, lower bound {:.1f} µs (gap {:.2f} %). Strategy "
      "{}, {} "
      "candidates, {} regions of which {} distinct. Machine {}.</p>\n",
      plan["kernels"].get<int>(), plan["primitives"].get<int>(), plan["cost_us"].get<double>(),
      plan["lower_bound_us"].get<double>(), 100 * plan["gap"].get<double>(),
      escaped(plan["strategy"].get<std::string>()), plan["candidates"].get<int>(),
      plan["regions"].get<int>(), plan["unique_regions"].get<int>(),
      escaped(report["machine"].value("gpu", report["machine"].value("cpu", ""))));
  html += fusion_html(report);
  html += mode_html(report);
  html +=
      "<h2>Values that go through memory</h2>\n<p class=legend>kernels bound by <b "
      "style=\"background:#cfe3f7\">compute</b><b "
      "style=\"background:#fbe3c8\">"
      "memory</b><b style=\"background:#e6e6e6\">launch</b></p>\n";
  if (const std::string joins = joins_text(report); !joins.empty())
    html += "<p>" + joins + ".</p>\n";
  html += svg.empty() ? "<p>(no picture: Graphviz's dot is not installed, or took too long)</p>\n"
                      : "<div class=plan>" + svg + "</div>\n";
  html += "<h2>Kernels in execution order</h2>\n";
  for (std::size_t k = 0; k < report["kernels"].size(); ++k)
    html += kernel_html(k, report["kernels"][k], total);
  return html + std::string(kScript) + "</html>\n";
}

}  // namespace heddle::driver
