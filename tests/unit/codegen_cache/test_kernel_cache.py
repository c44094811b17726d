"""The kernel cache: what is kept, what is noticed, and what never becomes an error."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tilegraph.codegen import cache as module
from tilegraph.codegen.cache import KernelCache, default_directory, kernel_key
from tilegraph.diagnostics import Diagnostics


def key(n: int) -> str:
    return kernel_key(f"kernel {n}", generator="1", tvm="0.27", isa="x86-64-v3")


def entries(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file())


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert cache.get(key(1)) is None
    cache.put(key(1), b"one")
    cache.put(key(2), b"")
    assert KernelCache(tmp_path).get(key(1)) == b"one"
    assert cache.get(key(2)) == b""
    assert (cache.hits, cache.misses) == (1, 1)
    cache.put(key(1), b"another")
    assert cache.get(key(1)) == b"another"


def test_every_part_of_the_key_counts() -> None:
    base = {"source": "s", "generator": "1", "tvm": "0.27", "isa": "x86-64-v3"}
    keys = {kernel_key(**base)} | {kernel_key(**{**base, part: base[part] + "x"}) for part in base}
    assert len(keys) == 5
    assert kernel_key("a", generator="bc", tvm="", isa="") != kernel_key("ab", generator="c", tvm="", isa="")


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_only_keys_name_entries(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ValueError, match="not a kernel key"):
        KernelCache(tmp_path).get(bad)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "header"])
def test_a_damaged_entry_is_absent_and_said_once(tmp_path: Path, damage: str) -> None:
    diagnostics = Diagnostics()
    cache = KernelCache(tmp_path, diagnostics=diagnostics)
    cache.put(key(1), bytes(range(200)))
    (path,) = entries(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    elif damage == "header":
        data[0] ^= 1
    path.write_bytes(data[:-1] if damage == "cut" else b"" if damage == "empty" else bytes(data))
    assert cache.get(key(1)) is None
    assert not path.exists()
    (said,) = diagnostics.of("cache", taken=False)
    assert "damaged" in said.reason
    assert said.subject == str(path)
    cache.put(key(1), b"again")
    assert cache.get(key(1)) == b"again"


def test_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, limit=10_000)
    for n in range(9):
        cache.put(key(n), bytes(1000))
        path = cache._path(key(n))
        assert path is not None
        os.utime(path, (n, n))
    assert cache.get(key(0)) is not None  # used now: the newest
    cache.put(key(9), bytes(1000))
    kept = [n for n in range(10) if cache.get(key(n)) is not None]
    assert 0 in kept
    assert 9 in kept
    assert 1 not in kept
    assert sum(p.stat().st_size for p in entries(tmp_path)) <= 10_000
    cache.put(key(10), bytes(10_001))  # larger than the whole store: not kept, nothing thrown out for it
    assert [n for n in range(11) if cache.get(key(n)) is not None] == kept


def test_another_process_filled_the_store(tmp_path: Path) -> None:
    for n in range(20):
        KernelCache(tmp_path).put(key(n), bytes(1000))
    KernelCache(tmp_path, limit=5000).put(key(30), bytes(1000))
    assert sum(p.stat().st_size for p in entries(tmp_path)) <= 5000


def test_one_put_in_sixteen_looks_at_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(KernelCache, "_evict", lambda self: looked.append(self))
    for n in range(400):
        KernelCache(tmp_path).put(key(n), b"small")  # each in a process of its own
    assert 10 <= len(looked) <= 45
    for n in range(5):
        KernelCache(tmp_path, limit=5000).put(key(n), b"large" * 20)
    assert len(looked[-5:]) == 5
    assert {c.limit for c in looked[-5:]} == {5000}


def test_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.put(key(1), b"one")
    old, new = (entries(tmp_path)[0].parent / n for n in (".put-old", ".put-new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    KernelCache(tmp_path, limit=1000).put(key(2), b"two")
    assert not old.exists()
    assert new.exists()


def test_a_store_that_cannot_be_made_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    diagnostics = Diagnostics()
    cache = KernelCache(tmp_path / "file" / "cache", diagnostics=diagnostics)
    cache.put(key(1), b"one")
    cache.put(key(2), b"two")
    assert cache.get(key(1)) is None
    (said,) = diagnostics.of("cache", taken=False)
    assert "TILEGRAPH_CACHE_DIR" in said.reason


def test_a_full_disk_is_a_note_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    diagnostics = Diagnostics()
    cache = KernelCache(tmp_path, diagnostics=diagnostics)
    monkeypatch.setattr(module.os, "replace", full)
    cache.put(key(1), b"one")
    assert entries(tmp_path) == []
    assert "No space left" in diagnostics.of("cache")[0].reason


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", "/mine")
    assert default_directory() == Path("/mine")
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", "")
    assert default_directory() == Path("/caches/tilegraph")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == Path("/home/someone/.cache/tilegraph")


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "default_directory", lambda: None)
    diagnostics = Diagnostics()
    cache = KernelCache(diagnostics=diagnostics)
    cache.put(key(1), b"one")
    assert cache.get(key(1)) is None
    assert len(diagnostics.of("cache")) == 1


def _work(directory: str, seed: int) -> int:
    cache = KernelCache(Path(directory), limit=20_000)
    wrong = 0
    for n in range(60):
        k = (n * 7 + seed) % 30
        data = bytes([k]) * 1000
        found = cache.get(key(k))
        wrong += found is not None and found != data
        cache.put(key(k), data)
    return wrong


def test_processes_share_it(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.starmap(_work, [(str(tmp_path), s) for s in range(3)]) == [0, 0, 0]
    assert all(not p.name.startswith(".") for p in entries(tmp_path))
