#!/usr/bin/env bash
# Builds the plugin execution provider in this checkout.
#   tools/build_ep.sh              -> runtime/libtilegraph_ep.so, where the package finds it
#   tools/build_ep.sh --sanitize   -> build/ep-sanitize/libtilegraph_ep.so with ASan and UBSan; prints how to use it
# PYTHON (default: build/venv/bin/python) must have the packages nlohmann-json and apache-tvm-ffi.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-build/venv/bin/python}
case "$python" in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; *) python=$(command -v "$python") ;; esac
PATH=$(dirname "$python"):$PATH # cmake and ninja may come from the same environment

folder=build/ep
sanitize=OFF
case "${1:-}" in
  "") ;;
  --sanitize) folder=build/ep-sanitize sanitize=ON ;;
  *) echo "usage: tools/build_ep.sh [--sanitize]" >&2; exit 2 ;;
esac
for tool in cmake ninja "${CXX:-g++}"; do
  command -v "$tool" >/dev/null || { echo "error: $tool is not installed: run make setup (a C++20 compiler such as g++ 12 must be there)" >&2; exit 2; }
done

# Configure again only when that could change something: the second build is quick.
wanted="$python|$sanitize|${CXX:-}|${ONNXRUNTIME_INCLUDE_DIR:-}"
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/configured-for" 2>/dev/null)" != "$wanted" ]; then
  rm -rf "$folder"
  cmake -S runtime -B "$folder" -G Ninja --log-level=WARNING -DPython_EXECUTABLE="$python" -DTILEGRAPH_SANITIZE=$sanitize >&2
  printf '%s' "$wanted" > "$folder/configured-for"
fi
cmake --build "$folder" >&2

library=$folder/libtilegraph_ep.so
if [ "$sanitize" = OFF ]; then
  # By rename: a process that has the old one loaded keeps it.
  if ! cmp -s "$library" runtime/libtilegraph_ep.so; then
    cp "$library" runtime/.libtilegraph_ep.so.$$
    mv runtime/.libtilegraph_ep.so.$$ runtime/libtilegraph_ep.so
  fi
  echo runtime/libtilegraph_ep.so
else
  cat <<MESSAGE
$library
run the tests on it with:
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 LD_PRELOAD="\$(${CXX:-g++} -print-file-name=libasan.so) \$(${CXX:-g++} -print-file-name=libubsan.so)" \\
  TILEGRAPH_EP_LIBRARY=$PWD/$library $python -m pytest tests/ep
MESSAGE
fi
