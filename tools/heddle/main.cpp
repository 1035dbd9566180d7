#include <cstdio>
#include <exception>
#include <new>

#include "common.h"
#include "support/log.h"

namespace heddle::tool {

std::vector<VerbRow> verbs() {
  return {
      {"run", "compile if needed, run once, print or save the outputs", add_run},
      {"compile", "write a compiled artefact, or another form of the program", add_compile},
      {"bench", "latency, compile time and memory; --vs runs peers in the same run", add_bench},
      {"check", "everything that stands in the way of this model, at once", add_check},
      {"verify", "every kernel against the reference interpreter", add_verify},
      {"explain", "the plan: kernels, what they cover, cost, and what was rejected", add_explain},
      {"profile", "time per kernel; Chrome trace", add_profile},
      {"tune", "measure candidates and keep the times, so that later plans are better", add_tune},
      {"train", "build the training step (forward, backward, update) as one program and run it",
       add_train},
      {"ops", "supported operators", add_ops},
      {"doctor", "devices, libraries and versions", add_doctor},
      {"cache", "the cache of compiled kernels and the tuning database", add_cache},
  };
}

namespace {

int report(const Error& error) {
  std::fprintf(stderr, "heddle: error: %s\n", error.message.c_str());
  return static_cast<int>(error.code);
}

int main_checked(int argc, char** argv) {
  Result<Options> environment = options_from_environment();
  if (!environment) return report(environment.error());
  global_options() = *environment;

  CLI::App app{"Heddle: an optimising compiler and runtime for tensor programs.", "heddle"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("heddle ") + HEDDLE_VERSION);
  app.failure_message(CLI::FailureMessage::simple);
  std::vector<std::pair<CLI::App*, Verb>> chosen;
  for (const VerbRow& row : verbs()) {
    CLI::App* verb = app.add_subcommand(row.name, row.help);
    for (const OptionRow& option : option_rows())
      verb->add_option_function<std::string>(
              "--" + std::string(option.name),
              [&option](const std::string& text) {
                if (Status status = option.set(global_options(), text); !status)
                  throw CLI::ValidationError(status.error().message);
              },
              fmt::format("{} [{}]", option.help, option.environment))
          ->group("Diagnostics");
    verb->add_flag_callback(
            "-v,--verbose", [] { global_options().log = "info"; }, "--log info")
        ->group("Diagnostics");
    chosen.emplace_back(verb, row.add(*verb));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(ErrorCode::usage);
  }
  if (global_options().cache_dir == "none") global_options().cache_dir.clear();
  if (Status status = set_log_level(global_options().log); !status) return report(status.error());
  for (auto& [verb, run] : chosen)
    if (verb->parsed())
      if (Status status = run(); !status) return report(status.error());
  return 0;
}

}  // namespace
}  // namespace heddle::tool

int main(int argc, char** argv) {
  try {
    return heddle::tool::main_checked(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "heddle: error: out of memory\n");
    return static_cast<int>(heddle::ErrorCode::out_of_memory);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "heddle: internal error (a bug of Heddle): %s\n", e.what());
    return 1;
  }
}
