"""Small nodes beside kernels: which join their partition, and each reason to stay out."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.fusion import AbsorbLeftovers
from tilegraph.rewrites.gemm import GemmFusion
from tilegraph.rewrites.normalise import NORMALISE

W = "w = Constant<value = float[64,64] {" + ", ".join(str(k % 7 - 3) for k in range(64 * 64)) + "}>()"


def absorbed(text: str, offload: str = "auto") -> tuple[ir.Model, list[str], list[str]]:
    """The model, the operators of each absorbed kernel, and the reasons against others."""
    graph = model(text)
    for step in NORMALISE:
        step.run(graph, PassContext())
    GemmFusion().run(graph, PassContext())
    context = PassContext()
    result = AbsorbLeftovers(offload).run(graph, context)
    assert result.modified == bool(context.diagnostics.of("fusion", taken=True))
    check_model(graph)
    assert not AbsorbLeftovers(offload).run(graph, PassContext()).modified
    bodies = [" ".join(n.op_type for n in f if n.op_type != "Constant") for f in graph.functions.values()
              if f.name.startswith("Small_")]
    return graph, bodies, [d.reason for d in context.diagnostics.of("fusion", taken=False)]


def test_views_before_and_behind_a_product() -> None:
    text = f"""(float[2,1,64] s) => (float[1,1,64] y) {{ {W} zero = Constant<value = int64 {{0}}>()
        one = Constant<value = int64[1] {{1}}>() a = Gather<axis=0>(s, zero) p = MatMul(a, w)
        y = Unsqueeze(p, one) }}"""
    graph, bodies, _ = absorbed(text)
    assert bodies == ["Gather"]  # Unsqueeze is the end of the product's own epilogue
    assert all(n.domain == "ai.tilegraph" for n in graph.graph)


def test_a_single_element_and_what_follows_it() -> None:
    text = f"""(float[1,64] x) => (float[1,1] y) {{ {W} last = Constant<value = int64[1] {{-1}}>()
        p = MatMul(x, w) m = ReduceMax<keepdims=1>(p, last) y = Sigmoid(m) }}"""
    graph, bodies, _ = absorbed(text)
    assert bodies == ["ReduceMax Sigmoid"]
    assert [n.op_type.partition("_")[0] for n in graph.graph] == ["Gemm", "Small"]


def test_chains_are_followed_away_from_the_kernel() -> None:
    """Two kernels: the pad is read element by element, so it does not join what follows."""
    text = f"""(float[1,62] x) => (float[1,1,1,64] y) {{ {W} pads = Constant<value = int64[4] {{0, 0, 0, 2}}>()
        axes = Constant<value = int64[1] {{1}}>() a = Pad<mode="reflect">(x, pads) p = MatMul(a, w)
        q = ReduceMax<keepdims=1>(p, axes) r = Sub(p, q) u = Unsqueeze(r, axes) y = Unsqueeze(u, axes) }}"""
    graph, bodies, _ = absorbed(text)
    assert sorted(bodies) == ["Pad", "ReduceMax Sub Unsqueeze Unsqueeze"]
    assert all(n.domain == "ai.tilegraph" for n in graph.graph)


@pytest.mark.parametrize(("text", "reason"), [
    # 4 million elements in reverse: one call is saved, and the kernel reads element by element.
    (f"(float[65536,64] x) => (float[65536,64] y) {{ {W} p = MatMul(x, w) b = Constant<value = int64[1] {{63}}>() "
     "e = Constant<value = int64[1] {-99}>() a = Constant<value = int64[1] {1}>() "
     "s = Constant<value = int64[1] {-1}>() y = Slice(p, b, e, a, s) }",
     "ONNX Runtime keeps it, even beside a kernel"),
    # The sum waits for Det, which waits for the product: it cannot be in the product's partition.
    (f"(float[64,64] x) => (float[64,64] y) {{ {W} p = MatMul(x, w) d = Det(p) y = Add(p, d) }}",
     "another path leads from its kernel to it"),
])
def test_refused(text: str, reason: str) -> None:
    _, bodies, reasons = absorbed(text)
    assert not bodies
    assert any(r.startswith(reason) for r in reasons)


def test_nothing_without_kernels_or_without_offload() -> None:
    assert absorbed("(float[4,8] x) => (float[4,8] y) { y = Relu(x) }")[1] == []
    text = f"""(float[2,1,64] s) => (float[1,64] y) {{ {W} zero = Constant<value = int64 {{0}}>()
        a = Gather<axis=0>(s, zero) y = MatMul(a, w) }}"""
    assert absorbed(text, "none")[1] == []
