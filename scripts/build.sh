#!/usr/bin/env bash
# Configures build/ (Release, ccache) and builds the targets named, or everything.
set -euo pipefail
cd "$(dirname "$0")/.."
# Paths relative to the checkout, so that another checkout of the same sources hits the cache.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
[ -f build/build.ninja ] || cmake --preset release
cmake --build build --parallel "$(nproc)" ${1:+--target "$@"}
