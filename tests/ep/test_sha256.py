"""SHA-256 of the runtime, with the CPU's instructions where it has them and without, against hashlib."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "runtime" / "src"


def test_both_ways_agree_with_hashlib(tmp_path: Path) -> None:
    program = tmp_path / "sha256"
    main = Path(__file__).parent / "host" / "sha256_main.cc"
    subprocess.run(["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(SOURCES),
                    str(main), str(SOURCES / "sha256.cc"), "-o", str(program)], check=True)
    # Around the ends of a block and of the room for the length, and a few whole files.
    sizes = [*range(0, 200), 255, 256, 257, 1000, 4096, 100_003]
    done = subprocess.run([str(program)], input="\n".join(map(str, sizes)), capture_output=True, text=True, check=True)
    expected = [hashlib.sha256(bytes((i * 7 + 1) % 256 for i in range(size))).hexdigest() for size in sizes]
    assert [line.split() for line in done.stdout.splitlines()] == [[e, e] for e in expected]
