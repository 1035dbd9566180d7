#!/usr/bin/env bash
# Installs what is needed, builds Heddle (Release) and runs the main job on the CPU: ResNet-50 with its
# expected output, then a short explanation of the plan. Works on a fresh Debian 12 machine; a second
# run only rebuilds what changed.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh
scripts/build.sh heddle heddle-opt heddle-conformance
scripts/venv.sh

# The network that ships in the onnx package, with its expected output.
model=build/light/resnet50
[ -d "$model" ] || { echo "setup: $model is missing" >&2; exit 1; }
build/bin/heddle run "$model"
build/bin/heddle explain "$model" --top 8
