// heddle-opt: runs named passes on the text form of a primitive graph or a kernel.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <sstream>

#include "ir/rules.h"
#include "kernel/kernel.h"
#include "prim/alternatives.h"
#include "prim/builder.h"
#include "prim/passes.h"
#include "prim/rewrite.h"
#include "prim/text.h"

namespace heddle {
namespace {

struct Flags {
  std::string file = "-", passes = "canonicalize", constants, save_constants, disable;
  std::int64_t bisect = -1, max_inline = 32;
  bool verify_each = false, print_changed = false, list = false, counts = false;
};

struct KernelPass {
  std::string_view name, help;
  kernel::Kernel (*run)(const kernel::Kernel&);
};
constexpr KernelPass kKernelPasses[] = {
    {"partition-loops", "split loops where a condition changes", kernel::partition_loops},
    {"simplify", "simplify index expressions, drop what never runs", kernel::simplify},
};

Result<std::string> read_all(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail("cannot read '{}'", path);
  text << in.rdbuf();
  return text.str();
}

Status run_on_kernel(std::string_view text, const Flags& flags) {
  kernel::Kernel k = HEDDLE_TRY(kernel::parse_kernel(text));
  HEDDLE_TRY(kernel::verify(k));
  std::stringstream names(flags.passes == "canonicalize" ? "simplify" : flags.passes);
  for (std::string name; std::getline(names, name, ',');) {
    const KernelPass* found = nullptr;
    for (const KernelPass& p : kKernelPasses)
      if (p.name == name) found = &p;
    if (found == nullptr)
      return fail(ErrorCode::usage, "pass '{}': found no such pass on kernels (see --list)", name);
    k = found->run(k);
    if (flags.verify_each) HEDDLE_TRY(kernel::verify(k));
  }
  std::cout << kernel::to_string(k);
  return Ok{};
}

Status run_on_graph(std::string_view text, const Flags& flags) {
  prim::ConstantTable constants;
  if (!flags.constants.empty()) constants = HEDDLE_TRY(prim::load_constants(flags.constants));
  prim::Graph g = HEDDLE_TRY(prim::parse_graph(text, constants));
  const prim::PrintOptions print{.max_inline = flags.max_inline};
  prim::PassOptions options;
  options.verify_each = flags.verify_each;
  options.bisect = flags.bisect;
  options.disable = flags.disable;
  if (flags.print_changed)
    options.changed = [&](int number, std::string_view name, const prim::Graph& after) {
      std::cerr << "# after " << number << " " << name << "\n" << prim::print(after, print);
    };
  const auto list = HEDDLE_TRY(prim::parse_passes(flags.passes));
  if (flags.counts) {
    prim::RewriteCounts counts;
    prim::canonicalize(g, flags.disable, &counts);
    for (const auto& [name, times] : counts) std::cerr << name << " " << times << "\n";
  }
  g = HEDDLE_TRY(prim::run_passes(list, std::move(g), options));
  if (!flags.save_constants.empty())
    HEDDLE_TRY(prim::save_constants(prim::large_constants(g, print), flags.save_constants));
  std::cout << prim::print(g, print);
  return Ok{};
}

void list_everything() {
  std::cout << "passes on primitive graphs:\n";
  for (const prim::Pass& p : prim::passes())
    std::cout << fmt::format("  {:<22} {}\n", p.name, p.help);
  std::cout << "passes on kernels:\n";
  for (const KernelPass& p : kKernelPasses)
    std::cout << fmt::format("  {:<22} {}\n", p.name, p.help);
  std::cout << "rewrite rows (canonicalize):\n";
  for (const prim::RewriteRule* r : prim::rewrite_rules())
    std::cout << fmt::format("  {:<22} {}\n", r->name, r->statement);
  std::cout << "alternatives:\n";
  for (const prim::AlternativeRule& r : prim::alternative_rules())
    std::cout << fmt::format("  {:<22} {}\n", r.name, r.statement);
  std::cout << "index rows (simplify):\n";
  for (const ir::IndexRule& r : ir::index_rules())
    std::cout << fmt::format("  {:<22} {}\n", r.name, r.statement);
}

Status run(const Flags& flags) {
  const std::string text = HEDDLE_TRY(read_all(flags.file));
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_kernel = first != std::string::npos && text.compare(first, 7, "kernel ") == 0;
  return is_kernel ? run_on_kernel(text, flags) : run_on_graph(text, flags);
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  using namespace heddle;
  CLI::App app{"Runs passes on the text of a primitive graph or a kernel"};
  Flags flags;
  app.add_option("file", flags.file, "text file; - reads standard input");
  app.add_option("--passes", flags.passes, "comma-separated names (--list shows them)");
  app.add_option("--constants", flags.constants, "file with the constants that the text names");
  app.add_option("--save-constants", flags.save_constants, "write the result's constants");
  app.add_option("--inline", flags.max_inline, "print constants of at most this many elements");
  app.add_option("--disable", flags.disable, "passes to leave out");
  app.add_option("--bisect", flags.bisect, "stop before pass number N (from 0)");
  app.add_flag("--verify-each", flags.verify_each, "verify after each pass");
  app.add_flag("--print-changed", flags.print_changed, "print the graph after each pass");
  app.add_flag("--counts", flags.counts, "print how often each rewrite row fires");
  app.add_flag("--list", flags.list, "list passes and rewrite rows");
  app.add_flag("--embed", args.embed, "print the bytes of larger constants, not their hash");
  app.add_option("--example", args.example, "print a graph on which this rewrite row fires");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(ErrorCode::usage);
  }
  if (flags.list) {
    list_everything();
    return 0;
  }
  try {
    const Status status = run(flags);
    if (status) return 0;
    std::cerr << "heddle-opt: " << status.error().message << "\n";
    return static_cast<int>(status.error().code);
  } catch (const InternalError& e) {
    std::cerr << "heddle-opt: internal error: " << e.what() << "\n";
    return 1;
  }
}
