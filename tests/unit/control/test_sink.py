"""What moves into the branches of an If, and which branches no input can run."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from tilegraph.io import load
from tilegraph.passes import PassContext
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.control.failing import failing
from tilegraph.rewrites.control.sink import BRANCHES, sink, tail_of
from tilegraph.rewrites.normalise import Shapes
from tilegraph.rewrites.normalise.edit import Names

MODEL = """g (float[2,3] x, bool c) => (float[2,3] y, float[2,3] z, float[2,3] k) {
    a = Relu(x) b = Exp(a) k = Neg(b) d = Tanh(x)
    r, s = If (c) <then_branch = t () => (float[2,3] p, float[2,3] p2) { p = Abs(x) p2 = Identity(p) },
                   else_branch = e () => (float[2,3] q, float[2,3] q2) { q = Neg(x) q2 = Sin(x) }>
    u = Add(r, b) y = Mul(u, d) z = Sin(s) }"""


def parsed(text: str) -> tuple[onnx.ModelProto, ir.Model]:
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    model = load(proto)
    Shapes().run(model, PassContext())
    return proto, model


def if_of(model: ir.Model) -> ir.Node:
    return next(n for n in model.graph if n.op_type == "If")


def test_what_only_the_rest_reads_moves_along_and_nothing_else() -> None:
    """`d` moves with its reader; `b` stays, which is read by `k` as well, and so does what makes it."""
    _, model = parsed(MODEL)
    assert [n.outputs[0].name for n in tail_of(if_of(model))] == ["d", "u", "y", "z"]


@pytest.mark.parametrize("twice", [False, True])
def test_the_answers_stay(twice: bool) -> None:
    """`twice`: a branch gives one value as two results, both of which the model gives too."""
    proto, model = parsed(MODEL.replace("float[2,3] y, float[2,3] z", "float[2,3] r, float[2,3] s, float[2,3] y, "
                                        "float[2,3] z") if twice else MODEL)
    node = if_of(model)
    if twice:
        branch = node.attributes["then_branch"].as_graph()
        branch.outputs[1] = branch.outputs[0]
    made = sink(node, tail_of(node), Names(model))
    for key in BRANCHES:
        results = made.attributes[key].as_graph().outputs
        assert len(set(results)) == len(results), "ONNX Runtime takes a result once"
    check_model(model)
    for c in (False, True):
        feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3) - 2, "c": np.array(c)}
        for a, b in zip(ReferenceEvaluator(proto).run(None, feeds),
                        ReferenceEvaluator(ir.to_proto(model)).run(None, feeds), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("shape", "body", "part"), [
    ("2,3", "y = Squeeze(x, one)", "is to leave out a dim that is not 1"),
    ("2,1", "y = Squeeze(x, one)", None),
    ("2,n", "y = Squeeze(x, one)", None),
    ("2,3", "z = Squeeze(x, one) y = Neg(x)", None),
    ("2,3", "t = Unsqueeze(x, one) y = Concat<axis=1>(x, t)", "operands of different ranks"),
    ("2,3", "t = Unsqueeze(x, one) y = Gemm(t, x)", "takes 2 dims and gets 3"),
])
def test_graphs_that_no_input_can_run(shape: str, body: str, part: str | None) -> None:
    graph = parsed(f"g (float[{shape}] x) => (float y) {{ one = Constant<value = int64[1] {{1}}>() {body} }}")[1].graph
    reason = failing(graph)
    assert (reason is None) is (part is None)
    assert part is None or part in str(reason)
