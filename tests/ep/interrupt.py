"""Kills `optimize` in every stage and looks at what is left.

    python -m tests.ep.interrupt [--count 30]

An undisturbed run of the same child tells how long compiling and writing take; kills are spread over both, half of them
over the writing. They fall on a place that is free, on one that holds an earlier result, and with force on a folder of
something else, with kernels in the cache and without. What is left must be what was there before, or the new result,
whole. Exit code 1 if no kill fell into the writing: then it would say nothing about it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import onnx

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import sys
from pathlib import Path
from tilegraph.compiler import optimize
place, name = Path(sys.argv[1]), sys.argv[2]
print("compiling", flush=True)
made = optimize(place / f"{name}.onnx", offload="all", cache_dir=place / "cache")
print("writing", flush=True)
made.save(place / "m.tilegraph", force="force" in sys.argv)
print("done", flush=True)
"""
STAGES = ("compiling", "writing")
BEFORE = ("absent", "one", "foreign")  # what is at the place: nothing, the other model's folder, something else
FOREIGN = "something else"
Known = dict[str, tuple[dict[str, Any], list[Any]]]


class Kill(NamedTuple):
    stage: str  # that the child was in: "compiling", "writing" or "done"
    before: str
    left: str  # "absent", "foreign", or the model that the folder serves
    partial: bool  # a folder in the making stayed beside the place: the kill fell between its begin and its end


def write_models(place: Path) -> Known:
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


def left_behind(place: Path, known: Known) -> str:
    """"absent", "foreign", or which model the folder serves; AssertionError or InputError if none of these, whole."""
    from tests.numeric.compiler.served import same
    from tilegraph import runtime
    from tilegraph.emit import read_folder

    folder = place / "m.tilegraph"
    if not folder.exists():
        return "absent"
    if (folder / "notes.txt").exists():
        assert [(p.name, p.read_text()) for p in folder.iterdir()] == [("notes.txt", FOREIGN)]
        return "foreign"
    read_folder(folder)
    session = runtime.session(folder, threads=1)
    for name, (feeds, wanted) in known.items():
        found = session.run(None, feeds)
        if [f.shape for f in found] == [w.shape for w in wanted]:
            same(found, wanted)
            return name
    raise AssertionError("the folder serves neither model")


def _child(place: Path, before: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CHILD, str(place), "two", *(["force"] if before == "foreign" else [])]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _prepare(place: Path, before: str, cached: bool) -> None:
    folder = place / "m.tilegraph"
    shutil.rmtree(folder, ignore_errors=True)
    if before == "one":
        if not (place / "kept").exists():
            from tilegraph.compiler import optimize

            optimize(place / "one.onnx", offload="all").save(place / "kept")
        shutil.copytree(place / "kept", folder)
    elif before == "foreign":
        folder.mkdir()
        (folder / "notes.txt").write_text(FOREIGN)
    if not cached:
        shutil.rmtree(place / "cache", ignore_errors=True)


def undisturbed(place: Path, cached: bool) -> dict[str, float]:
    """Seconds of each stage of a run that replaces a folder, to its end."""
    _prepare(place, "one", cached)
    with _child(place, "one") as child:
        assert child.stdout is not None
        at = {line.strip(): time.perf_counter() for line in child.stdout}
    assert child.returncode == 0
    return {"compiling": at["writing"] - at["compiling"], "writing": at["done"] - at["writing"]}


def kill_once(place: Path, known: Known, before: str, cached: bool, stage: str, delay: float) -> Kill:
    """Kills the child `delay` seconds after it began `stage`. AssertionError if what is left is neither what was there
    before nor the new result, or not what the stage that it had reached allows."""
    _prepare(place, before, cached)
    old = _leftovers(place)
    child = _child(place, before)
    assert child.stdout is not None
    try:
        reached = next(line.strip() for line in child.stdout if line.strip() == stage)
        if delay:
            time.sleep(delay)
    finally:
        child.kill()
        child.wait()
        rest = child.stdout.read().split()
        child.stdout.close()
    reached = rest[-1] if rest else reached
    left = left_behind(place, known)
    allowed = {"compiling": {before}, "writing": {before, "two"}, "done": {"two"}}[reached]
    assert left in allowed, f"killed while {reached}: {left} is left of {before}"
    return Kill(reached, before, left, bool(_leftovers(place) - old))


def _leftovers(place: Path) -> set[str]:
    return {p.name for p in place.iterdir() if p.name.startswith(".tilegraph-tmp-")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=30)
    count = parser.parse_args().count
    choose = random.Random(0)
    kills = []
    with tempfile.TemporaryDirectory(prefix="interrupt-") as folder:
        place = Path(folder)
        known = write_models(place)
        took = {cached: undisturbed(place, cached) for cached in (False, True)}
        for cached, seconds in took.items():
            print(f"undisturbed, {'with' if cached else 'without'} kernels in the cache: "
                  + ", ".join(f"{stage} {1000 * s:.1f} ms" for stage, s in seconds.items()))
        for k in range(count):
            stage, cached = STAGES[k % 2], choose.random() < 0.5
            kills.append(kill_once(place, known, BEFORE[k // 2 % 3], cached, stage,
                                   choose.random() * took[cached][stage]))
    for name, which in (("nothing", "absent"), ("an old whole folder", "one"), ("something else, whole", "foreign"),
                        ("a new whole folder", "two")):
        print(f"left {name}: {sum(k.left == which for k in kills)}")
    print(f"killed {count} times, while: {dict(Counter(k.stage for k in kills))}; a folder in the making stayed "
          f"{sum(k.partial for k in kills)} times: {dict(Counter(f'over {k.before}' for k in kills if k.partial))}")
    if not any(k.partial for k in kills):
        print("no kill fell into the writing: more of them (--count)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
