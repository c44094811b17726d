"""Inlining of model-local functions."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from io_models import parse

from tilegraph.errors import InputError
from tilegraph.io import load
from tilegraph.passes.invariants import check_model


def ops(proto: onnx.ModelProto) -> list[str]:
    model = load(proto)
    check_model(model)
    return [n.op_type for n in model.graph.all_nodes()]


def test_nested_functions_and_attributes() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1, "h" : 1]>
        g (float[4] x) => (float[4] y) { a = f.outer <alpha = 0.25> (x)  y = f.outer <alpha = 0.5> (a) }
        <domain: "f", opset_import: ["" : 17, "h" : 1]> outer <alpha> (v) => (r)
        { t = h.inner <slope: float = @alpha> (v)  r = Neg(t) }
        <domain: "h", opset_import: ["" : 17]> inner <slope> (v) => (r) { r = LeakyRelu <alpha: float = @slope> (v) }
        """)
    model = load(proto)
    check_model(model)
    assert [n.op_type for n in model.graph] == ["LeakyRelu", "Neg", "LeakyRelu", "Neg"]
    assert [n.attributes["alpha"].as_float() for n in model.graph if n.op_type == "LeakyRelu"] == [0.25, 0.5]
    assert not model.functions
    assert [v.name for v in model.graph.outputs] == ["y"]


def test_calls_in_subgraphs() -> None:
    assert ops(parse("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[4] x, bool c) => (float[4] y) {
            y = If (c) <then_branch = t () => (float[4] r) { r = f.twice(x) },
                        else_branch = e () => (float[4] s) { s = f.twice(x) }>
        }
        <domain: "f", opset_import: ["" : 17]> twice (v) => (r) { r = Add(v, v) }""")) == ["If", "Add", "Add"]


def test_fused_ops_stay() -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 17, "ai.tilegraph" : 1, "f" : 1]>
        g (float[4] x) => (float[4] y) { y = ai.tilegraph.fused(x) }
        <domain: "ai.tilegraph", opset_import: ["" : 17, "f" : 1]> fused (v) => (r) { r = f.twice(v) }
        <domain: "f", opset_import: ["" : 17]> twice (v) => (r) { r = Add(v, v) }"""))
    check_model(model)
    assert [n.op_type for n in model.graph] == ["fused"]
    (function,) = model.functions.values()
    assert [n.op_type for n in function] == ["Add"]


@pytest.mark.parametrize("results", ["v, r", "r, r"])
def test_an_output_that_is_an_input_or_comes_twice_keeps_its_names(results: str) -> None:
    # Not as a proto: onnx's checker refuses r, r.
    model = load(ir.from_proto(parse(f"""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[4] x) => (float[4] y, float[4] z) {{ y, z = f.both(x) }}
        <domain: "f", opset_import: ["" : 17]> both (v) => ({results}) {{ r = Neg(v) }}""")))
    check_model(model)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert [v.name for v in model.graph.outputs] == ["y", "z"]


def test_an_older_body_is_converted() -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[1, 4] x) => (float[4] y) { y = f.flat(x) }
        <domain: "f", opset_import: ["" : 11]> flat (v) => (r) { r = Squeeze <axes = [0]> (v) }"""))
    check_model(model)
    assert [n.op_type for n in model.graph] == ["Constant", "Squeeze"]
    assert model.graph.opset_imports[""] == 17


def test_a_newer_body_converts_the_model() -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 11, "f" : 1]>
        g (float[1, 4] x) => (float[4] y) { a = Squeeze <axes = [0]> (x)  y = f.act(a) }
        <domain: "f", opset_import: ["" : 17]> act (v) => (r) { r = HardSwish(v) }"""))
    check_model(model)
    assert [n.op_type for n in model.graph] == ["Constant", "Squeeze", "HardSwish"]
    assert model.graph.opset_imports[""] == 17


def test_opsets_that_cannot_be_reconciled() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) { y = f.shrink(x) }
        <domain: "f", opset_import: ["" : 10]> shrink (v) => (r)
        { s = Constant <value: tensor = float[4] {1.0, 1.0, 0.5, 0.5}> ()  r = Resize(v, s) }""")
    with pytest.raises(InputError, match=r"'shrink' uses opset 10, the model 17.*Resize"):
        load(proto)


def test_functions_that_call_each_other() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[4] x) => (float[4] y) { y = f.a(x) }
        <domain: "f", opset_import: ["" : 17, "f" : 1]> a (v) => (r) { r = f.b(v) }
        <domain: "f", opset_import: ["" : 17, "f" : 1]> b (v) => (r) { r = f.a(v) }""")
    with pytest.raises(InputError, match="cannot be inlined: Cyclic"):
        load(proto)


def test_missing_optional_inputs() -> None:
    assert ops(parse("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[4] x, float[] high) => (float[4] y) { y = f.clip(x, , high) }
        <domain: "f", opset_import: ["" : 17]> clip (v, low, top) => (r) { r = Clip(v, low, top) }""")) == ["Clip"]


def test_bodies_of_scan_keep_their_ranks_and_no_extents() -> None:
    """ONNX Runtime does not run a Scan whose body does not say them."""
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[2, 3] x, float[3] s) => (float[3] t, float[2, 3] y) { t, y = f.each(s, x) }
        <domain: "f", opset_import: ["" : 17]> each (s, x) => (t, y) {
            t, y = Scan <num_scan_inputs = 1, body = b (float[3] a, float[n] c) => (float[3] d, float[3] e)
                         { d = Add(a, c)  e = Neg(d) }> (s, x)
        }"""))
    (scan,) = model.graph
    body = scan.attributes["body"].as_graph()
    shapes = [v.shape for v in (*body.inputs, *body.outputs)]
    assert all(s is not None and s.rank() == 1 and not s.is_static() for s in shapes)
