// The one header that generated CUDA kernels include; NVRTC gets it and its parts from memory, and no
// toolkit header is needed. Each special instruction is a helper with a device body (intrinsics,
// inline PTX) and, where HEDDLE_EMULATE is defined, an emulated body (src/emulation/kernel/), so that
// the same text runs on the CPU under checks.
//
// Conventions: pointers are generic; "shared" parameters point into the block's shared memory. Warp
// helpers are called by all 32 lanes; block helpers by all threads of the block.
#pragma once
#ifdef HEDDLE_EMULATE
#include "cuda.h"  // the emulator's CUDA language
#endif
#include "types.cuh"
#ifdef HEDDLE_EMULATE
#include "helpers.h"  // the emulated bodies
#endif
#include "math.cuh"
#include "memory.cuh"
#include "collective.cuh"
#include "mma.cuh"
#include "hopper.cuh"
#include "philox.cuh"
#include "monolith.cuh"
#include "ring.cuh"
