// The functions of a kernel: heads, parameters, and what is between phases that share a launch.
#include <algorithm>

#include "codegen/cuda/emitter.h"

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

Result<KernelText> to_text(const Kernel& k, const std::string& prefix) {
  KernelText out;
  std::vector<BufferId> parameters(static_cast<std::size_t>(k.arguments()));
  std::vector<BufferId> locals;
  for (std::int32_t i = 0; i < k.buffers.size(); ++i) {
    const Buffer& b = k.buffers[BufferId{i}];
    if (b.argument >= 0) parameters[static_cast<std::size_t>(b.argument)] = BufferId{i};
    if (b.argument < 0 && b.scope == Scope::grid) {
      locals.push_back(BufferId{i});
      out.local_bytes.push_back(b.size * size_of(b.dtype));
    }
  }
  parameters.insert(parameters.end(), locals.begin(), locals.end());
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

}  // namespace heddle::codegen::cuda
