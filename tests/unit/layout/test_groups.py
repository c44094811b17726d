"""Which groups are filled up, to what, and where that is refused."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tests.unit.conv.test_units import weights
from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.rewrites.layout.groups import Sizes, WholeGroups, sizes_for
from tilegraph.rewrites.normalise import NORMALISE


def rewritten(text: str, offload: str = "auto") -> tuple[ir.Model, PassContext, bool]:
    graph, context = model(text), PassContext()
    for step in NORMALISE:
        step.run(graph, PassContext())
    return graph, context, WholeGroups(offload).run(graph, context).modified


def text(kernel: int = 3, tail: str = "y = MaxPool<kernel_shape = [2, 2]>(c)") -> str:
    w = weights("w", 12, 3, kernel, kernel)
    return (f"(float[1,12,56,56] x) => (float[1,12,a,b] y) {{ {w} p = MaxPool<kernel_shape = [1, 1]>(x) "
            f"c = Conv<group = 4>(p, w) {tail} }}")


# The kernel would gain less than bringing its source into blocks and its result out of them takes.
ALONE = f"(float[1,12,56,56] x) => (float[1,12,a,b] y) {{ {weights('w', 12, 3, 3, 1)} y = Conv<group = 4>(x, w) }}"


@pytest.mark.parametrize(("lanes", "sizes", "wanted"), [
    (16, (3, 3), {(4, 4), (4, 8), (8, 8), (4, 16), (8, 16), (16, 16)}), (16, (20, 24), {(32, 32)}),
    (8, (3, 3), {(4, 4), (4, 8), (8, 8)}), (16, (16, 3), {(16, 16)}), (16, (1, 3), {(1, 4), (2, 4)}),
    (16, (4, 4), set()), (16, (4, 8), set()), (16, (1, 1), set()), (16, (16, 32), set()), (16, (48, 48), set()),
])
def test_what_has_a_blocked_form(lanes: int, sizes: tuple[int, int], wanted: set[tuple[int, int]]) -> None:
    found = {(s.depth, s.filters) for s in sizes_for(Sizes(*sizes), lanes)}
    assert found >= wanted
    assert bool(found) == bool(wanted)


def test_channels_and_filters_are_copied_and_filters_left_out_again_behind_what_is_pointwise() -> None:
    graph, context, modified = rewritten(text(tail="s = Sigmoid(c) m = Mul(c, s) k = Constant<value = float {2.}>() "
                                                   "d = Div(m, k) y = MaxPool<kernel_shape = [2, 2]>(d)"))
    assert modified
    assert [n.op_type for n in graph.graph] == [
        "MaxPool", "Gather", "Conv", "Sigmoid", "Mul", "Div", "Gather", "MaxPool"]
    assert [v.shape[1] for n in graph.graph for v in n.outputs if v.shape] == [12, 16, 16, 16, 16, 16, 12, 12]
    assert "groups of 3 to 3 channels are groups of 4 to 4" in context.diagnostics.of("whole-groups")[0].reason
    assert not WholeGroups().run(graph, context).modified


def test_a_number_of_more_axes_stays_behind_what_is_left_out() -> None:
    graph, _, modified = rewritten(text(tail="k = Constant<value = float[1,1,1,1,1] {2.}>() d = Mul(c, k) "
                                             "s = Constant<value = int64[4] {1, 12, 54, 54}>() e = Reshape(d, s) "
                                             "y = MaxPool<kernel_shape = [2, 2]>(e)"))
    assert modified
    assert [n.op_type for n in graph.graph][:5] == ["MaxPool", "Gather", "Conv", "Gather", "Mul"]


def test_refusals() -> None:
    for case, reason in ((text(kernel=1), "µs in ONNX Runtime"), (ALONE, "µs in ONNX Runtime"),
                         ("(float[1,6,9,9] x, float[6,3,3,3] w) => (float[1,6,7,7] y) { y = Conv<group = 2>(x, w) }",
                          "not constant")):
        graph, context, modified = rewritten(case)
        assert not modified
        assert reason in context.diagnostics.of("whole-groups", taken=False)[0].reason
        assert "Gather" not in [n.op_type for n in graph.graph]
    assert not rewritten(text(), "none")[2]
