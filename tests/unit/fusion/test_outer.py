"""Which reductions ONNX Runtime has no fast path for, and that the price knows it."""

from __future__ import annotations

import pytest

from tests.unit.fusion.parse import model
from tests.unit.fusion.test_regions import fuse
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import RegionFusion
from tilegraph.rewrites.fusion.outer import slow_ns


def node(op: str, shape: str, axes: str, rest: str = "") -> float:
    made = model(f"(float[{shape}] x) => (float[{shape}] y) {{ a = Constant<value = int64[{axes.count(',') + 1}] "
                 f"{{{axes}}}>() r = {op}(x, a) {rest} y = Add(r, x) }}", 18)
    return slow_ns(next(n for n in made.graph if n.op_type == op))


@pytest.mark.parametrize(("op", "shape", "axes", "slow"), [
    ("ReduceMean", "1,512,768", "1", True),
    ("ReduceMean", "2,512,768", "1", False),
    ("ReduceMean", "1,512,768", "2", False),
    ("ReduceMean", "1,512,1", "1", False),
    ("ReduceSum", "4,32,16,48", "0, 2", True),
    ("ReduceSum", "4,32,16,48", "0, 2, 3", False),
    ("ReduceMax", "512,768", "0", True),
    ("ReduceSum", "512,768", "0", False),
    ("ReduceL2", "4,32,48", "1", True),
    ("ReduceL2", "4,32,48", "2", False),
])
def test_reductions(op: str, shape: str, axes: str, slow: bool) -> None:
    assert (node(op, shape, axes) > 0) is slow


@pytest.mark.parametrize(("axis", "shape", "slow"), [
    (1, "2,8,32", True), (-1, "2,8,32", False), (1, "2,8,1", False), (0, "8,32", True),
])
def test_softmax(axis: int, shape: str, slow: bool) -> None:
    made = model(f"(float[{shape}] x) => (float[{shape}] y) {{ y = Softmax<axis={axis}>(x) }}", 13)
    assert (slow_ns(next(iter(made.graph))) > 0) is slow


def test_places_of_extrema_are_slow() -> None:
    made = model("(float[8,32] x) => (int64[8,1] y) { y = ArgMax<axis=1>(x) }", 13)
    assert slow_ns(next(iter(made.graph))) > 0


@pytest.mark.parametrize(("shape", "wins"), [("1,512,768", True), ("2,512,768", False)])
def test_the_price_decides(shape: str, wins: bool) -> None:
    made, _, _ = fuse(f"""(float[{shape}] x) => (float[{shape[0]},1,768] y) {{
        a = Constant<value = int64[1] {{1}}>() y = ReduceMean(x, a) }}""", offload="auto")
    assert any(n.domain == "ai.tilegraph" for n in made.graph) is wins


@pytest.mark.parametrize(("text", "ops"), [
    ("(float[4,64,56,56] x, float[64] b) => (float[4,56,56,64] y) { t = Transpose<perm=[0,2,3,1]>(x) y = Add(t, b) }",
     ["Transpose", "Add"]),
    ("(float[1,64,64,64] x, float[16,1,1] b) => (float[1,16,128,128] y) { t = DepthToSpace<blocksize=2>(x) "
     "y = Add(t, b) }", ["DepthToSpace", "Add"]),
])
def test_moves_that_join_what_reads_them(text: str, ops: list[str]) -> None:
    """A transposed operand is turned in registers; ONNX Runtime moves blocks element by element, too."""
    made, context = model(text, 17), PassContext()
    assert RegionFusion("auto").run(made, context).modified
    (decision,) = [d for d in context.diagnostics.of("fusion") if d.taken]
    assert decision.data["ops"] == ops


def test_a_slice_with_steps_does_not_join() -> None:
    made, context = model("""(float[512,512] x, float[256] b) => (float[512,256] y) {
        f = Constant<value = int64[1] {0}>() e = Constant<value = int64[1] {512}>() a = Constant<value = int64[1] {1}>()
        s = Constant<value = int64[1] {2}>() t = Slice(x, f, e, a, s) y = Add(t, b) }""", 17), PassContext()
    RegionFusion("auto").run(made, context)
    assert any("element by element" in d.reason for d in context.diagnostics.of("fusion") if not d.taken)
