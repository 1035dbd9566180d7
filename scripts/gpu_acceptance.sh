#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can show, in one call: tests on the device,
# compute-sanitizer on a sample, and the zoo and training steps against PyTorch and JAX. Runs in a checkout or in an
# unpacked bundle (scripts/bundle.sh), without network. Results: docs/results/<gpu>-<date>.{json,md}.
#   scripts/gpu_acceptance.sh [--minutes 9] [--only training,…] [--peers torch,torch-compile,jax|none] [--models mlp,…]
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" bench/gpu_acceptance.py "$@"
