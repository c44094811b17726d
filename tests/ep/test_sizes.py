"""Expressions, hashes and base64 against Python's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilegraph.runtime as runtime

COUNT = 12  # expressions in one manifest
OFFSET = 10**12  # keeps what the kernel gets from being negative
# y[k] = the k-th size; arguments x, y, scratch, sizes..., begin, end
SIZES = f"""
KERNEL(sizes) {{
  int bad_tag = 0;
  int64_t* y = POINTER(int64_t, 1);
  for (int k = 0; k < {COUNT}; ++k) y[k] = INTEGER(3 + k);
  CHECK_TAGS({COUNT} + 5);
  return 0;
}}
"""

EXPRESSIONS = st.recursive(
    st.integers(-50, 50) | st.sampled_from(["n", "m"]),
    lambda inner: st.tuples(st.sampled_from(["+", "*", "min", "max"]), st.lists(inner, min_size=1, max_size=3)).map(
        lambda t: [t[0], *t[1]])
    | st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 9) | st.integers(-9, -1)).map(list),
    max_leaves=12)


def value(expression: Any, binding: dict[str, int]) -> int:
    """What docs/manifest.md says, in Python's integers."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return binding[expression]
    op, *rest = expression
    values = [value(e, binding) for e in rest]
    if op in ("min", "max"):
        return min(values) if op == "min" else max(values)
    result = values[0]
    for v in values[1:]:
        result = {"+": lambda a, b: a + b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
                  "%": lambda a, b: a % b}[op](result, v)
    return result


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(EXPRESSIONS, min_size=COUNT, max_size=COUNT), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)),
                                                                       min_size=3, max_size=3))
def test_expressions(compile_kernels: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory,
                     expressions: list[Any], bindings: list[tuple[int, int]]) -> None:
    spec = ep.program([ep.tensor("x", "float", "n", "m")], [ep.tensor("y", "int64", COUNT)],
                      [ep.call("sizes", [ep.source(0), ep.result(0)], [0] * COUNT, 1)])

    def edit(data: dict[str, Any]) -> None:
        data["partitions"]["p"]["calls"][0]["sizes"] = [["+", e, OFFSET] for e in expressions]

    artifact = ep.Artifact(compile_kernels(SIZES), {"p": spec}, edit_manifest=edit)
    session = runtime.session(artifact.write(tmp_path_factory.mktemp("sizes")))
    for n, m in bindings:
        want = [value(e, {"n": n, "m": m}) for e in expressions]
        if any(abs(v) >= OFFSET for v in want):
            continue
        got = session.run(None, {"x": np.zeros((n, m), np.float32)})[0]
        np.testing.assert_array_equal(got - OFFSET, want)


def test_hashes_of_every_length(tmp_path: Path, add_one: Path) -> None:
    """The manifest with 0 to 64 blanks behind it: every way to fill the hash's last block."""
    artifact = ep.Artifact(add_one, {"p": ep.add_one_program(3)})
    text = json.dumps(artifact.manifest())
    library = hashlib.sha256(add_one.read_bytes()).hexdigest()
    for blanks in range(65):
        padded = (text + " " * blanks).encode()
        notes = {"manifest": "manifest.json", "manifest_sha256": hashlib.sha256(padded).hexdigest(),
                 "library_sha256": library}
        artifact.nodes = [ep.Node("p", attributes={"notes": json.dumps(notes)})]
        path = artifact.write(tmp_path)
        (tmp_path / "manifest.json").write_bytes(padded)
        runtime.session(path)


@pytest.mark.parametrize("extra", range(3))
def test_base64_of_every_length(tmp_path: Path, add_one: Path, extra: int) -> None:
    library = tmp_path / "k.so"
    library.write_bytes(add_one.read_bytes() + b"\xff" * extra)
    session = runtime.session(ep.Artifact(library, {"p": ep.add_one_program(3)}, embed=True).write(tmp_path / "m"))
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(3, np.float32)})[0], np.ones(3))
