#pragma once
#include <map>
#include <set>
#include <unordered_map>

#include "codegen/cuda/cuda.h"
#include "kernel/traverse.h"

namespace heddle::codegen::cuda {

/// What the threads of a phase do.
struct PhaseText {
  PhaseInfo info;  ///< without a symbol
  std::string text;
  std::vector<std::int32_t> origins;  ///< of its lines
  std::set<std::int32_t> stored;      ///< buffers
  bool shares_registers = false;      ///< roles have numbers of registers
};

/// Writes one phase.
class PhaseEmitter {
 public:
  /// `stage`: a function that does tasks [first, last), for some of a block's threads. `together`:
  /// as many of them as the form's factor, with buffers of `k`, in the place of so many in turn.
  PhaseEmitter(const kernel::Kernel& k, const std::vector<kernel::BufferId>& parameters,
               const kernel::For& phase, std::optional<StageForm> stage = {},
               const kernel::Body* together = nullptr);
  Result<PhaseText> run();

 private:
  /// Names of values known in a block of text; inner blocks see those of outer ones.
  struct Scope {
    std::unordered_map<const kernel::ValueNode*, std::string> names;
  };

  // Statements (emitter.cpp).
  void line(const std::string& text);
  void open(const std::string& head);
  void close(const std::string& tail = "}");
  void threads(const kernel::For& loop, int outer);
  void body(const kernel::Body& statements);
  void statement(const kernel::Stmt& s);
  std::int32_t origin_of(const kernel::Stmt& s) const;
  void loop(const kernel::For& x);
  void vector_loop(const kernel::For& x);
  void store(const kernel::Store& x);
  void combine(const kernel::Combine& x);
  void routine(const kernel::Routine& x);
  void place_shared();

  // Tiles (emit_tile.cpp).
  void copy(const kernel::Copy& x);
  void mma(const kernel::Mma& x);
  void event(const kernel::Event& x);
  void tile(const kernel::TileCopy& x);
  void roles(const kernel::Roles& x);
  std::set<std::int32_t> stored_in(const kernel::Body& statements) const;
  void forget(const std::set<std::int32_t>& stored);

  // Values and index expressions (emit_value.cpp).
  std::string value(const kernel::Value& v);
  std::string compute(const kernel::ValueNode& v);
  std::string load(const kernel::Load& x, DType type);
  std::string apply(const kernel::Apply& x, DType type);
  std::string guard(const kernel::Guard& x, DType type);
  std::string address(kernel::BufferId id, const ir::Expr& offset,
                      const std::vector<kernel::Load::Dynamic>& dynamic, bool clamp);
  std::string index(const ir::Expr& e) const;
  std::string conditions(const std::vector<ir::Condition>& list) const;
  const std::set<std::int32_t>& reads(const kernel::Value& v);
  std::string fresh(char letter) { return fmt::format("{}{}", letter, ++names_); }

  void tasks();
  void check_stage();
  bool is_wide() const;

  const kernel::Kernel& k_;
  const std::vector<kernel::BufferId>& parameters_;
  const kernel::For& phase_;
  const std::optional<StageForm> stage_;
  const kernel::Body* const together_;
  PhaseInfo info_;
  /// The phase's threads meet; the type of that as an argument.
  std::string meet_ = "hd::block_sync();", meeting_;
  std::string text_;
  std::vector<std::int32_t> origins_;  ///< of the lines of text_
  std::int32_t origin_ = -1;           ///< of the line being written
  int depth_ = 1, names_ = 0;
  bool wide_ = false;              ///< index arithmetic in 64 bits
  bool shares_registers_ = false;  ///< roles have numbers of registers
  ir::Ranges ranges_;
  ir::Var thread_;  ///< the innermost thread loop's
  std::vector<Scope> scopes_;
  std::unordered_map<const kernel::ValueNode*, std::set<std::int32_t>> reads_;
  std::vector<kernel::Value> alive_;  ///< keys of reads_ and names
  /// In a vector loop: loads made at once, (buffer, offset) to the text of one lane.
  std::map<std::pair<std::int32_t, ir::Expr>, std::string> vectors_;
  std::int64_t scratch_bytes_ = 0, scratch_at_ = 0;
  std::string error_;
};

std::string type_of(DType t);  ///< "hd::f32"
std::string literal(const kernel::Imm& x, DType type);
/// A function of arguments that are named.
std::string call_text(const kernel::Apply& x, DType type, const std::vector<std::string>& args);

}  // namespace heddle::codegen::cuda
