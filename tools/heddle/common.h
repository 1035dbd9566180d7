#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "driver/chain.h"
#include "driver/driver.h"
#include "driver/sizes.h"

namespace heddle::tool {

/// --train: a training step in place of the model.
struct StepRequest {
  std::string loss, optimizer = "adamw";
  double rate = 1e-3, clip_norm = 0;
  std::vector<std::string> frozen;
  bool silent = false;       ///< without the loss' value
  bool distributed = false;  ///< as processes that share each step run it
  explicit operator bool() const { return !loss.empty(); }
};

/// A check that says what it wants: CLI11's own print the largest double in full.
CLI::Validator number(const std::string& want, bool (*holds)(double));

/// Of 64 bits; CLI11 alone takes -1 for the largest, and the largest for what is larger.
template <class T>
CLI::Validator whole_number(const std::string& range, const std::string& type) {
  const auto check = [range](const std::string& text) {
    T value = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && rest == end
               ? std::string()
               : fmt::format("found '{}', want a whole number {}", text, range);
  };
  return CLI::Validator(check, type);
}

/// Flags that every verb on a model takes.
struct ModelFlags {
  std::string model;
  std::string device = "cpu", arch;
  bool device_given = false;  ///< else artefacts run on what they were compiled for
  std::string planned_by;     ///< a flag that was given and decides a plan, which artefacts have
  std::vector<std::string> shapes;
  std::vector<std::string> dynamic, sizes;
  int threads = 0;
  std::string mode = "auto";
  std::string budget = "none";
  std::string strategy = "full";
  std::string precision = "f32";
  std::string locked;
  double memory_limit_mb = 0;         ///< 0: none
  std::optional<std::uint64_t> seed;  ///< given: random inputs whatever else there is
  std::vector<std::string> inputs;    ///< NAME=FILE
  bool json = false;
  StepRequest training;
};
/// Adds the positional MODEL and the common flags to a verb; `artefacts`: it may be a compiled one.
void add_model_flags(CLI::App& verb, ModelFlags& flags, bool artefacts = true);
/// For verbs that need the graph: an error where the model is a compiled artefact.
Status want_graph(const ModelFlags& flags, std::string_view verb);

/// For verbs that do not take --dynamic.
Status want_one_size(const ModelFlags& flags, std::string_view verb);

/// The options of the run: environment, then flags (one table, support/options).
Options& global_options();

Result<driver::CompileOptions> compile_options(const ModelFlags& flags);

/// A model's program, from an artefact, an ONNX file or an ONNX test-data folder.
struct Model {
  std::shared_ptr<const runtime::Program> program;
  std::shared_ptr<runtime::Session> session;           ///< null after compile_model()
  std::shared_ptr<const runtime::SizedProgram> sized;  ///< null: for one size of inputs only
  std::shared_ptr<const runtime::Chain> chain;         ///< null: values decide no shapes
  std::string notes, sizes;                            ///< of compile_sizes(); those that are run
  bool from_artefact = false, from_cache = false;
  double compile_seconds = 0, load_seconds = 0;
};
/// Loads nothing, so that the device need not be in this machine.
Result<Model> compile_model(const ModelFlags& flags);
/// The same ready to run.
Result<Model> open_model(const ModelFlags& flags);
/// The case of the dispatch table that the flags ask for: --size, --shape, the shapes of --input
/// files; of those that fit the largest.
Result<std::size_t> wanted_case(const runtime::SizedProgram& sized, const ModelFlags& flags);
/// --dynamic says sizes (not only what dimensions follow from).
bool wants_sizes(const ModelFlags& flags);
/// They are not of the model's dimensions, but of what it computes (driver/chain.h).
Result<bool> wants_sizes_of_values(const ModelFlags& flags);
Result<std::vector<driver::SizeRange>> size_ranges(const ModelFlags& flags);

/// The first test_data_set of a test-data folder, by position; empty where there is none.
struct TestData {
  std::vector<Tensor> inputs, outputs;
};
Result<TestData> test_data_of(const std::string& model, const runtime::Program& program);

/// The outputs by name, in the model's order, those whose extent is known only while running cut to
/// it; the extents are left out.
std::vector<std::pair<std::string, Tensor>> model_outputs(const runtime::Program& program,
                                                          const std::vector<Tensor>& outputs);

/// Normal for floats, small integers, coin flips for booleans.
Tensor random_tensor(const TensorType& type, std::mt19937_64& random);

struct Inputs {
  std::vector<Tensor> values;
  std::string from;        ///< in words: "test_data_set_0", "random numbers of seed 0"
  bool test_data = false;  ///< all of them are: the folder's expected outputs apply
};
/// --input files; the others from the folder's test data, or, with --seed or where there is none,
/// seeded random numbers. An error if this machine cannot run code for --cpu.
Result<Inputs> make_inputs(const runtime::Program& program, const ModelFlags& flags);

/// Largest difference |found - wanted| in units of (absolute + relative·|wanted|): at most 1 is
/// equal.
struct Difference {
  double worst = 0;  ///< in units of the tolerance
  double max_absolute = 0;
  double scale = 0;        ///< largest |wanted|
  std::int64_t index = 0;  ///< where the worst is
  double of_scale() const { return max_absolute / std::max(scale, 1e-30); }
};
Difference compare(const Tensor& found, const Tensor& wanted, double relative, double absolute);

/// Largest error that still counts as equal, as a share of a value's scale, where values are stored
/// in `precision`: of one kernel on exact inputs, and through a whole network.
struct Tolerance {
  double kernel, network;
};
Tolerance tolerance_of(const std::string& precision);

/// Verbs: each adds itself to `app` and returns the exit code when chosen.
using Verb = std::function<Status()>;
struct VerbRow {
  const char* name;
  const char* help;
  Verb (*add)(CLI::App& verb);
};
std::vector<VerbRow> verbs();

Verb add_run(CLI::App& verb);
Verb add_compile(CLI::App& verb);
Verb add_bench(CLI::App& verb);
Verb add_check(CLI::App& verb);
Verb add_verify(CLI::App& verb);
Verb add_explain(CLI::App& verb);
Verb add_profile(CLI::App& verb);
Verb add_tune(CLI::App& verb);
Verb add_train(CLI::App& verb);
Verb add_ops(CLI::App& verb);
Verb add_doctor(CLI::App& verb);
Verb add_cache(CLI::App& verb);

}  // namespace heddle::tool
