#!/usr/bin/env bash
# Configures build/ (Release, ccache) and builds the targets named, or everything.
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_SLOPPINESS=pch_defines,time_macros
[ -f build/build.ninja ] || cmake --preset release
cmake --build build --parallel "$(nproc)" ${1:+--target "$@"}
