#!/usr/bin/env bash
# Runs onnx's backend tests through onnx's own Python runner and heddle.backend, and prints counts.
#   scripts/backend.sh         all of them; writes docs/backend.json, which docs/conformance.md quotes
#   scripts/backend.sh K N     the K-th of N parts, into build/conformance/backend-K.json
#   scripts/backend.sh join    makes docs/backend.json of the parts
set -euo pipefail
cd "$(dirname "$0")/.."
parts=build/conformance
mkdir -p "$parts"
export HEDDLE=${HEDDLE:-$PWD/build/bin/heddle} PYTHONPATH=python
run=(build/venv/bin/python -W ignore python/backend_test.py)
case ${1:-} in
  '') exec "${run[@]}" --json docs/backend.json ;;
  join) exec "${run[@]}" --join "$parts"/backend-*.json --json docs/backend.json ;;
  *) exec "${run[@]}" --part "$1" "$2" --json "$parts/backend-$1.json" ;;
esac
