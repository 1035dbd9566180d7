#!/usr/bin/env bash
# Makes build/venv (pinned onnx, onnxruntime, numpy) and build/light/<name> (the onnx package's
# light networks with inputs and expected outputs). Does nothing when both are up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=build/venv
stamp=$venv/.stamp
want=$(cat zoo/requirements.txt zoo/light.py scripts/venv.sh | sha256sum | cut -d' ' -f1)
mkdir -p build
exec 9>build/.venv.lock   # two scripts at once: the second waits and then finds it done
flock 9
if [[ -f $stamp && $(<"$stamp") == "$want" && -d build/light/resnet50 ]] \
    && "$venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

echo "venv: making $venv" >&2
if ! "$venv/bin/python" -c '' 2>/dev/null; then
  rm -rf "$venv"
  python3 -m venv "$venv"
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: \
  -r zoo/requirements.txt
# CUDA kernels are compiled in the tests; without a toolkit the compiler comes from here.
if ! compgen -G '/usr/local/cuda*/lib64/libnvrtc.so*' >/dev/null; then
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: \
    nvidia-cuda-nvrtc==13.0.88
fi
"$venv/bin/python" zoo/light.py build/light
echo "$want" > "$stamp"
