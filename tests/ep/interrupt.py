"""Kills `optimize` at random moments and looks at what is left.

    python -m tests.ep.interrupt [--count 50]

A child writes two models to the same folder in turn, through one kernel cache that it has to fill again and again.
After each kill the folder is either not there, or serves one of the two models rightly.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import shutil, sys
from pathlib import Path
from tilegraph.compiler import optimize
place = Path(sys.argv[1])
print("ready", flush=True)
while True:
    for name in ("one", "two"):
        optimize(place / f"{name}.onnx", offload="all", cache_dir=place / "cache").save(place / "m.tilegraph")
    shutil.rmtree(place / "cache", ignore_errors=True)
"""


def write_models(place: Path) -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Two models of several kernels, with inputs and what ONNX Runtime answers."""
    from tests.numeric.compiler.served import THREE_KERNELS, TWO_KERNELS, normal, reference
    from tests.unit.fusion.parse import proto

    known = {}
    for name, text in (("one", TWO_KERNELS), ("two", THREE_KERNELS)):
        model = proto(text, 18)
        onnx.save(model, place / f"{name}.onnx")
        feeds = {"x": normal(3, 8, 16)}
        known[name] = (feeds, reference(model, feeds))
    return known


def left_behind(place: Path, known: dict[str, tuple[dict[str, Any], list[Any]]]) -> str:
    """"absent", or which model the folder serves; AssertionError if neither."""
    from tests.numeric.compiler.served import same
    from tilegraph import runtime
    from tilegraph.emit import read_folder

    folder = place / "m.tilegraph"
    if not folder.exists():
        return "absent"
    read_folder(folder)
    session = runtime.session(folder, threads=1)
    for name, (feeds, wanted) in known.items():
        found = session.run(None, feeds)
        if [f.shape for f in found] == [w.shape for w in wanted]:
            same(found, wanted)
            return name
    raise AssertionError("the folder serves neither model")


def kill_once(place: Path, known: dict[str, tuple[dict[str, Any], list[Any]]], delay: float) -> str:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(place)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(delay)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return left_behind(place, known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=50)
    count = parser.parse_args().count
    choose = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="interrupt-") as folder:
        place = Path(folder)
        known = write_models(place)
        found: dict[str, int] = {}
        for _ in range(count):
            left = kill_once(place, known, choose.random() * 2.5)
            found[left] = found.get(left, 0) + 1
            if choose.random() < 0.3:
                shutil.rmtree(place / "m.tilegraph", ignore_errors=True)
    print(f"killed {count} times; left: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
