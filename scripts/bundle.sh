#!/usr/bin/env bash
# Packs one relocatable archive, build/heddle-bundle.tar.xz (below 45 MB): the command with the shared
# libraries that a bare Linux of the same or a newer C library may lack, the model zoo as graphs and
# seeds, the peers' scripts, and scripts/gpu_acceptance.sh.
#   scripts/bundle.sh [OUT]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/heddle-bundle.tar.xz}
limit=$((45 * 1000 * 1000))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/heddle
mkdir -p "$root"/build/{bin,lib,tests} "$root"/{scripts,tests/cuda_emulation}
cp build/bin/heddle "$root/build/bin/"
cp build/tests/heddle_cuda_text_test "$root/build/tests/"
cp -r tests/cuda_emulation/texts "$root/tests/cuda_emulation/"
cp -r zoo bench "$root/"
cp -r tests/cuda "$root/tests/"
cp scripts/gpu_acceptance.sh "$root/scripts/"
cp LICENSE README.md CHANGELOG.md "$root/"
git rev-parse HEAD > "$root/REVISION"
find "$root" -name __pycache__ -prune -exec rm -rf {} +

# Everything but the C library, which the machine has, and what LLVM links for features that Heddle
# does not use: those get stand-ins that abort when called.
unused='libz3|libxml2|libicu|libedit|libbsd|libmd|libtinfo'
ldd build/bin/heddle build/tests/heddle_cuda_text_test | awk '$3 ~ /^\// {print $3}' | while read -r library; do
  case $(basename "$library") in
    libc.so.*|libm.so.*|libpthread.so.*|libdl.so.*|librt.so.*|ld-linux*) ;;
    *) [[ $(basename "$library") =~ ^($unused) ]] || cp -L "$library" "$root/build/lib/" ;;
  esac
done
python3 scripts/stub_libraries.py "$root/build/lib" "^($unused)"
# What products by templates are compiled from, where the machine has nvcc.
scripts/cutlass.sh
mkdir -p "$root/build/cutlass"
cp -r build/cutlass/include "$root/build/cutlass/"
strip --strip-unneeded "$root"/build/lib/*.so* "$root/build/bin/heddle" \
  "$root/build/tests/heddle_cuda_text_test"

# Readers of ONNX for peers, pure Python: frameworks themselves are the machine's.
if [ -x build/peers/bin/python ]; then
  for package in onnx2torch jaxonnxruntime; do
    cp -r build/peers/lib/python3*/site-packages/$package "$root/bench/peers/" 2>/dev/null || true
  done
else
  build/venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" onnx2torch==1.5.15 jaxonnxruntime==0.3.0 &&
    for wheel in "$work"/*.whl; do python3 -m zipfile -e "$wheel" "$root/bench/peers/"; done ||
    echo "bundle: peers' readers of ONNX could not be had; the bundle compares with none" >&2
fi

tar -C "$work" -c heddle | xz -9e -T1 > "$out"
size=$(stat -c %s "$out")
echo "$out: $((size / 1000 / 1000)).$((size / 100000 % 10)) MB"
[ "$size" -lt "$limit" ] || { echo "bundle: found $size bytes, want less than $limit" >&2; exit 1; }
# It runs from anywhere, without this machine's libraries.
mkdir "$work/elsewhere"
tar -C "$work/elsewhere" -xf "$out"
"$work/elsewhere/heddle/build/bin/heddle" doctor > /dev/null
if LD_TRACE_LOADED_OBJECTS=1 "$work/elsewhere/heddle/build/bin/heddle" |
    grep -E 'libLLVM|libCbc|libprotobuf|libopenblas' | grep -v "$work/elsewhere"; then
  echo "bundle: found libraries of this machine, want those of the archive" >&2
  exit 1
fi
