#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "peer.h"
#include "runtime/program.h"

namespace heddle::tool {

/// What `--vs` may name, in the order of the tables; bench/peers/serve.py has the same.
extern const std::vector<std::string> kPeers;

/// What all peers are given.
struct Terms {
  std::string model;  ///< the ONNX file
  std::string precision = "f32";
  bool cuda = false;  ///< on the GPU, where a peer has that
  int threads = 1;
  double seconds_a_round = 0.1;       ///< of measuring, for each peer
  double load_seconds = 600;          ///< for loading and compiling
  nlohmann::json training = nullptr;  ///< {"loss", "optimizer", "rate"}: steps, no inference
  bool quiet = true;                  ///< what the frameworks log is dropped
  std::string venv;                   ///< as peers_venv() gives it
};

/// The Python environment of the peers: `given`, or where that is empty what is beside this
/// program. Fails, with the script that makes it, if there is none.
Result<std::string> peers_venv(const std::string& given);

/// A peer in the comparison, or the error that keeps it out.
class Contestant {
 public:
  /// Starts the peer, loads the model, compares its outputs with ours and takes a first time, from
  /// which the number of runs a round follows.
  static Contestant enter(const std::string& name, const Terms& terms,
                          const nlohmann::json& input_files, const runtime::Program& program,
                          const std::vector<Tensor>& ours);
  /// Its turn in a round. A peer too slow for every round sits some out.
  void take_turn(int round);
  const std::string& name() const { return name_; }
  /// Asks for the peak of memory.
  void weigh();
  /// Statistics and ratio to `our_median` (ms), or {"error": …}.
  nlohmann::json result(double our_median) const;

 private:
  Status load(const Terms& terms, const nlohmann::json& input_files,
              const runtime::Program& program, const std::vector<Tensor>& ours);
  Status compare_outputs(const nlohmann::json& files, const runtime::Program& program,
                         const std::vector<Tensor>& ours);
  Result<std::vector<double>> runs(int count, int warmup);

  std::string name_, error_, version_;
  std::optional<Peer> peer_;
  std::vector<double> ms_;
  double load_ms_ = 0, first_ms_ = 0, difference_ = 0, cores_ = 0;
  double peak_mb_ = 0, base_mb_ = 0;
  double tolerance_ = 0, run_ms_ = 0;
  int runs_a_round_ = 1, every_ = 1;
};

/// Tensors as .npy files for the peers, in a folder that is removed at the end.
class TensorFiles {
 public:
  TensorFiles();
  ~TensorFiles();
  TensorFiles(const TensorFiles&) = delete;
  TensorFiles& operator=(const TensorFiles&) = delete;
  /// Name of each input → path.
  Result<nlohmann::json> write(const runtime::Program& program,
                               const std::vector<Tensor>& inputs) const;

 private:
  std::string folder_;
};

/// Order statistics of latencies in milliseconds: n, min, mean, throughput, and median, p90, p95,
/// p99 (and `percentiles`) with 95 % intervals that assume no distribution; null where the samples
/// are too few for one.
nlohmann::json statistics(std::vector<double> ms, const std::vector<double>& percentiles = {});
double median(std::vector<double> values);

}  // namespace heddle::tool
