#!/usr/bin/env bash
# Makes build/cutlass: CUTLASS's headers from PyPI and, on a machine without a CUDA toolkit, nvcc with
# what it needs. The tests compile units of templates with them. Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/venv.sh  # Debian's own python3 has no pip

folder=build/cutlass
want=$(sha256sum scripts/cutlass.sh | cut -d' ' -f1)
mkdir -p build
exec 9>build/.cutlass.lock
flock 9
[[ -f $folder/.stamp && $(<"$folder/.stamp") == "$want" ]] && exit 0

echo "cutlass: making $folder" >&2
rm -rf "$folder"
packages=(nvidia-cutlass==4.2.0.0)
if ! compgen -G '/usr/local/cuda*/bin/nvcc' >/dev/null; then
  packages+=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
fi
site=$folder/lib/python3/site-packages
build/venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
  --target "$site" "${packages[@]}"
# Of CUTLASS only the headers are wanted.
mv "$site/cutlass_library/source/include" "$folder/include"
rm -rf "$site"/{cutlass_library,cutlass_cppgen,pycute,nvidia_cutlass*}
echo "$want" > "$folder/.stamp"
