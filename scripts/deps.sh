#!/usr/bin/env bash
# Installs the Debian 12 packages that Heddle builds and tests with. Quick when nothing is missing.
# Works as root or through sudo.
set -euo pipefail

packages=(
  # toolchain
  g++ cmake ninja-build pkg-config ccache mold git ca-certificates
  # code generation
  llvm-19-dev clang-19 libclang-rt-19-dev libpolly-19-dev libxml2-dev zlib1g-dev libzstd-dev
  # orchestration (integer programming)
  coinor-libcbc-dev coinor-libclp-dev coinor-libcoinutils-dev
  # model reading and its test data
  libonnx-dev libonnx-testdata libre2-dev libprotobuf-dev protobuf-compiler
  # encoded pictures (ImageDecoder)
  libturbojpeg0-dev libpng-dev libwebp-dev libtiff-dev libopenjp2-7-dev
  # fibers: CUDA text on the CPU
  libboost-context-dev
  # command line, logs, database, hashing
  libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libsqlite3-dev libxxhash-dev
  # tests and the libraries that the micro-benchmarks compare with
  libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev libopenblas-dev
  # training over several processes (loaded when asked for)
  libopenmpi3 openmpi-bin
  # python (ONNX Runtime as peer, model zoo) and pictures of plans
  python3 python3-venv graphviz
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if (( ${#missing[@]} == 0 )); then
  echo "deps: all ${#packages[@]} packages present" >&2
  exit 0
fi

as_root=()
if (( EUID != 0 )); then
  if ! command -v sudo >/dev/null; then
    echo "deps: missing ${missing[*]}; run as root or install sudo" >&2
    exit 6
  fi
  as_root=(sudo)
fi
echo "deps: installing ${missing[*]}" >&2
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}")
# The package lists may be absent (a container) or old (a package file that is gone): refresh and
# try once more before giving up.
if ! "${install[@]}" >/dev/null 2>&1; then
  "${as_root[@]}" apt-get update -qq || echo "deps: apt-get update reported errors; trying anyway" >&2
  "${install[@]}" >/dev/null
fi
echo "deps: done" >&2
