#!/usr/bin/env bash
# Makes the virtual environment $1 (if it is not there) and installs tilegraph into it, editable, with the dev extra.
# The execution provider is not built here: tools/build_ep.sh does that, in the checkout, where it can be rebuilt quickly.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: tools/setup_venv.sh VENV}
python=${PYTHON:-python3.11}

if [ ! -x "$venv/bin/python" ]; then
  command -v "$python" >/dev/null || { echo "error: $python is not installed; set PYTHON to a Python 3.11 or newer" >&2; exit 2; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $python is older than 3.11; set PYTHON to a newer one" >&2; exit 2; }
  "$python" -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 2; }
  echo "making $venv" >&2
  "$python" -m venv "$venv"
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)

mapfile -t build < <("$venv/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["build-system"]["requires"]))')
echo "installing the build tools, tilegraph's dependencies and its dev extra (minutes the first time)" >&2
"${pip[@]}" "${build[@]}" cmake ninja
"${pip[@]}" --no-build-isolation --config-settings=wheel.cmake=false --editable '.[dev]'
