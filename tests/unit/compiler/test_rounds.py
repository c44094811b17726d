"""Which neighbouring calls run a few batch elements at a time, and what then lives for one round only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest

from tilegraph.codegen.generated import Items, Kernel
from tilegraph.compiler.program import _lifetimes
from tilegraph.compiler.rounds import Local, find_rounds, lifetimes
from tilegraph.spec.artifact import Rounds
from tilegraph.spec.dims import Dim, Shape

N, ITEM = Dim.symbol("N"), Dim.of(1 << 17)


@dataclass(frozen=True)
class Call:
    kernel: Kernel
    reads: tuple[ir.Value, ...]
    writes: tuple[ir.Value, ...]


def value(name: str) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", ITEM.value]))


def weights(count: int) -> ir.Value:
    made = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([count]),
                    const_value=ir.tensor(np.zeros(count, np.float32)))
    ir.Graph([], [], nodes=[], initializers=[made])
    return made


X, A, B, C, Y = map(value, "xabcy")


def call(reads: list[ir.Value], write: ir.Value, strides: list[Dim] | None = None, count: Dim = N, align: int = 1,
         items: bool = True, grain: int = 1) -> Call:
    given = strides or [Dim.of(0) if v.is_initializer() else ITEM for v in (*reads, write)]
    kernel = Kernel("k", tuple(range(len(reads))), (0,), (), count * 4, align, Dim.of(0),
                    Dim.of(grain), items=Items(count, tuple(given)) if items else None)
    return Call(kernel, tuple(reads), (write,))


def found(*calls: Call, outputs: tuple[ir.Value, ...] = (Y,), shapes: dict[ir.Value, Shape] | None = None,
          ) -> tuple[tuple[Rounds, ...], dict[ir.Value, Local]]:
    known = {v: (N, ITEM) for c in calls for v in c.writes} | (shapes or {})
    return find_rounds(calls, known, outputs, lambda d: d, {"N"})


def test_a_chain() -> None:
    (rounds,), local = found(call([X], A), call([A], B), call([B, A], Y))
    assert (rounds.first, rounds.calls, rounds.items) == (0, 3, N)
    assert [rounds.step.evaluate({"N": n}) for n in (0, 1, 2, 9)] == [0, 1, 2, 2]  # 2 of 1 MB in 2 MB
    assert local == {v: Local(rounds, ITEM * 4) for v in (A, B)}


def test_small_items_come_in_larger_rounds() -> None:
    """A call of four tasks on average: threads have nothing to share in less."""
    (rounds,), _ = found(call([X], A, grain=16), call([A], B, grain=32), call([B], Y, grain=16))
    assert [rounds.step.evaluate({"N": n}) for n in (0, 8, 64, 640)] == [0, 8, 19, 19]


def test_a_name_that_a_dim_has() -> None:
    calls = [call([X], A), call([A], Y)]
    ((rounds,), _) = find_rounds(calls, dict.fromkeys((A, Y), (N, ITEM)), (Y,), lambda d: d,
                                 {"N", "round0", "round0_"})
    assert rounds.name == "round0__"


def test_what_others_read_is_whole() -> None:
    (rounds,), local = found(call([X], A), call([A], B), call([A, B], C), call([C], Y, items=False), outputs=(Y, B))
    assert rounds.calls == 3
    assert set(local) == {A}


@pytest.mark.parametrize(("second", "begins"), [
    (call([A], B, items=False), False),  # no kernel of items
    (call([A], B, align=16), False),
    (call([A], B, count=Dim.of(4)), False),  # another batch
    (call([A], B, [Dim.of(0), ITEM]), True),  # all items read the first
    (call([A], B, [ITEM * 2, ITEM]), True),
    (call([A], B, [ITEM, ITEM * 2]), False),  # of a result that is larger than its items
    (call([A, weights(1 << 18 | 1)], B), False),  # more than the caches keep
], ids=range(7))
def test_where_a_chain_ends(second: Call, begins: bool) -> None:
    assert found(call([X], A), second) == ((), {})
    rounds, local = found(call([X], A), second, call([B], C), call([C], Y))
    assert [(r.first, r.calls) for r in rounds] == [(1, 3) if begins else (2, 2)]
    assert set(local) == ({B, C} if begins else {C})


def test_weights_that_outweigh_an_item() -> None:
    """Rounds that large images need would read the weights of a later kernel of small images again and again."""
    small, none = Dim.of(1 << 14), Dim.of(0)
    for count, expected in ((1 << 16, [(0, 4)]), (1 << 16 | 1, [(2, 2)])):
        light = call([A, weights(count)], B, [small, none, small])
        calls = call([X], A, [ITEM, small]), light, call([B], C, [small, ITEM]), call([C], Y)
        rounds, _ = found(*calls, shapes={A: (N, small), B: (N, small)})
        assert [(r.first, r.calls) for r in rounds] == expected


def test_few_weights_and_small_batches() -> None:
    few = call([A, weights(1 << 18)], Y)
    assert len(found(call([X], A), few)[0]) == 1
    batch = Dim.of(2)
    shapes = dict.fromkeys((A, Y), (batch, ITEM))
    calls = [call([X], A, count=batch), call([A], Y, count=batch)]
    assert find_rounds(calls, shapes, (Y,), lambda d: d, ()) == ((), {})  # all of it is 1 MB


def test_lifetimes() -> None:
    rounds = [Rounds(2, 3, N, N, "r"), Rounds(6, 2, N, N, "s")]
    assert lifetimes([3, 4], rounds, local=True) == (3, 4)
    assert lifetimes([0, 1], rounds, local=False) == (0, 1)
    assert lifetimes([0, 3], rounds, local=False) == (0, 4)  # a later round reads it again
    assert lifetimes([3, 5], rounds, local=False) == (2, 5)  # an earlier round's part stays
    assert lifetimes([4, 6], rounds, local=False) == (2, 7)


def test_rounds_of_one_step_share_memory() -> None:
    d = value("d")
    calls = call([X], A), call([A], B), call([B], C, items=False), call([C], d), call([d], Y)
    rounds, local = found(*calls)
    assert [(r.first, r.calls) for r in rounds] == [(0, 2), (3, 2)]
    inner = [A, B, C, d]
    buffers = _lifetimes(inner, cast(Any, calls), dict.fromkeys(inner, (N, ITEM)), rounds, local)
    sizes = {v: b.bytes for v, b in zip(inner, buffers, strict=True)}
    assert sizes[A] == sizes[d] == ITEM * 4 * Dim.symbol("round0")
    assert sizes[B] == sizes[C] == ITEM * 4 * N
    assert [(b.first, b.last) for b in buffers] == [(0, 1), (0, 2), (2, 4), (3, 4)]
