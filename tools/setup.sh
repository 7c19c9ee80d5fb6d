#!/usr/bin/env bash
# Installs what the build, the run and the tests need: Debian packages (as root or through sudo, else it prints the command
# and stops) and pinned wheels into .venv. Called again with nothing changed it returns at once: a stamp holds the digest of
# what was asked for.
#
#   tools/setup.sh               install
#   tools/setup.sh --print-cuda  print ON or OFF, what HALFTONE_CUDA=auto means on this machine
#
# Environment: HALFTONE_CUDA=auto|ON|OFF (auto: ON where an NVIDIA device is present or the last set-up was ON), PYTHON (3.10 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }
stop() { printf 'setup: %s\n' "$@" >&2; exit 2; }

cuda=${HALFTONE_CUDA:-auto}
case "$cuda" in
  auto) if [ -e /dev/nvidiactl ] || [ -e /dev/nvidia0 ]; then cuda=ON; else cuda=OFF; fi ;;
  ON | OFF) ;;
  *) stop "HALFTONE_CUDA must be auto, ON or OFF, found '$cuda'" ;;
esac
stamp=.venv/.halftone-setup
if [ "$cuda" = OFF ] && [ "${HALFTONE_CUDA:-auto}" = auto ] && grep -qs " ON $PWD\$" "$stamp"; then cuda=ON; fi  # it was asked for before
if [ "${1:-}" = --print-cuda ]; then echo "$cuda"; exit 0; fi

# The wheels' scripts hold absolute paths, so a checkout that was moved installs anew.
wanted="$(cat tools/setup.sh requirements*.txt | sha256sum | cut -c1-16) $cuda $PWD"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x .venv/bin/python ]; then exit 0; fi

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || stop "expected Linux on x86-64, found $(uname -s) on $(uname -m): not supported"
for flag in avx2 fma bmi2 f16c; do
  grep -qw "$flag" /proc/cpuinfo || stop "this processor lacks $flag; x86-64-v3 is needed (Intel since Haswell, AMD since Excavator)"
done
free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
need_mb=$([ "$cuda" = ON ] && echo 9000 || echo 4000)
if [ ! -f "$stamp" ] && [ "$free_mb" -lt "$need_mb" ]; then stop "$need_mb MB of free disk space are needed here, found $free_mb MB"; fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# 1. System packages.
packages="g++ make ccache libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libgtest-dev libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libzstd-dev liblzma-dev libcurl4-openssl-dev"
[ -n "${PYTHON:-}" ] || packages="$packages python3 python3-venv"
if command -v dpkg-query >/dev/null; then
  missing=""
  for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
  done
  if [ -n "$missing" ]; then
    install="apt-get update && apt-get install -y --no-install-recommends$missing"
    if [ "$(id -u)" = 0 ]; then
      as=""
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && say "sudo is needed for:$missing" && sudo true; }; }; then
      as="sudo"
    else
      stop "system packages are missing and there is neither root nor sudo. Run this once, then call make again:" "  sudo sh -c '$install'"
    fi
    say "installing system packages:$missing"
    if ! $as env DEBIAN_FRONTEND=noninteractive sh -c "$install" >"$log" 2>&1; then
      tail -n 5 "$log" >&2
      stop "apt-get failed (its last lines are above). Without a network nothing can be installed. By hand:" "  sudo sh -c '$install'"
    fi
  fi
else
  say "no dpkg here: only Debian 12 is verified. Expected to be installed: $packages"
fi

# 2. Python and its environment.
python=${PYTHON:-python3}
command -v "$python" >/dev/null || stop "no '$python' found: install Python 3.10 or newer, or set PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  stop "Python 3.10 or newer is needed, found $("$python" --version 2>&1): set PYTHON=/path/to/python3"
read -r _ _ where 2>/dev/null <"$stamp" || where=""
if [ -n "$where" ] && [ "$where" != "$PWD" ]; then
  say "the checkout was moved from $where: recreating .venv"
  rm -rf .venv
fi
if ! .venv/bin/python -c '' 2>/dev/null; then
  rm -rf .venv
  "$python" -m venv .venv >"$log" 2>&1 || { tail -n 3 "$log" >&2; rm -rf .venv; stop "'$python -m venv .venv' failed (its last lines are above)"; }
fi

# 3. Pinned wheels, without their dependencies: LibTorch is used from C++; torchrun and the tests import torch in Python.
rm -f "$stamp"
quiet=-q
if [ -t 1 ]; then quiet=""; fi
wheels() {
  local status=0
  .venv/bin/python -m pip --disable-pip-version-check $quiet install --retries 2 --no-deps --no-warn-script-location "$@" 2>"$log" || status=$?
  if [ $status != 0 ]; then
    grep -v '^WARNING: Retrying' "$log" | tail -n 3 >&2
    stop "pip could not install from $2 (its last lines are above). Is the network or the package index reachable?" \
      "What is installed stays; call make again to go on."
  fi
}
say "installing pinned wheels into .venv (LibTorch is about 0.5 GB to download; HALFTONE_CUDA=$cuda)"
wheels -r requirements.txt
wheels -r requirements-test.txt
if [ "$cuda" = ON ]; then
  say "installing the CUDA libraries of LibTorch (about 1.5 GB to download)"
  wheels -r requirements-cuda.txt
  have_nvcc() { for nvcc in "${CUDACXX:-}" nvcc "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do "$nvcc" --version 2>/dev/null | grep -q 'release 13\.' && return; done; false; }
  if ! have_nvcc; then
    say "no CUDA 13 toolkit on this machine: installing the compiler wheels"
    wheels -r requirements-nvcc.txt
  fi
fi
compgen -G '.venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so' >/dev/null ||
  stop "the torch wheel in .venv is incomplete: remove .venv and call make again"
# Python imports torch (torchrun, the tests) without NVIDIA's libraries too.
.venv/bin/python tools/cuda_stand_ins.py "$([ "$cuda" = ON ] && echo --remove || echo --write)" ||
  stop "tools/cuda_stand_ins.py failed (its message is above)"
echo "$wanted" >"$stamp"
say "done"
