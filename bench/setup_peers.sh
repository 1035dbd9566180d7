#!/usr/bin/env bash
# Makes build/peers, the environment of the frameworks that `heddle bench --vs` compares with
# (about 7 GB: PyTorch brings its CUDA libraries). Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=build/peers
stamp=$venv/.stamp
want=$(cat bench/peers/requirements.txt bench/setup_peers.sh | sha256sum | cut -d' ' -f1)
mkdir -p build
exec 9>build/.peers.lock   # two scripts at once: the second waits and then finds it done
flock 9
if [[ -f $stamp && $(<"$stamp") == "$want" ]] && "$venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

echo "peers: making $venv" >&2
if ! "$venv/bin/python" -c '' 2>/dev/null; then
  rm -rf "$venv"
  python3 -m venv "$venv"
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir \
  --only-binary :all: -r bench/peers/requirements.txt
echo "$want" > "$stamp"
