#pragma once
#include "driver/platform.h"

namespace heddle::driver {

/// How a program runs by the file of --locked: its layout, and the seconds of launches by which
/// schedules are made. False: the file has no decision for this program and --mode.
Result<bool> recall_mode(runtime::Program& program, const CompileOptions& options,
                         const Platform& platform);
/// Keeps it; of several processes the first decides.
Status keep_mode(const runtime::Program& program, const CompileOptions& options,
                 const Platform& platform);

}  // namespace heddle::driver
