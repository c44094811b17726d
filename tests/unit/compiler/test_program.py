"""A partition as a program: pointers, sizes, the arena, and the symbols that its inputs bind."""

from __future__ import annotations

from typing import Any, cast

import onnx_ir as ir
import pytest

from tests.unit.fusion.parse import model
from tilegraph.codegen.generated import Kernel
from tilegraph.codegen.kernels import KernelStore
from tilegraph.compiler.program import Built, build, lowered_of
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import RegionFusion
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.spec.artifact import Slot
from tilegraph.spec.dims import Dim
from tilegraph.spec.schedule import DEFAULT, Schedule


class Store:
    """Describes kernels as the generator would, without generating any."""

    def __init__(self) -> None:
        self.made: list[Lowered] = []
        self.schedules: dict[str, Schedule] = {}

    def kernel(self, lowered: Lowered, kind: str = "Region", schedule: Schedule = DEFAULT) -> Kernel:
        self.made.append(lowered)
        slots = tuple(slot for slot, _ in lowered.inputs)
        symbols = sorted({s for prim in lowered.outputs for d in prim.shape for s in d.symbols})
        extent = Dim.product(lowered.outputs[0].shape)
        return Kernel(f"k{len(self.made)}", slots, tuple(range(len(lowered.outputs))), tuple(symbols), extent, 1,
                      Dim.of(0), Dim.of(64))


def program(graph: str, members: int | None = None) -> tuple[Built, list[ir.Node]]:
    """The program of all (or the first `members`) composites of a graph."""
    made = model(graph)
    RegionFusion("all").run(made, PassContext())
    calls = [n for n in made.graph if n.domain == DOMAIN][:members]
    inside = set(calls)
    outputs = [v for n in calls for v in n.outputs
               if v.is_graph_output() or any(u.node not in inside for u in v.uses())]
    return build(calls, outputs, made.functions, cast(KernelStore, cast(Any, Store()))), calls


TWO = """(float[N,8,16] x, float[16] b) => (float[N,128] y) <float[N,128] r> {
    last = Constant<value = int64[1] {-1}>() sh = Constant<value = int64[2] {-1, 128}>()
    m = ReduceMean(x, last) d = Sub(x, m) e = Add(d, b) r = Reshape(e, sh) y = Softmax<axis=-1>(r) }"""


def test_values_between_kernels_live_in_the_arena() -> None:
    built, calls = program(TWO)
    assert len(calls) == 2
    first, second = built.program.calls
    assert [v.name for v in built.inputs] == ["x", "b"]
    assert [v.name for v in built.outputs] == ["y"]
    assert first.args == (Slot("input", Dim.of(0)), Slot("input", Dim.of(1)), Slot("arena", Dim.of(0)))
    assert second.args == (Slot("arena", Dim.of(0)), Slot("output", Dim.of(0)))
    assert built.program.arena_bytes.evaluate({"N": 3}) >= 3 * 8 * 16 * 4
    assert first.sizes == (Dim.symbol("N"),)


def test_extents_of_inputs_follow_from_each_other() -> None:
    """Where no input has p or q, one has a name for their product, and twice that needs none."""
    built, _ = program("""(float["p*q",16] x, float["2*p*q",16] z) => (float["p*q",16] y, float["2*p*q",16] u)
        { a = Abs(x) y = Softmax<axis=-1>(a) b = Abs(z) u = Softmax<axis=-1>(b) }""")
    tokens = Dim.symbol("p*q")
    assert [v.shape[0] for v in built.program.inputs] == [tokens, tokens * 2]
    assert [v.shape[0] for v in built.program.outputs] == [tokens, tokens * 2]


THREE = """(float[N,8,16] x) => (float[N,8,16] y) {
    last = Constant<value = int64[1] {-1}>() both = Constant<value = int64[2] {1,2}>()
    m = ReduceMean(x, last) e = Sub(x, m) q = Abs(e) s = ReduceSum(q, both) f = Div(e, s)
    g = ReduceMax(f, last) d = Sub(f, g) y = Mul(d, e) }"""


def test_values_that_are_alive_together_lie_apart() -> None:
    """The third kernel reads what the first and the second made."""
    built, calls = program(THREE)
    assert len(calls) == 3
    last = [slot.at.evaluate({"N": 5}) for slot in built.program.calls[2].args if slot.kind == "arena"]
    assert len(last) == 2
    size = 5 * 8 * 16 * 4
    assert abs(last[0] - last[1]) >= size
    assert built.program.arena_bytes.evaluate({"N": 5}) >= max(last) + size


def test_inputs_and_outputs_carry_their_dtypes_and_shapes() -> None:
    built, _ = program("(float16[N,8] x, bool[8] c) => (float16[N,8] y, bool[8] z) { z = Not(c) y = Where(z, x, x) }")
    assert sorted((t.name, t.dtype, t.constant) for t in built.program.inputs) == [("c", "bool", False),
                                                                                 ("x", "float16", False)]
    by_name = {t.name: t for t in built.program.outputs}
    assert by_name["y"].shape == (Dim.symbol("N"), Dim.of(8))
    assert by_name["y"].dtype == "float16"


def test_a_value_read_inside_and_outside_is_an_output() -> None:
    built, calls = program("""(float[N,8,16] x, float[16] b) => (float[N,8,16] e, float[N,8,16] y) {
        last = Constant<value = int64[1] {-1}>() both = Constant<value = int64[2] {1,2}>()
        m = ReduceMean(x, last) d = Sub(x, m) e = Add(d, b) s = ReduceSum(e, both) y = Div(e, s) }""")
    assert len(calls) == 2
    assert sorted(v.name or "" for v in built.outputs) == ["e", "y"]
    assert built.program.arena_bytes == 0
    at = Slot("output", Dim.of([v.name for v in built.outputs].index("e")))
    assert at in built.program.calls[0].args
    assert at in built.program.calls[1].args


def test_initializers_are_constant_inputs() -> None:
    made = model("(float[4,8] x, float[8] w) => (float[4,8] y) { y = Mul(x, w) }")
    value = made.graph.inputs[1]
    value.const_value = ir.tensor([1.0] * 8, dtype=ir.DataType.FLOAT, name="w")
    made.graph.inputs.pop(1)
    made.graph.initializers["w"] = value
    RegionFusion("all").run(made, PassContext())
    calls = [n for n in made.graph if n.domain == DOMAIN]
    built = build(calls, list(made.graph.outputs), made.functions, cast(KernelStore, cast(Any, Store())))
    assert [(t.name, t.constant) for t in built.program.inputs] == [("x", False), ("w", True)]


def test_a_sum_that_no_input_takes_apart_is_one_symbol() -> None:
    built, _ = program("(float[B,past] x) => (float[B,past] y) { e = Exp(x) y = Neg(e) }")
    assert [str(d) for d in built.program.inputs[0].shape] == ["B", "past"]
    made = model("(float[B,T] x) => (float[B,T] y) { y = Exp(x) }")
    for value in (*made.graph.inputs, *made.graph.outputs):
        value.shape = ir.Shape(["B", ir.SymbolicDim("past+seq")])
    RegionFusion("all").run(made, PassContext())
    calls = [n for n in made.graph if n.domain == DOMAIN]
    built = build(calls, list(made.graph.outputs), made.functions, cast(KernelStore, cast(Any, Store())))
    (spec,) = built.program.inputs
    assert spec.shape[1].bare_symbol is not None
    assert built.program.outputs[0].shape == spec.shape
    assert built.program.calls[0].extent.symbols <= {"B", spec.shape[1].bare_symbol}


def test_an_extent_that_nothing_binds_is_declined() -> None:
    class Odd(Store):
        def kernel(self, lowered: Lowered, kind: str = "Region", schedule: Schedule = DEFAULT) -> Kernel:
            made = super().kernel(lowered, kind)
            return Kernel(made.symbol, made.slots, made.outputs, ("Z",), made.extent, 1, Dim.of(0), Dim.of(1))

    made = model("(float[N,8] x) => (float[N,8] y) { y = Exp(x) }")
    RegionFusion("all").run(made, PassContext())
    calls = [n for n in made.graph if n.domain == DOMAIN]
    with pytest.raises(Decline, match="the extent Z is not known from the partition's inputs"):
        build(calls, list(made.graph.outputs), made.functions, cast(KernelStore, cast(Any, Odd())))


def test_equal_composites_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[ir.Function] = []

    def counted(function: ir.Function) -> tuple[str, Lowered]:
        lowered.append(function)
        return lowered_of(function)

    monkeypatch.setattr("tilegraph.compiler.program.lowered_of", counted)
    built, calls = program("""(float[N,8] x, float[N,8] z) => (float[N,8] y, float[N,8] v) {
        a = Softmax<axis=-1>(x) y = Tanh(a) c = Softmax<axis=-1>(z) v = Tanh(c) }""")
    assert len(calls) == len(built.program.calls) == 2
    assert calls[0].op_type == calls[1].op_type
    assert len(lowered) == 1
