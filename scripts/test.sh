#!/usr/bin/env bash
# Builds and runs all tests; works on a fresh machine by itself. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh
scripts/build.sh
scripts/cutlass.sh
scripts/zoo.sh
scripts/zoo.sh --trained
python3 scripts/check_includes.py
ctest --test-dir build --output-on-failure --parallel "$(nproc)" "$@"
