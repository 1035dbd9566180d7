#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "runtime/cuda/gpu.h"
#include "runtime/cuda/monolith_tables.h"

namespace heddle::runtime::cuda {

/// A program's persistent kernel on one GPU, with its schedule for the blocks that are resident
/// there.
class Persistent {
 public:
  using Address = std::function<DevicePtr(const Slot&)>;
  /// What one run in flight needs of its own.
  struct Run {
    Memory tables, counters;
    Owned<void*> failure;
    MonolithParameters parameters{};
  };

  struct Wanted {
    StageLayout layout = {};
    std::vector<int> only = {};  ///< stages, as in stages_of()
    int blocks = 0;              ///< of the grid; 0: all that are resident
  };
  /// `constants`: where each constant lies.
  /// Errors: a block that does not fit, more blocks than are resident, a schedule that is not
  /// sound.
  static Result<std::unique_ptr<Persistent>> prepare(std::shared_ptr<Code> code,
                                                     const Program& program,
                                                     std::span<const DevicePtr> constants,
                                                     const Wanted& wanted);
  /// Counters are zeroed on the stream.
  Result<Run> bind(const Address& address, Handle stream) const;
  Status launch(const Run& run, Handle stream) const;
  /// One launch with stamps.
  Result<std::vector<ItemTime>> launch_timed(const Run& run, Handle stream) const;
  /// What the kernel says of a wait in vain, for an error of its stream.
  std::optional<Error> failure(const Run& run) const;
  int blocks() const { return blocks_; }

 private:
  Persistent(std::shared_ptr<Code> code, const Program& program)
      : code_(std::move(code)), program_(program) {}
  Status choose_blocks(int wanted);
  Status make_schedule(const Wanted& wanted);
  Status upload(std::span<const DevicePtr> constants);
  const std::shared_ptr<Gpu>& gpu() const { return code_->gpu(); }
  const Driver& driver() const { return gpu()->driver(); }
  Status check(int code, std::string_view what) const { return gpu()->check(code, what); }
  Status launch(const MonolithParameters& parameters, Handle stream) const;

  std::shared_ptr<Code> code_;
  const Program& program_;
  Handle function_ = nullptr;
  int blocks_ = 0;
  std::vector<Stage> stages_;
  MonolithTables tables_;
  Memory shared_tables_;
  MonolithParameters parameters_{};
};

}  // namespace heddle::runtime::cuda
