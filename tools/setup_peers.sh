#!/usr/bin/env bash
# Makes the virtual environment $1 (if it is not there) with the peers of pyproject.toml's extra `peers`, and with the
# project's own versions of onnx and onnxruntime, which their graph tools use. What cannot be installed is named and left
# out; the benchmark then says which peers are absent.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: PYTHON=... tools/setup_peers.sh VENV}
python=${PYTHON:?PYTHON names the interpreter that has the project installed}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)

mapfile -t own < <("$python" -c '
from importlib.metadata import version
print("\n".join(f"{name}=={version(name)}" for name in ("numpy", "onnx", "onnxruntime")))')
mapfile -t peers < <("$python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["project"]["optional-dependencies"]["peers"]))')
"${pip[@]}" "${own[@]}"
for peer in "${peers[@]}"; do
  # With the versions of our own again: a peer must not change them.
  "${pip[@]}" "$peer" "${own[@]}" || echo "warning: $peer cannot be installed; the peers that need it are absent" >&2
done
