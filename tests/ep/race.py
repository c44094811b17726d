"""Builds the provider with the thread sanitizer over a fake of ONNX Runtime (tests/ep/host), and runs it.

    python -m tests.ep.race [--seconds 60]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / "tests" / "ep" / "host"
BUILD = ROOT / "build" / "ep-race"
FLAGS = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=thread", "-pthread", "-D_GNU_SOURCE",
         '-DTILEGRAPH_VERSION="race"']

# picky: y = x + 1, or an error where x[0] is negative; arguments x, y, scratch, size, begin, end. The product leaves a
# mark in its scratch and looks for it at the end, as tests/ep/test_parallel.py does.
KERNELS = r"""
KERNEL(product) {
  int bad_tag = 0;
  const float* x = POINTER(const float, 0); const float* w = POINTER(const float, 1); float* y = POINTER(float, 2);
  int64_t* mark = POINTER(int64_t, 3);
  int64_t m = INTEGER(5), begin = BEGIN, end = END;
  CHECK_TAGS(8);
  for (int k = 0; k < 8; ++k) mark[k] = begin;
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] * w[i % m];
  for (int k = 0; k < 8; ++k) if (mark[k] != begin) return raise_error("ValueError", "another task wrote this scratch");
  return 0;
}
KERNEL(picky) {
  int bad_tag = 0;
  const float* x = POINTER(const float, 0); float* y = POINTER(float, 1);
  int64_t begin = BEGIN, end = END;
  CHECK_TAGS(6);
  for (int64_t i = begin; i < end; ++i) {
    if (x[i] < 0) return raise_error("ValueError", "negative");
    y[i] = x[i] + 1;
  }
  return 0;
}
"""


def include_folders() -> list[str]:
    """Of ONNX Runtime, of tvm-ffi (struct layouts) and of the JSON parser."""
    import importlib.util

    headers = subprocess.check_output([ROOT / "tools" / "fetch_ort_headers.sh"], text=True).strip()
    found = [headers]
    for package in ("tvm_ffi", "nlohmann_json"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations
        found.append(str(Path(spec.submodule_search_locations[0]) / "include"))
    return found


def build() -> Path:
    """The program, compiled again only where something is newer; several at a time."""
    BUILD.mkdir(parents=True, exist_ok=True)
    sources = [*sorted((ROOT / "runtime" / "src").glob("*.cc")), HOST / "fake_ort.cc", HOST / "race.cc"]
    newest = max(p.stat().st_mtime for p in [*(ROOT / "runtime" / "src").iterdir(), *HOST.iterdir(), Path(__file__)])
    program = BUILD / "race"
    if program.is_file() and program.stat().st_mtime > newest:
        return program
    options = [*FLAGS, *(f"-isystem{folder}" for folder in include_folders()), f"-I{HOST}"]
    compiler = os.environ.get("CXX", "g++")
    objects = [BUILD / f"{s.stem}.o" for s in sources]
    waiting = list(zip(sources, objects, strict=True))
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        while waiting and len(running) < 2:
            source, target = waiting.pop()
            if not target.is_file() or target.stat().st_mtime < newest:
                running.append(subprocess.Popen([compiler, *options, "-c", str(source), "-o", str(target)]))
        if running and running.pop(0).wait() != 0:
            raise SystemExit("error: the thread sanitizer's build failed")
    temporary = BUILD / f"race.{os.getpid()}"
    subprocess.run([compiler, *FLAGS, *map(str, objects), "-ldl", "-rdynamic", "-o", str(temporary)], check=True)
    temporary.replace(program)
    return program


def prepare(folder: Path) -> Path:
    """The compiled kernels, the manifest, and the file of the nodes' attributes, which is returned."""
    sys.path.insert(0, str(Path(__file__).parent))
    import ep_support as ep

    from tilegraph.spec.dims import Dim

    library = ep.compile_c(ep.ADD_ONE + KERNELS, folder / "k.so", "-fsanitize=thread", "-g")
    size = Dim.symbol("n") * 8
    x, y = ep.tensor("x", "float", "n", 8), ep.tensor("y", "float", "n", 8)
    w = ep.tensor("w", "float", 8, constant=True)
    product = ep.program([x, w], [y], [
        ep.call("product", [ep.source(0), ep.source(1), ep.arena(0)], [size, 8], size, grain=8, align=8, scratch=64),
        ep.call("add_one", [ep.arena(0), ep.result(0)], [size], size, grain=16)], arena_bytes=size * 4)
    picky = ep.program([x], [y], [ep.call("picky", [ep.source(0), ep.result(0)], [size], size, grain=8)])
    artifact = ep.Artifact(library, {"product": product, "picky": picky})
    model = artifact.write(folder / "m")
    import onnx

    lines = []
    for node in onnx.load(model).graph.node:
        texts = [(a.name, a.s.decode()) for a in node.attribute if a.type == onnx.AttributeProto.STRING]
        lines.append("\n".join(f"{name}\t{text}" for name, text in texts))
    attributes = folder / "attributes"
    attributes.write_text("\n\n".join(lines) + "\n")
    return attributes


def run(seconds: float) -> subprocess.CompletedProcess[str]:
    program = build()
    with tempfile.TemporaryDirectory(prefix="race-") as folder:
        attributes = prepare(Path(folder))
        return subprocess.run([str(program), f"{folder}/m", str(attributes), str(seconds)], capture_output=True,
                              text=True, check=False,
                              env={**os.environ, "TSAN_OPTIONS": "halt_on_error=0:exitcode=66"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60)
    done = run(parser.parse_args().seconds)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
