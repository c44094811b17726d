"""Definitions call `share` on whatever they use twice: otherwise codegen would evaluate a whole region twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tilegraph.ops import vecmath
from tilegraph.ops.pointwise import CONSTANTS, POINTWISE, PointOp


class Node:
    def __init__(self, dtype: str, op: str, *args: Node) -> None:
        self.dtype, self.op, self.args = dtype, op, args


class Recorder:
    """A `Math` that only records who uses what."""

    SAME = (
        "add sub mul div idiv irem fma neg abs minimum maximum floor ceil trunc round_even sqrt band bor bxor shl shr"
    )
    TO_BOOL = "eq ne lt le land lor lnot"

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _new(self, dtype: str, op: str, *args: Node) -> Node:
        self.nodes.append(Node(dtype, op, *args))
        return self.nodes[-1]

    def __getattr__(self, op: str) -> Any:
        if op in self.SAME.split():
            return lambda *args: self._new(args[0].dtype, op, *args)
        if op in self.TO_BOOL.split():
            return lambda *args: self._new("bool", op, *args)
        raise AttributeError(op)

    def dtype(self, v: Node) -> str:
        return v.dtype

    def const(self, value: Any, dtype: str) -> Node:
        return self._new(dtype, "const")

    def select(self, c: Node, a: Node, b: Node) -> Node:
        return self._new(a.dtype, "select", c, a, b)

    def bitcast(self, a: Node, dtype: str) -> Node:
        return self._new(dtype, "bitcast", a)

    def cast(self, a: Node, dtype: str) -> Node:
        return self._new(dtype, "cast", a)

    def libm(self, name: str, *args: Node) -> Node:
        return self._new(args[0].dtype, "libm", *args)

    def share(self, a: Node) -> Node:
        return a if a.op == "share" else self._new(a.dtype, "share", a)


def cheap(node: Node) -> bool:
    """Constants, shared values, and one operation on them: evaluating these twice costs nothing that matters."""
    if node.op in ("const", "share"):
        return True
    # Conditions are masks of a comparison or two, which a compiler merges; sharing them has a price of its own.
    return node.dtype == "bool" and node.op != "argument" and all(cheap(a) for a in node.args)


def check(m: Recorder, arguments: list[Node]) -> None:
    uses = Counter(id(a) for node in m.nodes for a in node.args)
    twice = [n for n in (*arguments, *m.nodes) if uses[id(n)] > 1 and not cheap(n)]
    assert not twice, [n.op for n in twice]


def attributes(op: PointOp) -> dict[str, Any]:
    return {"to": 10, "direction": "LEFT", "fmod": 0, CONSTANTS: {1: 3}}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("key", list(POINTWISE), ids="-".join)
def test_operators(key: tuple[str, str], dtype: str) -> None:
    op = POINTWISE[key]
    for count in {max(op.arity[0], 1), min(op.arity[1], 3)}:
        dtypes = [dtype] * count
        if op.name == "Where":
            dtypes[0] = "bool"
        if op.name in ("QuantizeLinear", "DequantizeLinear"):
            dtypes = [dtype, "float32", "uint8"][:count]
        if op.accepts(dtypes, attributes(op), 21) is not None:
            continue
        m = Recorder()
        arguments = [Node(d, "argument") for d in dtypes]
        op.fn(m, arguments, attributes(op), "uint8" if op.name == "QuantizeLinear" else dtype)
        check(m, arguments)


@pytest.mark.parametrize("name", [n for n in vecmath.__all__ if not n.startswith("pow")])
def test_vector_functions(name: str) -> None:
    m = Recorder()
    x = Node("float32", "argument")
    getattr(vecmath, name)(m, x)
    check(m, [x])


@pytest.mark.parametrize("exponent", [-4, -1, 2, 3, 4, 0.5, -0.5, 1.5])
def test_powers(exponent: float) -> None:
    m = Recorder()
    x = Node("float32", "argument")
    vecmath.pow_constant(m, x, exponent)
    check(m, [x])
    m = Recorder()
    y = Node("float32", "argument")
    vecmath.pow_general(m, x, y)
    check(m, [x, y])
