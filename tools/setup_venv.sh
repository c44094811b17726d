#!/usr/bin/env bash
# Makes the virtual environment $1 and installs tilegraph into it, editable, with the dev and zoo extras.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
[ -x "$venv/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$venv"
