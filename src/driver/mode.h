#pragma once
#include <optional>
#include <string>

#include "driver/driver.h"
#include "driver/platform.h"

namespace heddle::driver {

/// What --mode asks for.
struct ModeRequest {
  enum class Kind { kernels, monolith, automatic } kind = Kind::automatic;
  std::optional<runtime::StageLayout> layout = {};  ///< monolith: this one and no other
  bool tuned = false;                               ///< monolith: stages tuned alone
  std::string reason = "asked for";                 ///< for it
};
/// "kernels", "monolith", "auto", or a monolith of a given layout:
/// "monolith:grain=4,whole=2.5,depth,longest,barriers" (whole in microseconds; each part may be
/// left out), or "monolith:tuned": edge by edge, as pairs of stages alone are fastest.
Result<ModeRequest> parse_mode(const std::string& text);
/// The same text; "kernels" for none.
std::string to_string(const std::optional<runtime::StageLayout>& layout);

/// Decides how an assembled program runs, and notes why. Candidates are whole programs, timed one
/// after another in turns for a share of the time that compiling has taken; before, a run gives the
/// seconds of each stage by which layouts are made. Code that cannot run here is a monolith of the
/// first layout. CompileOptions::locked, on the CPU: what the file says; what it lacks is measured
/// where there is a budget, and kept there.
Result<ModeReport> settle_mode(runtime::Program& program, const ModeRequest& request,
                               const Platform& platform, const CompileOptions& options,
                               double compile_seconds);

/// Times what the request leaves open, and keeps the fastest in the program.
Result<ModeReport> measure_modes(runtime::Program& program, const ModeRequest& request,
                                 const Platform& platform, const CompileOptions& options,
                                 double compile_seconds);

/// The faster of two programs, timed in turns on the GPU: "kernels" or the monolith's layout.
Result<ModeReport> faster_program(const runtime::Program& kernels, const runtime::Program& monolith,
                                  const CompileOptions& options);

}  // namespace heddle::driver
