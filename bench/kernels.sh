#!/usr/bin/env bash
# Writes docs/kernels.md: the micro-benchmarks of generated kernels on this machine, one thread and
# two. A quiet machine is needed; takes about two minutes.
# usage: bench/kernels.sh [build directory]
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-build}/bin

run() { echo '```'; "$@"; echo '```'; }
{
  cat <<TEXT
# Generated kernels, measured

Written by \`bench/kernels.sh\` on $(date +%F), $(lscpu | sed -n 's/^Model name: *//p'), $(nproc) cores,
last-level cache $(lscpu | sed -n 's/^L3 cache: *//p'). Each line times its contenders in turn in one run; the
machine is shared, so ratios count and times do not.

## Memory-bound kernels

\`stitch_bench\`: bytes read and written at least once per second, beside \`memcpy\` of as many bytes
on as many threads; the share is the median over pairs of runs. Below about 32 MB both live in the caches
and the copy is no bound.

### Two threads
$(run "$bin/stitch_bench" 2)

## Matrix products

\`gemm_bench\`: against oneDNN with packed weights, and OpenBLAS.

### One thread
$(run "$bin/gemm_bench" 1 0.3)

### Two threads
$(run "$bin/gemm_bench" 2 0.3)

## Convolutions

\`conv_bench\`: the layers of ResNet-50 and others, against oneDNN in the layouts of its choice.

### One thread
$(run "$bin/conv_bench" 1 0.2)

### Two threads
$(run "$bin/conv_bench" 2 0.2)
TEXT
} > docs/kernels.md.new
mv docs/kernels.md.new docs/kernels.md
