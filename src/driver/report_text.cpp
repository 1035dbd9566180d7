#include <algorithm>

#include "driver/fusion.h"
#include "driver/report.h"
#include "driver/source_map.h"

namespace heddle::driver {
namespace {

using nlohmann::json;

bool covers(const json& kernel, const std::string& node) {
  return std::any_of(kernel["sources"].begin(), kernel["sources"].end(),
                     [&](const json& source) { return source["name"] == node; });
}

/// Columns of a CUDA kernel: the most registers and shared memory, the least occupancy of its
/// phases, and the share of the roofline.
std::string resources(const json& kernel) {
  if (!kernel.contains("phases")) return "";
  int registers = 0;
  std::int64_t shared = 0;
  double occupancy = 1;
  for (const json& p : kernel["phases"]) {
    registers = std::max(registers, p.value("registers", 0));
    shared = std::max(shared, p["shared_bytes"].get<std::int64_t>());
    occupancy = std::min(occupancy, p.value("occupancy", 1.0));
  }
  return fmt::format("{:5} {:7.1f} {:5.0f} {:7.1f} ", registers, static_cast<double>(shared) / 1024,
                     100 * occupancy, 100 * kernel["roofline"]["share"].get<double>());
}

std::string row(std::size_t number, const json& kernel) {
  const json& cost = kernel["cost"];
  return fmt::format("{:4} {:9.1f} {:>8} {:>9} {:9.2f} {:9.3f} {} {}\n", number,
                     cost["us"].get<double>(), cost["bound"].get<std::string>(),
                     cost["provenance"].get<std::string>(), cost["bytes"].get<double>() / 1e6,
                     cost["flops"].get<double>() / 1e9, resources(kernel), sources_text(kernel, 6));
}

/// "blocks 96 × 256 threads, 40 registers, …" for each phase of a CUDA kernel.
std::string launches(const json& kernel) {
  std::string text;
  for (const json& p : kernel.value("phases", json::array())) {
    text += fmt::format("     {}{} x {} threads, {} bytes of shared memory",
                        p["resident"].get<bool>() ? "resident, at most " : "",
                        p["blocks"].get<std::int64_t>(), p["threads"].get<int>(),
                        p["shared_bytes"].get<std::int64_t>());
    if (p.contains("registers"))
      text +=
          fmt::format(", {} registers, {} bytes spilled, occupancy {:.0f} % ({} blocks, by {})",
                      p["registers"].get<int>(), p["spill_bytes"].get<int>(),
                      100 * p["occupancy"].get<double>(), p["blocks_per_multiprocessor"].get<int>(),
                      p["occupancy_limit"].get<std::string>());
    text += "\n";
  }
  return text;
}

std::string details(const json& kernel) {
  std::string text =
      fmt::format("     kernel {}: {} (by {})\n", kernel["name"].get<std::string>(),
                  kernel["schedule"].get<std::string>(), kernel.value("schedule_from", "lowering"));
  text += launches(kernel);
  for (const json& note : kernel.value("ring", json::array()))
    text += fmt::format("     {}\n", note.get<std::string>());
  for (const json& source : kernel["sources"])
    text += fmt::format("     covers {} '{}'\n", source["op"].get<std::string>(),
                        source["name"].get<std::string>());
  for (const json& primitive : kernel["primitives"])
    text += fmt::format("       {}\n", primitive.get<std::string>());
  for (const json& r : kernel["rejected"])
    text +=
        fmt::format("     rejected: a kernel of {} primitives, {:.1f} us, plan {:+.1f} us: {}\n",
                    r["primitives"].get<int>(), r["cost"]["us"].get<double>(),
                    r["plan_delta_us"].get<double>(), r["reason"].get<std::string>());
  if (kernel.contains("source"))
    text += annotated(kernel["source"], kernel.value("source_map", json()));
  return text;
}

}  // namespace

namespace {

std::string mode_text(const json& mode) {
  std::string text = fmt::format("mode: {} ({})\n", mode["chosen"].get<std::string>(),
                                 mode["reason"].get<std::string>());
  for (const json& m : mode["measured"])
    text +=
        fmt::format("{:>12.1f} us as {}\n", m["us"].get<double>(), m["mode"].get<std::string>());
  if (const std::string tuning = mode.value("tuning", ""); !tuning.empty())
    text += fmt::format("       {}\n", tuning);
  return text;
}

std::string memory_text(const json& memory) {
  const auto mb = [&](const char* part) { return 1e-6 * memory[part].get<double>(); };
  std::string text = fmt::format(
      "memory: {:.1f} MB: {:.1f} constants, {:.1f} inputs and outputs, {:.1f} values in between, "
      "{:.1f} scratch\n",
      mb("bytes"), mb("constants"), mb("ports"), mb("arena"), mb("scratch"));
  if (memory["limit"].get<std::int64_t>() > 0)
    text += fmt::format(
        "      within {:.1f} MB: {} kernels run again, and the plan counts {} us for a byte\n",
        mb("limit"), memory["again"].get<int>(), memory["us_per_byte"].get<double>());
  return text;
}

/// Of a concatenation that `node` names which kernels store its parts; empty where it is none.
std::string parts_text(const json& report, const std::string& node) {
  std::string text;
  const json& kernels = report["kernels"];
  for (const json& join : report.value("joins", json::array())) {
    if (!covers(join, node)) continue;
    text += fmt::format("in place: '{}' has no kernel, its parts are stored where it has them by",
                        node);
    for (std::size_t k = 0; k < kernels.size(); ++k)
      for (const json& output : kernels[k]["outputs"])
        if (std::ranges::find(join["parts"], output["id"]) != join["parts"].end())
          text += fmt::format(" #{}", k);
    text += '\n';
  }
  return text;
}

}  // namespace

std::string joins_text(const json& report) {
  const std::size_t joins = report.value("joins", json::array()).size();
  if (joins == 0) return "";
  return fmt::format("{} concatenation{} stored part by part, without a kernel", joins,
                     joins == 1 ? "" : "s");
}

std::string sources_text(const json& kernel, std::size_t limit) {
  std::string text;
  std::size_t shown = 0;
  for (const json& source : kernel["sources"]) {
    if (shown++ == limit) return text + fmt::format(" +{} more", kernel["sources"].size() - limit);
    text += fmt::format("{}{}", text.empty() ? "" : " + ", source["op"].get<std::string>());
  }
  return text;
}

Result<std::string> explain_text(const json& report, const std::string& node, int top) {
  const json& plan = report["plan"];
  std::string text = fmt::format(
      "plan: {} kernels for {} primitives, {:.1f} us {} (lower bound {:.1f} us, gap {:.2f} %)\n"
      "      strategy {}, {} candidates ({} cuts per primitive), {} regions of which {} distinct\n",
      plan["kernels"].get<int>(), plan["primitives"].get<int>(), plan["cost_us"].get<double>(),
      plan.value("provenance", "modelled"), plan["lower_bound_us"].get<double>(),
      100 * plan["gap"].get<double>(), plan["strategy"].get<std::string>(),
      plan["candidates"].get<int>(), plan["cuts_per_node"].get<int>(), plan["regions"].get<int>(),
      plan["unique_regions"].get<int>());
  if (report.value("precision", "f32") != "f32") {
    text +=
        fmt::format("      precision {}: kernels write", report["precision"].get<std::string>());
    const char* comma = "";
    for (const auto& [type, count] : report["stored"].items()) {
      text += fmt::format("{} {} {} values", comma, count.get<int>(), type);
      comma = ",";
    }
    text += "; arithmetic is f32\n";
  }
  const char* mark = "step: ";
  const auto step = fusion_lines(report.value("fusion", json::object()));
  for (const std::string& line : step) {
    text += mark + line + "\n";
    mark = "      ";
  }
  const std::string joins = joins_text(report), parts = parts_text(report, node);
  if (!node.empty())
    text += parts;
  else if (!joins.empty())
    text += "in place: " + joins + "\n";
  if (report.contains("memory")) text += memory_text(report["memory"]);
  if (report.contains("mode")) text += mode_text(report["mode"]);
  if (const std::string ring = report.value("ring", ""); !ring.empty())
    text += fmt::format("ring: {}\n", ring);
  if (const auto schedules = report.find("schedules");
      schedules != report.end() && !(*schedules)["source"].get<std::string>().empty())
    text += fmt::format("tuned schedules: {} kernels ({})\n", (*schedules)["kernels"].get<int>(),
                        (*schedules)["source"].get<std::string>());
  const json& kernels = report["kernels"];
  const bool cuda = !kernels.empty() && kernels[0].contains("phases");
  if (cuda)
    text += fmt::format(
        "GPU:  {}, {}{}; --node NAME shows a kernel's text, {} writes all\n",
        report["machine"]["gpu"].get<std::string>(), report["machine"]["arch"].get<std::string>(),
        report["machine"]["here"].get<bool>() ? "" : ", not in this machine",
        step.empty() ? "compile --emit cuda" : "--dump source");  // compile takes no steps
  text += fmt::format("{:>4} {:>9} {:>8} {:>9} {:>9} {:>9} {} covers\n", "#", "us", "bound",
                      "cost is", "MB", "GFLOP", cuda ? " regs  shKB  occ% roof%   " : "");
  std::vector<std::size_t> order;
  for (std::size_t k = 0; k < kernels.size(); ++k)
    if (node.empty() || covers(kernels[k], node)) order.push_back(k);
  if (!node.empty() && order.empty() && parts.empty())
    return fail(ErrorCode::usage, "--node: no kernel covers '{}' (it may have been folded away)",
                node);
  if (top > 0 && order.size() > static_cast<std::size_t>(top)) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return kernels[a]["cost"]["us"] > kernels[b]["cost"]["us"];
    });
    order.resize(static_cast<std::size_t>(top));
  }
  for (std::size_t k : order) {
    text += row(k, kernels[k]);
    if (!node.empty()) text += details(kernels[k]);
  }
  if (order.size() < kernels.size() && node.empty())
    text += fmt::format("     ({} cheaper kernels not shown; --node NAME shows one in detail)\n",
                        kernels.size() - order.size());
  return text;
}

}  // namespace heddle::driver
