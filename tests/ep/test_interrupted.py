"""Runs that are killed, disks that fill, processes that write the same places at once: never a folder that is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ep.interrupt import ROOT, Known, kill_once, left_behind, write_models
from tilegraph.compiler import optimize


@pytest.fixture
def known(tmp_path: Path) -> Known:
    return write_models(tmp_path)


def test_killed_in_each_stage_the_folder_is_as_before_or_new(tmp_path: Path, known: Known) -> None:
    kills = [kill_once(tmp_path, known, before, cached, stage, delay) for before, cached, stage, delay in (
        ("absent", False, "compiling", 0.3), ("one", True, "writing", 0.0), ("foreign", True, "writing", 0.002))]
    assert kills[0].stage == "compiling"
    shutil.rmtree(tmp_path / "m.tilegraph", ignore_errors=True)  # of something else, which is not replaced unasked
    # The next run cleans up what the killed ones left, and the cache that they filled gives right kernels.
    for name in ("one", "two"):
        optimize(tmp_path / f"{name}.onnx", offload="all", cache_dir=tmp_path / "cache").save(tmp_path / "m.tilegraph")
        assert left_behind(tmp_path, known) == name
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".tilegraph-tmp-")]


OPTIMIZE = """
import resource, sys
soft, hard = map(int, sys.argv[1].split(":"))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
from tilegraph.cli import main
sys.exit(main(["optimize", sys.argv[2], "--offload", "all", "-o", sys.argv[3], "--cache-dir", sys.argv[4]]))
"""


def clean_failure(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 3, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("limit", "earlier", "cached"), [
    ("0:-1", True, True), ("700:-1", False, False), ("6000:-1", True, True), ("700:700", True, False)])
def test_files_that_cannot_grow(tmp_path: Path, known: Known, limit: str, earlier: bool, cached: bool) -> None:
    """A clean error, and what was there before stays, whether kernels are in the cache already or have to be compiled:
    LLVM would end the process. A limit that cannot be raised ("soft:hard") is named."""
    if cached:
        optimize(tmp_path / "two.onnx", offload="all", cache_dir=tmp_path / "cache")
    if earlier:
        optimize(tmp_path / "one.onnx", offload="all").save(tmp_path / "m.tilegraph")
    done = subprocess.run([sys.executable, "-c", OPTIMIZE, limit, "two.onnx", "m.tilegraph", str(tmp_path / "cache")],
                          cwd=tmp_path, capture_output=True, text=True, check=False)
    clean_failure(done)
    assert ("ulimit -f" in done.stderr) is (limit == "700:700")
    assert left_behind(tmp_path, known) == ("one" if earlier else "absent")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".tilegraph-tmp-")]


@pytest.mark.parametrize(("kilobytes", "all_on_it"), [(4, False), (32, True)])
def test_a_disk_that_fills(tmp_path: Path, known: Known, kilobytes: int, all_on_it: bool) -> None:
    """A real file system of a few kilobytes that holds the output alone, so that it fills while the folder is written,
    or the cache and the temporary files, too, so that it fills while kernels are compiled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = [sys.executable, "-c", OPTIMIZE, f"{1 << 40}:-1", str(tmp_path / "two.onnx"), str(disk / "m.tilegraph"),
                 str((disk if all_on_it else tmp_path) / "cache")]
    script = f"mount -t tmpfs -o size={kilobytes}k none {disk} && mkdir {disk}/tmp && \"$@\"; echo $?; ls -A {disk}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True,
                          check=False, env={**os.environ, "TMPDIR": str(disk / "tmp" if all_on_it else tmp_path)})
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    code = next(line for line in done.stdout.splitlines() if line.isdigit())
    left = done.stdout.splitlines()[done.stdout.splitlines().index(code) + 1:]
    clean_failure(subprocess.CompletedProcess(arguments, int(code), done.stdout, done.stderr))
    assert set(left) <= {"tmp", "cache"}, left
    assert all_on_it or "m.tilegraph: the disk is full" in done.stderr, done.stderr


WRITER = """
import sys
from pathlib import Path
from tilegraph.compiler import optimize
place = Path(sys.argv[1])
sys.stdin.readline()
for _ in range(3):
    optimize(place / "two.onnx", offload="all", cache_dir=place / "cache").save(place / "m.tilegraph")
"""


def test_two_processes_and_one_cache(tmp_path: Path, known: Known) -> None:
    """Both compile the same kernels into the same cache and write the same folder at the same time."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, problems = writer.communicate(timeout=120)
        assert writer.returncode == 0, problems
    assert left_behind(tmp_path, known) == "two"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".tilegraph-tmp-")]
