"""Lookups before the table is computed: operators, ranks, several readers, near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.rewrites.algebra import GatherEarly

STEP = GatherEarly()
Q = {"q": np.random.default_rng(0).integers(-127, 128, (9, 4)).astype(np.int8), "s": values(9, 1), "c": values(4),
     "one": values(1, 4), "p": values(9, 4)}
X = {"x": np.array([[0, 3, -1], [8, 4, -9]])}
HEAD = "g (int64[2, 3] x) => (T[2, 3, 4] y) { "
CAST = "f = Cast <to = TO> (q)  "


def text(body: str) -> str:
    return HEAD + CAST + body + " }"


@pytest.mark.parametrize(("body", "left"), [
    ("w = Mul(f, s)  y = Gather(w, x)", ["Gather", "Gather", "Cast", "Mul"]),
    ("w = Mul(s, f)  y = Gather(w, x)", ["Gather", "Gather", "Cast", "Mul"]),
    ("w = Mul(f, c)  y = Gather(w, x)", ["Gather", "Cast", "Mul"]),
    ("u = Sub(f, one)  w = Div(u, s)  v = Add(w, p)  y = Gather <axis = -2> (v, x)",
     ["Gather", "Gather", "Gather", "Cast", "Sub", "Div", "Add"]),
    ("y = Gather(f, x)", ["Gather", "Cast"]),
])
def test_tables(body: str, left: list[str]) -> None:
    for kind, to in (("float", 1), ("double", 11)):
        found = rewritten(STEP, text(body).replace("TO", str(to)), feeds=X, kinds=(kind,), rtol=0, **Q)
        assert sorted(found) == sorted(left)


@pytest.mark.parametrize(("inputs", "attrs"), [
    ("q, t", ""), ("q, t, z", ""), ("q, a, za", ""), ("q, a, za", "<axis = -1>"),
    ("q, b, zb", "<axis = 1, block_size = 2>"),
])
def test_dequantize(inputs: str, attrs: str) -> None:
    arrays = {"t": np.array(0.5), "z": np.array(3, np.int8), "a": values(4, low=0.2), "za": np.arange(4, dtype=np.int8),
              "b": values(9, 2, low=0.2), "zb": np.arange(18, dtype=np.int8).reshape(9, 2)}
    found = rewritten(STEP, HEAD + f"w = DequantizeLinear {attrs} ({inputs})  y = Gather(w, x) }}", feeds=X, opset=21,
                      kinds=("float",), rtol=0, **Q, **arrays)
    assert found[-1] == "DequantizeLinear"
    assert set(found) == {"Gather", "DequantizeLinear"}


def test_two_readers() -> None:
    body = "w = Mul(f, s)  a = Gather(w, x)  r = Gather(w, i)  y = Add(a, r)"
    found = rewritten(STEP, text(body).replace("TO", "1"), feeds=X, kinds=("float",), rtol=0, i=np.array([[1]]), **Q)
    assert found.count("Gather") == 4


def test_a_table_that_a_product_reads_too_is_kept_for_it() -> None:
    body = "w = Mul(f, s)  a = Gather(w, x)  wt = Transpose(w)  h = MatMul(a, wt)  y = MatMul(h, w)"
    found = rewritten(STEP, text(body).replace("TO", "1"), feeds=X, kinds=("float",), rtol=1e-5, **Q)
    assert found.count("Mul") == 2


@pytest.mark.parametrize("body", [
    "f = Cast <to = 1> (q)  y = Gather <axis = 1> (f, x)",
    "f = Cast <to = 1> (q)  v = Relu(f)  y = Gather(v, x)",
    "f = Cast <to = 1> (q)  v = Reshape(f, shape)  y = Gather(v, x)",
    "f = Cast <to = 1> (q)  w = Mul(f, given)  y = Gather(w, x)",
    "f = Cast <to = 1> (q)  y = Gather(f, scalar)",
    "f = Cast <to = 1> (q)  y = Gather(f, many)",
    "y = DequantizeLinear <axis = 0> (q, r)  z = Gather(y, x)",
])
def test_kept(body: str) -> None:
    arrays = {"q": Q["q"], "shape": np.array([9, 4]), "r": values(9), "scalar": np.array(3), "many": np.arange(9)}
    kept(STEP, f"g (int64[2, 3] x, float given) => (float y) {{ {body} }}", **arrays)
