#!/usr/bin/env bash
# Runs ONNX's backend tests, those of Debian's libonnx-testdata and those of the onnx package in
# build/venv, and writes docs/conformance.md and .json. The package ships its light networks without
# inputs: scripts/zoo.sh lays them out in build/light.
# `conformance.sh K N` runs the K-th of N parts, `conformance.sh join` makes the documents of them; cases
# of parts that are missing are taken from docs/conformance.json, and the documents say how many.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=build/conformance
documents=(--markdown docs/conformance.md --json docs/conformance.json --runner docs/backend.json)
mkdir -p "$parts"
if [[ ${1:-} == join ]]; then
  exec build/bin/heddle-conformance --join "$parts"/*.json --earlier docs/conformance.json \
    "${documents[@]}"
fi
(( $# )) && documents=(--part "$1" "$2" --json "$parts/$1.json")
package=$(build/venv/bin/python -c 'import onnx, os; print(os.path.dirname(onnx.__file__))')
version=$(build/venv/bin/python -c 'import onnx; print(onnx.__version__)')
build/bin/heddle-conformance \
  "libonnx-testdata (onnx 1.12)=/usr/share/libonnx-testdata/data" \
  "onnx $version=$package/backend/test/data,build/light" --seconds 120 --list "${documents[@]}"
