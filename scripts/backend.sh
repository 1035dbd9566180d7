#!/usr/bin/env bash
# Runs onnx's backend tests through onnx's own Python runner and heddle.backend, and prints counts.
# `backend.sh K N` runs the K-th of N parts. Slower than scripts/conformance.sh, whose C++ runner tests
# the same cases: each run is a process.
set -euo pipefail
cd "$(dirname "$0")/.."
HEDDLE=${HEDDLE:-$PWD/build/bin/heddle} PYTHONPATH=python \
  exec build/venv/bin/python -W ignore python/backend_test.py ${1:+--part "$1" "$2"}
