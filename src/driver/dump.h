#pragma once
#include <string>

#include "driver/driver.h"
#include "prim/text.h"

namespace heddle::driver {

/// Writes the levels that HEDDLE_DUMP names into HEDDLE_DUMP_DIR, numbered in order.
class Dumper {
 public:
  explicit Dumper(const Options& options) : levels_(options.dump), folder_(options.dump_dir) {}
  bool wants(std::string_view level) const { return lists(levels_, level); }
  /// Does nothing unless `level` is wanted; a folder that cannot be written is a warning.
  void write(std::string_view level, const std::string& name, const std::string& text);
  /// The level "prim"; constants that its text only names go into the folder's prim.hedc, where
  /// heddle-opt looks for them.
  void write(const std::string& name, const prim::Graph& graph);

 private:
  std::string levels_, folder_;
  int number_ = 0;
  prim::ConstantTable constants_;  ///< of all graphs written so far
};

}  // namespace heddle::driver
