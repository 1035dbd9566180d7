#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS [SEED]]: random graphs over all operators for two minutes, and each libFuzzer target for
# SECONDS (60) under address and undefined-behaviour sanitizers; a crash, hang or allocation above 1 GB fails.
# SEED (1) starts all, so that a run can be repeated; another seed looks at other inputs.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
seed=${2:-1}
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
[ -f build/fuzz/build.ninja ] || cmake --preset fuzz
cmake --build build/fuzz --parallel "$(nproc)" --target artefact_fuzz image_fuzz onnx_reader_fuzz
fuzz() {
  local target=$1 corpus=build/fuzz/corpus/$1 seeds=tests/fuzz/seeds/$1
  mkdir -p build/fuzz/crashes
  build/fuzz/bin/"${target}"_fuzz "$corpus" $([ -d "$seeds" ] && echo "$seeds") \
    -seed="$seed" -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout=20 -max_len=65536 \
    -artifact_prefix=build/fuzz/crashes/ -print_final_stats=1 2>&1 | tail -n 15
}
scripts/build.sh heddle heddle-conformance
# Random graphs against onnx's reference evaluator; what fails is shrunk into tests/repro.
build/venv/bin/python -W ignore tests/fuzz/graphs.py --seconds 120 --seed $(( (seed - 1) * 100000 ))
# Artefacts of this build as seeds, and the pictures of onnx's tests: a mutator does not guess formats.
rm -rf build/fuzz/corpus
mkdir -p build/fuzz/corpus/{artefact,image,onnx_reader}
for model in add_bcast conv_with_strides_padding; do
  build/bin/heddle compile "tests/fuzz/seeds/onnx_reader/$model.onnx" --cache none \
    -o "build/fuzz/corpus/artefact/$model" >/dev/null
done
build/venv/bin/python tests/fuzz/pictures.py build/fuzz/corpus/image
# Side by side, on the cores that there are.
started=()
for target in artefact image onnx_reader; do
  fuzz "$target" & started+=($!)
done
for one in "${started[@]}"; do wait "$one"; done
