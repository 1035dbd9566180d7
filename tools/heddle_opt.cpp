// heddle-opt: reads a primitive graph or a kernel as text, runs passes by name, prints the result.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>

#include "ir/rules.h"
#include "ir/text.h"
#include "kernel/parse.h"
#include "prim/alternatives.h"
#include "prim/builder.h"
#include "prim/passes.h"
#include "prim/rewrite.h"
#include "prim/text.h"
#include "support/options.h"

namespace heddle {
namespace {

/// Text beyond this is refused, not read.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

struct Flags {
  std::string file = "-", passes, constants, save_constants, disable, example;
  std::int64_t bisect = -1, max_inline = prim::PrintOptions{}.max_inline;
  bool verify_each = false, print_changed = false, list = false, counts = false, embed = false;
};

/// A pass over one level, as chosen on the command line.
template <class T>
struct Step {
  std::string name;
  std::function<Result<T>(const T&)> run;
};

/// Names between commas; '_' and '-' are the same.
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> names;
  std::stringstream in{std::string(list)};
  for (std::string name; std::getline(in, name, ',');) {
    std::replace(name.begin(), name.end(), '_', '-');
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

// Primitive graphs.

/// `row:NAME`: one rewrite row, once through the graph.
Result<prim::Graph> apply_row(std::string_view name, const prim::Graph& g) {
  for (const prim::RewriteRule* rule : prim::rewrite_rules())
    if (rule->name == name) return prim::drop_dead(prim::rewrite_once(g, {&rule, 1}));
  return fail(ErrorCode::usage, "row '{}': found no such rewrite row (see --list)", name);
}

/// `alternative:NAME`: what the row offers, as further outputs named `NAME of %<node>`.
Result<prim::Graph> add_alternatives(std::string_view name, const prim::Graph& g) {
  for (const prim::AlternativeRule& rule : prim::alternative_rules()) {
    if (rule.name != name) continue;
    prim::Graph out = g;
    for (const prim::Alternative& a : rule.find(out))
      out.outputs.push_back({fmt::format("{} of %{}", name, a.node.value), a.equal});
    return prim::drop_dead(out);
  }
  return fail(ErrorCode::usage, "alternative '{}': found no such row (see --list)", name);
}

auto step_of(const prim::Pass* pass, const std::string& disable) {
  return [pass, disable](const prim::Graph& g) { return pass->run(g, disable); };
}

Result<std::vector<Step<prim::Graph>>> graph_steps(std::string_view names,
                                                   const std::string& disable) {
  std::vector<Step<prim::Graph>> steps;
  for (const std::string& name : split(names)) {
    if (name.starts_with("row:")) {
      steps.push_back({name, [name](const auto& g) { return apply_row(name.substr(4), g); }});
    } else if (name.starts_with("alternative:")) {
      steps.push_back(
          {name, [name](const auto& g) { return add_alternatives(name.substr(12), g); }});
    } else if (name == "default") {
      for (const prim::Pass* pass : prim::default_passes())
        steps.push_back({std::string(pass->name), step_of(pass, disable)});
    } else {
      for (const prim::Pass* pass : HEDDLE_TRY(prim::parse_passes(name)))
        steps.push_back({name, step_of(pass, disable)});
    }
  }
  return steps;
}

// Kernels.

struct KernelPass {
  std::string_view name, help;
  Result<kernel::Kernel> (*run)(const kernel::Kernel& k);
};
constexpr KernelPass kKernelPasses[] = {
    {"simplify", "simplify index expressions with the loop ranges, drop what never runs",
     [](const kernel::Kernel& k) -> Result<kernel::Kernel> { return kernel::simplify(k); }},
    {"partition-loops", "split loops where a condition changes, so that interiors test nothing",
     [](const kernel::Kernel& k) -> Result<kernel::Kernel> { return kernel::partition_loops(k); }},
    {"verify", "check structure, types and bounds",
     [](const kernel::Kernel& k) -> Result<kernel::Kernel> {
       HEDDLE_TRY(kernel::verify(k));
       return k;
     }},
};

Result<std::vector<Step<kernel::Kernel>>> kernel_steps(std::string_view names) {
  std::vector<Step<kernel::Kernel>> steps;
  for (const std::string& name : split(names)) {
    const std::size_t before = steps.size();
    std::string known;
    for (const KernelPass& pass : kKernelPasses) {
      if (pass.name == name) steps.push_back({name, pass.run});
      known += (known.empty() ? "" : ", ") + std::string(pass.name);
    }
    if (steps.size() == before)
      return fail(ErrorCode::usage, "pass '{}': found no such kernel pass, want one of {}", name,
                  known);
  }
  return steps;
}

// Both levels.

/// Of the names of --disable those that no row has, between commas.
std::string without(const std::string& disable, const auto& rows) {
  std::string rest;
  std::stringstream in(disable);
  for (std::string name; std::getline(in, name, ',');)
    if (std::none_of(std::begin(rows), std::end(rows),
                     [&](const auto& row) { return row.name == name; }))
      rest += (rest.empty() ? "" : ",") + name;
  return rest;
}

/// Runs the steps; a pass changed something if the text differs, whatever it believes.
template <class T>
Result<T> run_steps(const std::vector<Step<T>>& steps, T value, const Flags& flags,
                    const std::function<std::string(const T&)>& print) {
  int number = 0;
  for (const Step<T>& step : steps) {
    if (flags.bisect >= 0 && number >= flags.bisect) break;
    ++number;
    if (lists(flags.disable, step.name)) continue;
    T next = HEDDLE_TRY(step.run(value));
    if (flags.verify_each)
      if (const Status status = verify(next); !status)
        return fail("after pass {} ({}): {}", number, step.name, status.error().message);
    if (flags.print_changed && print(next) != print(value))
      std::cerr << "# after " << number << " " << step.name << "\n" << print(next);
    value = std::move(next);
  }
  return value;
}

/// The file of constants that Heddle writes with a text: the text's own, or one for all dumps of a
/// folder. Empty if there is none.
std::string constants_of(const std::string& text) {
  if (text == "-") return {};
  const auto folder = std::filesystem::path(text).parent_path();
  for (const std::string& path :
       {prim::constants_beside(text), prim::constants_beside((folder / "prim").string())})
    if (std::filesystem::exists(path)) return path;
  return {};
}

Status run_on_graph(const std::string& text, const Flags& flags) {
  const auto steps = HEDDLE_TRY(graph_steps(flags.passes, flags.disable));
  HEDDLE_TRY(prim::check_disabled(without(flags.disable, steps)));
  prim::ConstantTable constants;
  const std::string path = flags.constants.empty() ? constants_of(flags.file) : flags.constants;
  if (!path.empty()) constants = HEDDLE_TRY(prim::load_constants(path));
  const prim::PrintOptions options{.max_inline = flags.max_inline, .embed = flags.embed};
  const std::function<std::string(const prim::Graph&)> print = [&](const prim::Graph& g) {
    return prim::print(g, options);
  };
  prim::Graph g = HEDDLE_TRY(prim::parse_graph(text, constants));
  if (flags.counts) {
    prim::RewriteCounts counts;
    prim::canonicalize(g, flags.disable, &counts);
    for (const auto& [name, times] : counts) std::cerr << name << " " << times << "\n";
  }
  g = HEDDLE_TRY(run_steps(steps, std::move(g), flags, print));
  if (!flags.save_constants.empty())
    HEDDLE_TRY(prim::save_constants(prim::large_constants(g, options), flags.save_constants));
  std::cout << print(g);
  return Ok{};
}

Status run_on_kernel(const std::string& text, const Flags& flags) {
  const auto steps = HEDDLE_TRY(kernel_steps(flags.passes));
  if (const std::string rest = without(flags.disable, kKernelPasses); !rest.empty())
    return fail(ErrorCode::usage, "--disable: found '{}', want kernel passes (see --list)", rest);
  const std::function<std::string(const kernel::Kernel&)> print = [](const kernel::Kernel& each) {
    return kernel::to_string(each);
  };
  std::string out;
  for (kernel::Kernel& k : HEDDLE_TRY(kernel::parse_kernels(text))) {
    HEDDLE_TRY(kernel::verify(k));  // passes rely on it
    out +=
        (out.empty() ? "" : "\n") + print(HEDDLE_TRY(run_steps(steps, std::move(k), flags, print)));
  }
  std::cout << out;
  return Ok{};
}

/// Lines that are comments ('#' or "//") become empty, so that messages keep their line numbers.
Result<std::string> read_text(const std::string& path) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find_first_not_of(" \t");
    if (first != std::string::npos && (line[first] == '#' || line.compare(first, 2, "//") == 0))
      line.clear();
    text += line + '\n';
    if (text.size() > kMaxTextBytes) return fail("'{}': more than {} bytes", path, kMaxTextBytes);
  }
  if (in.bad() || !in.eof()) return fail("cannot read '{}'", path);
  return text;
}

// Lists.

void list_everything() {
  const auto row = [](std::string_view name, std::string_view help) {
    std::cout << fmt::format("  {:<34} {}\n", name, help);
  };
  std::cout << "passes on primitive graphs:\n";
  for (const prim::Pass& p : prim::passes()) row(p.name, p.help);
  row("default", "what the compiler runs");
  for (const prim::RewriteRule* r : prim::rewrite_rules())
    row(fmt::format("row:{}", r->name), r->statement);
  for (const prim::AlternativeRule& r : prim::alternative_rules())
    row(fmt::format("alternative:{}", r.name), r.statement);
  std::cout << "passes on kernels:\n";
  for (const KernelPass& p : kKernelPasses) row(p.name, p.help);
  std::cout << "index rows (simplify):\n";
  for (const ir::IndexRule& r : ir::index_rules()) row(r.name, r.statement);
}

Status print_example(std::string_view name) {
  for (const prim::RewriteRule* rule : prim::rewrite_rules()) {
    if (rule->name != name) continue;
    prim::Graph g;
    prim::Builder b(g);
    const prim::NodeId y = rule->example(b);
    g.outputs = {{"y", y}};
    std::cout << prim::print(prim::drop_dead(g));
    return Ok{};
  }
  return fail(ErrorCode::usage, "row '{}': found no such rewrite row (see --list)", name);
}

Status run(const Flags& flags) {
  if (flags.list) return list_everything(), Ok{};
  if (!flags.example.empty()) return print_example(flags.example);
  const std::string text = HEDDLE_TRY(read_text(flags.file));
  const bool is_kernel = ir::Lexer(text).peek().text == "kernel";
  return is_kernel ? run_on_kernel(text, flags) : run_on_graph(text, flags);
}

int main_checked(int argc, char** argv) {
  CLI::App app{"Runs passes on the text of a primitive graph or a kernel.", "heddle-opt"};
  Flags flags;
  app.add_option("file", flags.file, "text file; - or nothing: standard input");
  app.add_option("--passes", flags.passes, "comma-separated names, run in this order");
  app.add_option("--constants", flags.constants,
                 "file with the constants that the text names (default: FILE.hedc, prim.hedc)");
  app.add_option("--save-constants", flags.save_constants, "write such a file for the result");
  app.add_option("--inline", flags.max_inline, "print constants of at most this many elements");
  app.add_flag("--embed", flags.embed, "print the bytes of larger ones, not their hash");
  app.add_option("--disable", flags.disable, "passes or rewrite rows to leave out");
  app.add_option("--bisect", flags.bisect, "stop before pass number N (from 0)");
  app.add_flag("--verify-each", flags.verify_each, "verify after each pass");
  app.add_flag("--print-changed", flags.print_changed, "on standard error, what each pass changed");
  app.add_flag("--counts", flags.counts, "on standard error, how often each rewrite row fires");
  app.add_flag("--list", flags.list, "list passes and rewrite rows");
  app.add_option("--example", flags.example, "print a graph on which this rewrite row fires");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(ErrorCode::usage);
  }
  const Status status = run(flags);
  if (status) return 0;
  std::cerr << "heddle-opt: error: " << status.error().message << "\n";
  return static_cast<int>(status.error().code);
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  try {
    return heddle::main_checked(argc, argv);
  } catch (const std::bad_alloc&) {
    std::cerr << "heddle-opt: error: out of memory\n";
    return static_cast<int>(heddle::ErrorCode::out_of_memory);
  } catch (const std::exception& e) {
    std::cerr << "heddle-opt: internal error (a bug of Heddle): " << e.what() << "\n";
    return 1;
  }
}
