#pragma once
#include <string>

namespace heddle::conformance {

struct Settings {
  std::string engine;  ///< reference (the interpreter) or compiled
  double rtol = 1e-3, atol = 1e-7;
  int seconds = 20, threads = 1;
};

/// passed; failed; refused (a clear error says what is not supported); random: the outputs are
/// drawn, so that no two implementations agree, and what the standard promises of them holds.
struct Outcome {
  std::string status, reason;
  bool specialised = false;  ///< small inputs were bound to the test's values
};

/// Whether the case needs sequences, optional values, strings, a training operator (a batch
/// normalisation that trains is one) or a random one (a dropout that trains is none).
bool is_special(const std::string& folder);

/// Runs the case (model.onnx, test_data_set_*/) in a process of its own, with limits: a crash or a
/// hang is a result.
Outcome run_isolated(const std::string& folder, const Settings& settings);

}  // namespace heddle::conformance
