#!/usr/bin/env bash
# Installs what the build and the run need: Debian packages (as root or through sudo) and pinned wheels into .venv.
# Called again with nothing changed it returns at once (a stamp holds the digest of what was asked for).
# Environment: HALFTONE_CUDA=ON|OFF|auto (auto: ON only where an NVIDIA device is present), PYTHON (python3.10 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

cuda=${HALFTONE_CUDA:-auto}
if [ "$cuda" = auto ]; then
  if [ -e /dev/nvidiactl ] || [ -e /dev/nvidia0 ]; then cuda=ON; else cuda=OFF; fi
fi
case "$cuda" in ON | OFF) ;; *) echo "setup: HALFTONE_CUDA must be ON, OFF or auto, found '$cuda'" >&2; exit 2 ;; esac

python=${PYTHON:-python3}
digest=$(cat tools/setup.sh requirements.txt requirements-test.txt requirements-cuda.txt | sha256sum | cut -c1-16)-$cuda
stamp=.venv/.halftone-setup
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ]; then exit 0; fi

[ "$(uname -m)" = x86_64 ] || { echo "setup: expected an x86-64 machine, found $(uname -m); other processors are not supported" >&2; exit 2; }

packages="g++ make git ccache python3-venv libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libgtest-dev libpcre2-dev libxxhash-dev"
missing=""
for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -n "$missing" ]; then
  install="apt-get update && apt-get install -y --no-install-recommends$missing"
  if [ "$(id -u)" = 0 ]; then as=""; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as="sudo"; else
    echo "setup: system packages are missing and neither root nor password-less sudo is at hand. Run this once, then call make again:" >&2
    echo "  sudo sh -c '$install'" >&2
    exit 2
  fi
  echo "setup: installing$missing"
  $as env DEBIAN_FRONTEND=noninteractive sh -c "$install" >/tmp/halftone-apt.$$ 2>&1 || { tail -n 5 /tmp/halftone-apt.$$ >&2; echo "setup: apt-get failed; run it by hand: $install" >&2; exit 1; }
  rm -f /tmp/halftone-apt.$$
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "setup: Python 3.10 or newer is needed, found $("$python" --version); set PYTHON=/path/to/python3" >&2; exit 2; }
[ -x .venv/bin/python ] || "$python" -m venv .venv || /usr/bin/python3 -m venv --clear .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check -q "$@"; }
echo "setup: installing pinned wheels into .venv (torch is about 0.5 GB; HALFTONE_CUDA=$cuda)"
pip install --no-deps -r requirements.txt
pip install -r requirements-test.txt
if [ "$cuda" = ON ]; then
  pip install torch==2.11.0  # with its dependencies: cuBLAS, cuDNN, NCCL and the rest of the CUDA half
  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "setup: no CUDA toolkit found, installing the compiler wheels"
    pip install --no-deps -r requirements-cuda.txt
  fi
fi
echo "$digest" >"$stamp"
