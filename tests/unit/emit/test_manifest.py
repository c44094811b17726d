"""manifest.json: round trips, its look, and everything that makes it unreadable."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from emit_models import LIBRARY
from hypothesis import given
from hypothesis import strategies as st

from tilegraph.emit import manifest as text
from tilegraph.errors import InputError, InternalError
from tilegraph.spec.artifact import KernelCall, Library, Manifest, Program, Slot, TensorSpec
from tilegraph.spec.dims import Dim

N, S = Dim.of("N"), Dim.of("S")


def sample(**report: Any) -> Manifest:
    program = Program((TensorSpec("x", "float", (N, S, Dim.of(64))), TensorSpec("w", "float", (Dim.of(64),), True)),
                      (TensorSpec("é", "float16", (N * S, Dim.of(64))),), N * S * 256 + 64,
                      (KernelCall("tg_ab12", (Slot("input", Dim.of(0)), Slot("arena", N * 64),
                                               Slot("output", Dim.of(0))),
                                  (N, S.ceildiv(16), Dim.max(N, S)), N * S, Dim.of(4), 2, Dim.of(128)),))
    return Manifest("cpu", Library("kernels.cpu.so", "ab" * 32, len(LIBRARY), "x86-64-v3", ("avxvnni",)),
                    {"p0": program}, "0" * 64, {"tilegraph": "0.1.0"}, report)


def test_round_trip() -> None:
    found = sample(regions=3, seconds={"fuse": 0.5}, refusals=[{"node": "n", "reason": "too small"}])
    assert text.from_bytes(text.to_bytes(found), "here") == replace(found, report={})  # which is a file of its own


def test_it_is_readable_and_compact() -> None:
    lines = text.to_bytes(sample(refusals=[{"node": f"node {n}", "reason": "too small"} for n in range(50)])) \
        .decode().splitlines()
    assert max(map(len, lines)) <= 120
    assert any(line.strip().startswith('"sizes": ["N", ') for line in lines)
    assert any('"é"' in line for line in lines)


json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                           | st.text(max_size=30), lambda inner: st.lists(inner, max_size=8)
                           | st.dictionaries(st.text(max_size=20), inner, max_size=8), max_leaves=40)


@given(st.dictionaries(st.text(max_size=30), json_values, max_size=6))
def test_the_pretty_form_is_json(report: dict[str, Any]) -> None:
    data = text.report_to_bytes({"report": report})
    assert json.loads(data)["report"] == report


def test_a_report_that_is_not_json() -> None:
    for bad in (float("nan"), {1, 2}):
        with pytest.raises(InternalError, match="cannot be written as JSON"):
            text.report_to_bytes({"bad": bad})


def changed(path: str, value: Any) -> bytes:
    data = copy.deepcopy(sample().to_json())
    *heads, last = path.split("/")
    at: Any = data
    for head in heads:
        at = at[int(head)] if isinstance(at, list) else at[head]
    if value is None:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(data).encode()


CALL = "partitions/p0/calls/0"


@pytest.mark.parametrize(("path", "value", "said"), [
    ("format", 2, "format 2, but this tilegraph reads format 1"),
    ("format", None, "not a tilegraph manifest"),
    ("abi", 9, "abi 9"),
    ("library", None, "'library' is missing"),
    ("library/sha256", None, "'sha256' is missing"),
    ("library/sha256", "xyz", "not a SHA-256"),
    ("library/file", "../kernels.so", "not a path inside the folder"),
    ("library/file", "/tmp/kernels.so", "not a path inside the folder"),
    ("library/bytes", -1, "negative library size"),
    ("library/bytes", "many", "damaged"),
    ("target", 3, "wrong type"),
    ("tools", ["a"], "wrong type"),
    ("partitions", 4, "damaged"),
    (f"{CALL}/symbol", "tg ab", "not a symbol"),
    (f"{CALL}/args/0", ["stack", 0], "slot kind 'stack'"),
    (f"{CALL}/args/0", ["input", 2], "uses input 2 of 2"),
    (f"{CALL}/args/0", ["input", "N"], "uses input N of 2"),
    (f"{CALL}/args/2", ["output", -1], "uses output -1 of 1"),
    (f"{CALL}/align", 0, "has align 0"),
    (f"{CALL}/extent", ["**", "N", 2], r"unknown operation '\*\*'"),
    (f"{CALL}/extent", ["//", "N", ["^", "S", "N"]], "unknown operation"),
    (f"{CALL}/extent", 1.5, "damaged"),
    (f"{CALL}/extent", [], "damaged"),
    (f"{CALL}/grain", None, "'grain' is missing"),
    ("partitions/p0/arena/bytes", None, "'bytes' is missing"),
])
def test_what_is_refused(path: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        text.from_bytes(changed(path, value), "here/manifest.json")
    assert "here/manifest.json" in str(error.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b'"x"', b"[" * 100_000])
def test_what_is_not_a_manifest(data: bytes) -> None:
    with pytest.raises(InputError, match="here"):
        text.from_bytes(data, "here")
    assert not text.is_manifest(data)


def test_another_format_is_still_recognised_as_ours() -> None:
    assert text.is_manifest(changed("format", 99))
    assert not text.is_manifest(b'{"format": 1, "name": "a web app"}')


@given(st.binary(max_size=3), st.integers(0, 2000))
def test_damage_never_gives_another_error(piece: bytes, at: int) -> None:
    data = bytearray(text.to_bytes(sample(regions=1)))
    at %= len(data)
    data[at:at + len(piece)] = piece
    with contextlib.suppress(InputError):
        text.from_bytes(bytes(data), "here")
