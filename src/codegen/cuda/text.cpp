// The functions of a kernel: heads, parameters, and what is between phases that share a launch.
#include <algorithm>

#include "codegen/cuda/emitter.h"
#include "kernel/loads_first.h"

namespace heddle::codegen::cuda {

using namespace kernel;

namespace {

/// The function of one phase, or of all that share a launch.
void append_function(KernelText& out, const Kernel& k, const std::vector<BufferId>& parameters,
                     std::vector<PhaseText> phases, std::string symbol) {
  PhaseInfo info = phases.front().info;
  info.symbol = std::move(symbol);
  info.resident = k.resident;
  info.cooperative = k.resident && phases.size() > 1;
  std::set<std::int32_t> stored;
  for (const PhaseText& p : phases) {
    info.tasks = std::max(info.tasks, p.info.tasks);
    info.shared_bytes = std::max(info.shared_bytes, p.info.shared_bytes);
    stored.insert(p.stored.begin(), p.stored.end());
  }
  std::vector<std::string> list;
  for (BufferId id : parameters)
    list.push_back(fmt::format("{}{}* __restrict__ b{}", stored.contains(id.value) ? "" : "const ",
                               type_of(k.buffers[id].dtype), id.value));
  for (std::size_t i = 0; i < info.maps.size(); ++i)
    list.push_back(fmt::format("const __grid_constant__ hd::TensorMap m{}", i));
  if (info.cooperative) list.push_back("hd::u32* counter");
  const auto add = [&](const std::string& text,
                       const std::vector<std::int32_t>* origins = nullptr) {
    out.text += text;
    if (origins)
      out.origins.insert(out.origins.end(), origins->begin(), origins->end());
    else
      out.origins.insert(out.origins.end(),
                         static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')), -1);
  };
  add(fmt::format("extern \"C\" __global__ void __launch_bounds__({}{}) {}({}) {{\n",
                  std::max(1, info.threads), phases.front().shares_registers ? ", 1" : "",
                  info.symbol, fmt::join(list, ",\n    ")));
  for (std::size_t p = 0; p < phases.size(); ++p) {
    if (p > 0) add("  hd::grid_barrier(counter);\n");
    if (info.cooperative) add("  {\n");
    add(phases[p].text, &phases[p].origins);
    if (info.cooperative) add("  }\n");
  }
  add("}\n");
  out.phases.push_back(std::move(info));
}

}  // namespace

namespace {

/// The arguments in their order, then the kernel's own buffers, whose sizes `out` gets.
std::vector<BufferId> parameters_of(const Kernel& k, KernelText& out) {
  std::vector<BufferId> parameters(static_cast<std::size_t>(k.arguments()));
  for (std::int32_t i = 0; i < k.buffers.size(); ++i) {
    const Buffer& b = k.buffers[BufferId{i}];
    if (b.argument >= 0) parameters[static_cast<std::size_t>(b.argument)] = BufferId{i};
    if (b.argument < 0 && b.scope == Scope::grid) {
      parameters.push_back(BufferId{i});
      out.local_bytes.push_back(b.size * size_of(b.dtype));
    }
  }
  return parameters;
}

/// A device function of a phase, and what unpacks its arguments; `paged`: parameters that may lie
/// in pages.
void append_stage(KernelText& out, const Kernel& k, const std::vector<BufferId>& parameters,
                  const For& loop, PhaseText phase, std::string symbol,
                  const std::vector<int>& paged) {
  Kernel one = k;
  one.body = {Stmt{loop}};
  const std::vector<bool> used = used_buffers(one);
  std::string declared, given, names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const BufferId id = parameters[i];
    if (!used[static_cast<std::size_t>(id.value)]) continue;
    const std::string type =
        (phase.stored.contains(id.value) ? "" : "const ") + type_of(k.buffers[id].dtype);
    declared += fmt::format("{}* __restrict__ b{},\n    ", type, id.value);
    const auto page = std::ranges::find(paged, static_cast<int>(i));
    if (page != paged.end()) {
      given +=
          fmt::format("static_cast<{}*>(pages.of({}, args[{}])), ", type, page - paged.begin(), i);
      continue;
    }
    given += fmt::format("static_cast<{}*>(args[{}]), ", type, i);
    names += fmt::format("{}b{}", names.empty() ? "" : ", ", id.value);
  }
  const std::string head =
      fmt::format("HD_STAGE void {}({}int first, int last) {{\n  hd::assume_global({});\n", symbol,
                  declared, names);
  const std::string tail = fmt::format(
      "}}\nHD_FN void {0}_stage(void* const* args, {2}int first, int last) {{\n  {0}({1}first, "
      "last);\n}}\n",
      symbol, given, paged.empty() ? "" : "const hd::MonolithPages& pages, ");
  const auto lines = [](const std::string& text) {
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  };
  out.text += head + phase.text + tail;
  out.origins.insert(out.origins.end(), lines(head), -1);
  out.origins.insert(out.origins.end(), phase.origins.begin(), phase.origins.end());
  out.origins.insert(out.origins.end(), lines(tail), -1);
  phase.info.symbol = std::move(symbol);
  out.phases.push_back(std::move(phase.info));
}

}  // namespace

Result<KernelText> to_text(const Kernel& k, const std::string& prefix) {
  KernelText out;
  const std::vector<BufferId> parameters = parameters_of(k, out);
  out.text = fmt::format("\n// {}\n", k.name);
  out.origins = {-1, -1};
  std::vector<PhaseText> phases;
  for (const Stmt& s : k.body) {
    const For* phase = std::get_if<For>(&s.op);
    if (!phase) continue;
    phases.push_back(HEDDLE_TRY(PhaseEmitter(k, parameters, *phase).run()));
    if (!k.resident)
      append_function(out, k, parameters, {std::exchange(phases, {})},
                      fmt::format("{}_{}", prefix, out.phases.size()));
  }
  if (k.resident) append_function(out, k, parameters, std::move(phases), prefix + "_0");
  return out;
}

Result<KernelText> to_stages(const Kernel& k, const std::string& prefix, const StageForm& form) {
  KernelText out;
  const std::vector<BufferId> parameters = parameters_of(k, out);
  out.text = fmt::format("\n// {}\n", k.name);
  out.origins = {-1, -1};
  for (const Stmt& s : k.body) {
    const For* phase = std::get_if<For>(&s.op);
    if (phase == nullptr) continue;
    const auto together = form.factor > 1 ? loads_first(k, *phase, form.factor) : std::nullopt;
    const Kernel& with = together ? together->kernel : k;
    PhaseEmitter emitter(with, parameters, *phase, form, together ? &together->body : nullptr);
    const std::size_t number = out.phases.size();
    append_stage(out, k, parameters, *phase, HEDDLE_TRY(emitter.run()),
                 fmt::format("{}_{}", prefix, number),
                 form.pages(number) ? form.paged[number] : std::vector<int>{});
  }
  return out;
}

std::string monolith_text(const std::vector<StageCall>& stages, const std::string& symbol,
                          int threads, int blocks, const RingForm& ring) {
  const bool pages = ring.pages > 0;
  constexpr int kFillers = 32;
  std::string text = fmt::format(
      "\nextern \"C\" __global__ void __launch_bounds__({}, {}) {}(const __grid_constant__ "
      "hd::Monolith m) {{\n",
      threads + (pages ? kFillers : 0), blocks, symbol);
  text += pages ? fmt::format("  hd::ring_walk<hd::Ring<{}, {}, {}, {}>>", ring.pages,
                              ring.page_bytes, ring.at, threads)
                : std::string("  hd::monolith_walk");
  text += fmt::format(
      "(m, [](int function, void* const* args, {}int first, int last) {{\n"
      "    switch (function) {{\n",
      pages ? "const hd::MonolithPages& pages, " : "");
  for (std::size_t i = 0; i < stages.size(); ++i)
    text += fmt::format("      case {}:\n        return {}_stage(args, {}first, last);\n", i,
                        stages[i].symbol,
                        !stages[i].paged ? ""
                        : pages          ? "pages, "
                                         : "hd::MonolithPages{}, ");
  return text + "    }\n  });\n}\n";
}

}  // namespace heddle::codegen::cuda
