"""What leaves the body of a Loop or Scan: before, after, and a near miss for each refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.unit.passes.exact import run_exactly
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.control import HoistFromLoops
from tilegraph.rewrites.control.over_time import _MOST_BYTES, _STEP_BYTES
from tilegraph.rewrites.normalise import NORMALISE, LiftConstants, Shapes

N, H, B = 3, 4, 2
RNG = np.random.default_rng(5)
WEIGHTS = {"w": RNG.standard_normal((N, H)), "r": RNG.standard_normal((H, H)), "bias": RNG.standard_normal(H),
           "wt": RNG.standard_normal((H, N)), "per": RNG.standard_normal((B, H)), "vec": RNG.standard_normal(N),
           "both": RNG.standard_normal((N + H, H)), "turned": RNG.standard_normal((H, H + N)),
           "wide": RNG.standard_normal((N + 1, N)),
           "three": RNG.standard_normal((2 * N + H + 1, H))}
CELL = "b0 = MatMul(s, r) p = Add(q, b0) t = Tanh(p)"
TAKE = "xt = Gather<axis = 0>(x, i)"
PRODUCT = "a = MatMul(xt, w) q = Add(a, bias)"
EXTENT = "sh = Shape(x) m = Gather<axis = 0>(sh, zero)"


def loop(take: str = TAKE, product: str = PRODUCT, *, x: str = f"T,{B},{N}", before: str = EXTENT, go: str = "k",
         more: str = "", cell: str = CELL) -> str:
    return f"""g (float[{x}] x, float[{B},{H}] h0{more}) => (float[{B},{H}] h, float[n,{B},{H}] y) {{
        c = Constant<value = bool {{1}}>() zero = Constant<value = int64 {{0}}>() one = Constant<value = int64 {{1}}>()
        first = Constant<value = int64[1] {{0}}>() nine = Constant<value = int64 {{9}}>() {before}
        h, y = Loop (m, c, h0) <body = b (int64 i, bool k, float[{B},{H}] s) => (bool ko, float[{B},{H}] t,
            float[{B},{H}] t2) {{ {take} {product} {cell} ko = Identity({go}) t2 = Identity(t) }}> }}"""


def scan(product: str = PRODUCT, attributes: str = "", x: str = f"T,{B},{N}", operands: str = "h0, x",
         extra: str = "", more: str = "") -> str:
    count = operands.count(",")
    return f"""g (float[{x}] x, float[{B},{H}] h0{more}) => (float[{B},{H}] h, float[n,{B},{H}] y) {{
        h, y = Scan <num_scan_inputs = {count}{attributes}, body = b (float[{B},{H}] s, float[{B},{N}] xt{extra})
            => (float[{B},{H}] t, float[{B},{H}] t2) {{ {product} {CELL} t2 = Identity(t) }}> ({operands}) }}"""


def hoisted(text: str, opset: int = 17) -> tuple[onnx.ModelProto, ir.Model, PassContext, bool]:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for name, array in WEIGHTS.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    model = load(proto)
    Pipeline(NORMALISE).run(model, PassContext())
    context = PassContext()
    modified = run_exactly(HoistFromLoops(), model, context)
    return proto, model, context, modified


def same(proto: onnx.ModelProto, model: ir.Model, feeds: dict[str, Any]) -> None:
    for a, b in zip(ReferenceEvaluator(proto).run(None, feeds),
                    ReferenceEvaluator(ir.to_proto(model)).run(None, feeds), strict=True):
        assert a.shape == b.shape
        assert np.ptp(a) > 0
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-6)


def given(shape: tuple[int, ...], **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(6)
    return {"x": rng.standard_normal(shape).astype(np.float32),
            "h0": rng.standard_normal((B, H)).astype(np.float32), **more}


def body(model: ir.Model) -> list[str]:
    (node,) = [n for n in model.graph if "body" in n.attributes]
    return [n.op_type for n in node.attributes["body"].as_graph() if n.op_type != "Identity"]


def reasons(context: PassContext, *, taken: bool) -> str:
    return "; ".join(d.reason for d in context.diagnostics.of("hoist-from-loops", taken=taken))


LARGE = "a = MatMul(xt, w2) q = ReduceSum<keepdims = 1>(a, u)"
ONE = "j = Unsqueeze(i, first)"


@pytest.mark.parametrize(("take", "x", "before"), [
    (TAKE, f"T,{B},{N}", EXTENT),
    (TAKE, f"5,{B},{N}", "m = Constant<value = int64 {5}>()"),
    ("xt = Gather<axis = -2>(x, i)", f"{B},T,{N}", EXTENT.replace("zero", "one")),
    ("xf = Gather<axis = 2>(x, i) xt = Relu(xf)", f"{B},{N},T", "sh = Shape(x) last = Add(one, one) "
     "m = Gather<axis = 0>(sh, last)"),
    (f"{ONE} xk = Gather<axis = 0>(x, j) xt = Squeeze(xk, first)", f"T,{B},{N}", EXTENT),
    (f"{ONE} e = Add(j, one) xk = Slice(x, j, e, first) xt = Squeeze(xk, first)", f"T,{B},{N}", EXTENT),
    ("e = Sub(m, one) j = Sub(e, i) xt = Gather<axis = 0>(x, j)", f"T,{B},{N}", EXTENT),
    ("o = Sub(last, i) j = Unsqueeze(o, first) e = Add(j, one) xk = Slice(x, j, e, first) xt = Squeeze(xk, first)",
     f"T,{B},{N}", f"{EXTENT} last = Sub(m, one)"),
    ("j = Add(i, one) xt = Gather<axis = 0>(x, j)", f"T,{B},{N}", f"{EXTENT.replace('m =', 'm1 =')} m = Sub(m1, one)"),
])
def test_ways_to_take_a_step(take: str, x: str, before: str) -> None:
    proto, model, context, modified = hoisted(loop(take, x=x, before=before))
    assert modified
    assert "computed for all steps at once" in reasons(context, taken=True)
    assert not reasons(context, taken=False)
    found = [n.op_type for n in model.graph]
    assert found.count("MatMul") == 1
    assert found.index("MatMul") < found.index("Loop")
    left = [op for op in body(model) if op not in ("Sub", "Squeeze", "Unsqueeze")]
    assert left[left.index("Gather"):] == ["Gather", "MatMul", "Add", "Tanh"]
    same(proto, model, given(tuple(5 if d == "T" else int(d) for d in x.split(","))))


@pytest.mark.parametrize(("product", "outside"), [
    (PRODUCT, ["MatMul", "Add"]),
    ("q = Gemm<transB = 1, alpha = 0.5>(xt, wt, bias)", ["Reshape", "Gemm", "Reshape"]),
    ("a = MatMul(xt, w) q = Mul(a, per)", ["MatMul", "Mul"]),
    ("n = Sub(xt, vec) e = Gather<axis = 1>(xt, zero) u = Unsqueeze(xt, first) v = Squeeze(u, first) d = Abs(v) "
     "a = MatMul(d, w) z = Concat<axis = 0>(n, d) o = MatMul(z, w) o1, o2 = Split<axis = 0>(o, sizes) q1 = Add(a, o1) "
     "q = Add(q1, o2)", ["Sub", "Unsqueeze", "Squeeze", "Abs", "MatMul", "Concat", "MatMul"]),
])
def test_what_can_lead_to_and_follow_from_a_product(product: str, outside: list[str]) -> None:
    sizes = f"{EXTENT} sizes = Constant<value = int64[2] {{{B}, {B}}}>()"
    proto, model, _, modified = hoisted(loop(product=product, before=sizes))
    assert modified
    assert sorted(n.op_type for n in model.graph if n.op_type not in ("Shape", "Loop", "Gather")) == sorted(outside)
    same(proto, model, given((4, B, N)))


def test_steps_of_a_lower_rank_and_the_same_clock() -> None:
    proto, model, _, modified = hoisted(loop(f"{TAKE} zt = Gather<axis = 0>(z, i)", "a = MatMul(xt, w) q = Add(a, zt)",
                                             more=f", float[T,{H}] z"))
    assert modified
    assert body(model) == ["Gather", "MatMul", "Add", "Tanh"]
    same(proto, model, given((B, B, N), z=np.random.default_rng(2).standard_normal((B, H)).astype(np.float32)))


def test_a_counter_that_is_carried_along_and_its_condition() -> None:
    """As TensorFlow's while loops are exported."""
    text = f"""g (float[T,{B},{N}] x, float[{B},{H}] h0) => (float[{B},{H}] h) {{
        zero = Constant<value = int64 {{0}}>() one = Constant<value = int64 {{1}}>() {EXTENT} c = Less(zero, m)
        n, h = Loop (m, c, zero, h0) <body = b (int64 i, bool k, int64 j, float[{B},{H}] s) => (bool ko, int64 j2,
            float[{B},{H}] t) {{ xt = Gather<axis = 0>(x, j) {PRODUCT} {CELL}
            j2 = Add(j, one) ko = Less(j2, m) }}> }}"""
    proto, model, _, modified = hoisted(text)
    assert modified
    assert body(model).count("MatMul") == 1
    same(proto, model, given((4, B, N)))
    assert "early" in reasons(hoisted(text.replace("ko = Less(j2, m)", "l = Sub(m, one) ko = Less(j2, l)"))[2],
                              taken=False)
    other = text.replace("c = Less(zero, m)", "sz = Shape(z) e = Gather(sz, zero) c = Less(zero, e)").replace(
        "h0)", "h0, float[K] z)", 1)
    assert "first step" in reasons(hoisted(other)[2], taken=False)


@pytest.mark.parametrize(("text", "reason"), [
    (loop("l = ArgMax<axis = 1, keepdims = 0>(s) j = Gather(l, zero) xt = Gather<axis = 0>(x, j)"),
     "not the number of the iteration"),
    (loop("j = Mul(i, one2) xt = Gather<axis = 0>(x, j)", more=", int64 one2"), "not the number of the iteration"),
    (loop(before="", more=", int64 m"), "trip count is not an expression"),
    (loop(before=f"{EXTENT.replace('m =', 'm1 =')} m = Unsqueeze(m1, first)",
          take="j = Squeeze(i) xt = Gather<axis = 0>(x, j)"), "no scalar"),
    (loop(before=f"{EXTENT.replace('m =', 'm1 =')} m = Sub(m1, nine)"), "it runs T-9 steps"),
    (loop(before=f"{EXTENT.replace('m =', 'm1 =')} m = Add(m1, one)"), "it runs T+1 steps"),
    (loop(go="early", cell=f"{CELL} u = ReduceMax<keepdims = 0>(t) z = Sub(u, u) early = Equal(u, z)"), "early"),
    (loop(f"{ONE} o = Sub(j, one) xk = Slice(x, o, j, first) xt = Squeeze(xk, first)"), "may be outside"),
    (loop(product="a = MatMul(xt, w2) q = Add(a, bias)", more=f", float[K,{H}] w2"), "not equal for certain"),
    (loop(product="a = Gemm(xt, w2) q = Add(a, bias)", more=f", float[K,{H}] w2"), "not equal for certain"),
    (loop(product="n = Mul(xt, l) a = MatMul(n, w) q = Add(a, bias)", more=f", float[K,{N}] l"), "do not broadcast"),
    (loop(product="e = CumSum(xt, zero) a = MatMul(e, w) q = Add(a, bias)"), "CumSum"),
    (loop(product="q = Gemm(xt, w, per)"), "differs from row to row"),
    (loop(product="xu = Gather<axis = 0>(x, f) z = Add(xt, xu) a = MatMul(z, w) q = Add(a, bias)",
          take=f"{TAKE} f = Sub(e, i)", before=f"{EXTENT} e = Sub(m, one)"), "two different steps"),
    (loop(product="d = Concat<axis = 1>(xt, l) e = Abs(d) a = MatMul(e, r) q = Add(a, bias)", more=f", float[{B},1] l"),
     "the same in all steps"),
    (loop(product="xv = Transpose(xt) d = Gemm<transA = 1>(xv, w) q = Add(d, bias)"), "transposes the step"),
    (loop(product=LARGE, before=f"{EXTENT} u = Constant<value = int64[1] {{1}}>()",
          more=f", float[{N},{_STEP_BYTES // (4 * B) + 1}] w2"), "a step, more than"),
    (loop(product=LARGE, before="m = Constant<value = int64 {4}>() u = Constant<value = int64[1] {1}>()",
          more=f", float[{N},{_MOST_BYTES // (4 * 4 * B) + 1}] w2", x=f"4,{B},{N}"),
     "for all steps, more than"),
    (scan(x=f"T,M,{N}", product="n = Mul(xt, l) a = MatMul(n, w) q = Add(a, bias)", more=f", float[K,{N}] l"),
     "do not broadcast"),
])
def test_products_that_stay(text: str, reason: str) -> None:
    _, model, context, modified = hoisted(text)
    assert not modified
    assert reason in reasons(context, taken=False)
    assert {"MatMul", "Gemm"} & set(body(model))


@pytest.mark.parametrize("product", [
    "d = Concat<axis = 1>(xt, s) a = MatMul(d, both) q = Add(a, bias)",
    "d = Concat<axis = -1>(s, xt) q = Gemm<transB = 1>(d, turned, bias)",
    "e = Tanh(xt) d = Concat<axis = 1>(e, l, s, xt) a = MatMul(d, three) q = Add(a, bias)",
])
def test_products_of_step_and_state_are_taken_apart(product: str) -> None:
    proto, model, _, modified = hoisted(loop(product=product, more=f", float[{B},1] l"))
    assert modified
    shapes = [list(v.shape.numpy()) for n in model.graph.all_nodes() if n.op_type == "MatMul"
              and (v := n.inputs[1]) is not None and v.shape is not None]
    assert sorted(shapes) == sorted([[N if "three" not in product else 2 * N, H], [H, H], [H, H],
                                     *([[1, H]] if "three" in product else [])])
    assert body(model).count("MatMul") == 2
    assert "Concat" not in body(model)
    same(proto, model, given((4, B, N), l=np.full((B, 1), 0.3, np.float32)))


def test_what_is_taken_apart_is_a_part_of_the_next_one() -> None:
    text = loop(product="d = Concat<axis = 1>(xt, l) e = MatMul(d, wide) f = Concat<axis = 1>(s, e) "
                "q = Gemm<transB = 1>(f, turned, bias)", more=f", float[{B},1] l")
    proto, model, _, modified = hoisted(text)
    assert modified
    assert body(model).count("MatMul") == 2
    assert "Concat" not in body(model)
    same(proto, model, given((4, B, N), l=np.full((B, 1), 0.3, np.float32)))


def test_a_copy_of_a_matrix_beyond_the_limit() -> None:
    text = loop(product="d = Concat<axis = 1>(xt, s) a = MatMul(d, both) o = MatMul(d, both) q = Add(a, o)")
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name in ("both", "r"):
        proto.graph.initializer.append(numpy_helper.from_array(WEIGHTS[name].astype(np.float32), name))
    model, context = load(proto), PassContext(fold_limit_bytes=4 * (N + H) * H - 1)
    Pipeline([LiftConstants(), Shapes()]).run(model, PassContext())
    assert not HoistFromLoops().run(model, context).modified
    assert "beyond the limit" in reasons(context, taken=False)


def test_products_of_the_state_are_no_refusal() -> None:
    _, _, context, modified = hoisted(loop(product="a = MatMul(s, r) q = Add(a, bias)"))
    assert not modified
    assert not list(context.diagnostics)


def test_opsets_below_13_stay() -> None:
    _, _, context, modified = hoisted(loop(), opset=11)
    assert not modified
    assert "opset 11" in reasons(context, taken=False)


@pytest.mark.parametrize(("attributes", "x"), [
    ("", f"T,{B},{N}"), (", scan_input_axes = [1], scan_input_directions = [1]", f"{B},T,{N}")])
def test_scanned_inputs(attributes: str, x: str) -> None:
    proto, model, _, modified = hoisted(scan(attributes=attributes, x=x))
    assert modified
    assert body(model) == ["MatMul", "Add", "Tanh"]
    (node,) = [n for n in model.graph if n.op_type == "Scan"]
    assert len(node.inputs) == 2, "the body does not read x any more"
    if "directions" not in attributes:  # which ONNX's reference does not know
        same(proto, model, given((5, B, N)))


def test_scanned_inputs_that_are_still_read() -> None:
    text = scan(f"{PRODUCT.replace('q =', 'o =')} v = Mul(s, z) q = Add(o, v)", ", scan_input_axes = [0, -2]",
                operands="h0, x, u", extra=f", float[{B},{H}] z", more=f", float[{B},T,{H}] u")
    _, model, _, modified = hoisted(text)
    assert modified
    (node,) = [n for n in model.graph if n.op_type == "Scan"]
    assert [v.name for v in node.inputs[:2] if v is not None] == ["h0", "u"]
    assert list(node.attributes["scan_input_axes"].as_ints()) == [-2, 0]


@pytest.mark.parametrize(("node", "leaves"), [
    ("f = MatMul(l, r) g = Transpose(f)", ["MatMul", "Transpose"]),
    ("f = Reshape(l, flat) g = Tanh(f)", ["Reshape", "Tanh"]),
    ("f = RandomNormalLike(l) g = Transpose(f)", []),  # other numbers in each step
    ("f = Gather(l, number) g = Transpose(f)", []),  # fails outside of the table
    ("f = Div(number, number) o = Cast<to = 1>(f) g = Mul(o, bias)", []),  # fails for 0
    ("f = Reshape(l, form) g = Transpose(f)", []),
    ("f = ReduceMax<keepdims = 0>(l) g = Mul(f, bias)", []),  # fails where there is nothing
])
def test_what_is_the_same_in_each_step(node: str, leaves: list[str]) -> None:
    text = loop(product=f"{node} n = ReduceSum<keepdims = 0>(g) a = Mul(s, n) q = Add(a, bias)", take="",
                before=f"{EXTENT} flat = Constant<value = int64[2] {{{H}, {B}}}>()",
                more=f", float[{B},{H}] l, int64 number, int64[2] form")
    proto, model, context, modified = hoisted(text)
    assert modified is bool(leaves)
    assert [n.op_type for n in model.graph if n.op_type not in ("Shape", "Gather", "Loop", "ReduceSum")] == leaves
    if modified:
        assert f"{len(leaves)} nodes" in reasons(context, taken=True)
        more = {"l": np.ones((B, H), np.float32) / 3, "number": np.array(1), "form": np.array([H, B])}
        same(proto, model, given((3, B, N), **more))


def test_a_result_of_the_body_stays_in_it() -> None:
    text = loop(take="", product="q = Add(s, bias)", cell=f"{CELL.replace('t = ', 't0 = ')} t = Tanh(h0)")
    assert "Tanh" in body(hoisted(text)[1])
