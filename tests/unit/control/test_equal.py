"""Extents that recurrent operators require to be equal, and those that nothing requires."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from tests.unit.passes.exact import run_exactly
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.control import EqualExtents
from tilegraph.rewrites.normalise import NORMALISE

LSTM = "LSTM <hidden_size = 16> (x, w, r, , , h, c)"
BRANCHES = f"""z = If (k) <then_branch = t () => (float[d,b,16] p) {{ y1, p = {LSTM} }},
    else_branch = e () => (float[d2,b2,16] q) {{ OTHER }}>"""


def inputs(body: str, state: str = "M", cell: str = "M") -> tuple[list[str], bool]:
    """The batch of x, h and c after the pass, and whether it changed the model."""
    text = f"g (float[S,N,8] x, float[1,{state},16] h, float[1,{cell},16] c, bool k) => (float[a,b,16] z) {{ {body} }}"
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    for name, shape in (("w", (1, 64, 8)), ("r", (1, 64, 16))):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    model = load(proto)
    Pipeline(NORMALISE).run(model, PassContext())
    modified = run_exactly(EqualExtents(), model)
    return [str(v.shape[1]) for v in model.graph.inputs[:3] if v.shape is not None], modified


@pytest.mark.parametrize(("state", "cell"), [("M", "M"), ("M", "L"), ("N", "L")])
def test_the_batch_of_states(state: str, cell: str) -> None:
    assert inputs(f"y, z = {LSTM}", state, cell) == (["N", "N", "N"], True)


def test_what_both_branches_require() -> None:
    other = LSTM.replace("hidden_size", 'direction = "reverse", hidden_size')
    assert inputs(BRANCHES.replace("OTHER", f"y2, q = {other}")) == (["N", "N", "N"], True)


@pytest.mark.parametrize("body", [
    BRANCHES.replace("OTHER", "q = Neg(h)"),  # may not run
    "a = Add(h, c) z = Relu(a)",  # broadcasts
])
def test_kept(body: str) -> None:
    assert inputs(body, "M", "L") == (["N", "M", "L"], False)


def test_numbers_and_equal_names_are_left_alone() -> None:
    assert inputs(f"y, z = {LSTM}", "N", "N") == (["N", "N", "N"], False)
    assert inputs(f"y, z = {LSTM}", "2", "2") == (["N", "2", "2"], False)


CACHE = "k2 = Concat <axis = 1> (k, n) v2 = Concat <axis = 1> (v, n) "


@pytest.mark.parametrize(("body", "shapes"), [
    (CACHE + "t = Transpose <perm = [0, 2, 1]> (k2) s = MatMul(n, t) y = MatMul(s, v2)",
     ["[B,P,8]", "[B,P,8]", "[B,N,8]"]),  # a decoder's caches
    (CACHE + "y = Concat <axis = 1> (k2, v2)", ["[B,P,8]", "[B,Q,8]", "[B,N,8]"]),  # lengths may differ
    ("t = Transpose <perm = [0, 2, 1]> (k) y = MatMul(n, t)", ["[B,P,8]", "[C,Q,8]", "[D,N,8]"]),  # batches broadcast
    ("y = Add(k, v)", ["[B,P,8]", "[C,Q,8]", "[D,N,8]"]),
    ("t = Transpose <perm = [0, 2, 1]> (k) y = MatMul(t, v)", ["[B,P,8]", "[C,P,8]", "[D,N,8]"]),
    ("c = Concat <axis = 1> (k, v, v) t = Transpose <perm = [0, 2, 1]> (c) d = Concat <axis = 1> (n, n) "
     "y = MatMul(t, d)",
     ["[B,P,8]", "[B,Q,8]", "[D,N,8]"]),  # P + 2 Q = 2 N says nothing of two
    ("c = Concat <axis = 1> (v, v) t = Transpose <perm = [0, 2, 1]> (k) y = MatMul(t, c)",
     ["[B,P,8]", "[C,Q,8]", "[D,N,8]"]),  # P = 2 Q
])
def test_products_and_concatenations(body: str, shapes: list[str]) -> None:
    model = load(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[B,P,8] k, float[C,Q,8] v, '
                                         f"float[D,N,8] n) => (float[e,f,g] y) {{ {body} }}"))
    Pipeline(NORMALISE).run(model, PassContext())
    modified = EqualExtents().run(model, PassContext()).modified
    assert [str(v.shape) for v in model.graph.inputs] == shapes
    assert modified == (shapes != ["[B,P,8]", "[C,Q,8]", "[D,N,8]"])
    check_model(model)
    assert not EqualExtents().run(model, PassContext()).modified


def test_an_extent_that_is_an_expression_follows() -> None:
    """A mask over what is past and new has a length that is a sum of both."""
    text = """g (float[B,P,8] k, float[B,Q,8] v, float[B,N,8] n, float[M] m) => (float[e,f,g] y) {
        t = Transpose <perm = [0, 2, 1]> (k) z = MatMul(t, v) y = Concat <axis = 1> (z, n, z) }"""
    model = load(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text))
    model.graph.inputs[3].shape = ir.Shape(["Q + N"])
    Pipeline(NORMALISE).run(model, PassContext())
    assert EqualExtents().run(model, PassContext()).modified
    assert str(model.graph.inputs[3].shape) in ("[N+P]", "[P+N]")
