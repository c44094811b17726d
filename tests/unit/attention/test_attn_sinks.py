"""A sink, one score more under the softmax whose weight goes to no value: found as exporters write it."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from tests.unit.attention.attn_support import fused, reasons

SHIFT = "top = ReduceMax <keepdims=1> (both, axes)  low = Sub(both, top)  p = Softmax <axis=-1> (low)"
SPELLED = """top = ReduceMax <keepdims=1> (both, axes)  low = Sub(both, top)  power = Exp(low)
             sum = ReduceSum <keepdims=1> (power, axes)  p = Div(power, sum)"""
SOFTMAX = "p = Softmax <axis=-1> (both)"


def model(softmax: str = SOFTMAX, *, before: bool = False, width: int = 1, batch: str = "B", rows: str = "S",
          keys: str = "T", heads: int = 2) -> onnx.ModelProto:
    """q: [B, H, S, 8], k: [B, H, 8, T], v: [B, H, T, 8], mask: [B, 1, S, T], sinks: [H, width] -> [B, H, S, 8]."""
    order = "wide, x" if before else "x, wide"
    first = width if before else 0
    end = 9223372036854775807 if before else -width
    return onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["" : 18]>
    sinks (float[{batch}, {heads}, {rows}, 8] q, float[{batch}, {heads}, 8, {keys}] k,
           float[{batch}, {heads}, {keys}, 8] v, float[{batch}, 1, {rows}, {keys}] mask, float[{heads}, {width}] sinks)
        => (float[{batch}, {heads}, {rows}, 8] y)
    <int64[1] axes = {{-1}}, int64[4] by = {{1, {heads}, 1, {width}}}, int64[1] starts = {{{first}}},
     int64[1] ends = {{{end}}},
     int64[1] width = {{{width}}}, int64[1] heads = {{{heads}}}, float scale = {{0.35}}>
    {{
        dot = MatMul(q, k)
        scaled = Mul(dot, scale)
        x = Add(scaled, mask)
        b = Shape <start=0, end=1> (q)
        s = Shape <start=2, end=3> (q)
        target = Concat <axis=0> (b, heads, s, width)
        shaped = Reshape(sinks, by)
        wide = Expand(shaped, target)
        both = Concat <axis=-1> ({order})
        {softmax}
        w = Slice(p, starts, ends, axes)
        y = MatMul(w, v)
    }}""")


QUIET = """peak = ReduceMax <keepdims=1> (x, axes)  top = Max(peak, zero)  low = Sub(x, top)  power = Exp(low)
           sum = ReduceSum <keepdims=1> (power, axes)  less = Neg(top)  one = Exp(less)  all = Add(sum, one)"""
PLAIN = "power = Exp(x)  sum = ReduceSum <keepdims=1> (power, axes)  all = Add(two, sum)"


def quiet(spelling: str = QUIET) -> onnx.ModelProto:
    """A softmax with one more in its sum, a sink without a place among the scores. q: [2, S, 8], mask: [S, T]."""
    return onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["" : 18]>
    quiet (float[2, S, 8] q, float[2, 8, T] k, float[2, T, 8] v, float[S, T] mask) => (float[2, S, 8] y)
    <int64[1] axes = {{-1}}, float zero = {{0}}, float two = {{2}}>
    {{
        dot = MatMul(q, k)
        x = Add(dot, mask)
        {spelling}
        w = Div(power, all)
        y = MatMul(w, v)
    }}""")


@pytest.mark.parametrize("spelling", [QUIET, PLAIN])
def test_one_more_in_the_sum_is_a_sink(spelling: str) -> None:
    _, decisions = fused(quiet(spelling))
    assert [d.taken for d in decisions] == [True], [d.reason for d in decisions]


@pytest.mark.parametrize(("part", "other"), [
    ("Max(peak, zero)", "Identity(peak)"),  # rows without a key are NaN then, and 0 with a sink
    ("Neg(top)", "Identity(top)"), ("Add(sum, one)", "Add(sum, two)"),  # no sink: it depends on the scores
    ("Neg(top)", "Neg(peak)")])
def test_other_sums_stay(part: str, other: str) -> None:
    assert reasons(quiet(QUIET.replace(part, other)))


@pytest.mark.parametrize("softmax", [SOFTMAX, SHIFT, SPELLED])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("sizes", [("B", "S", "T"), ("1", "9", "20")])
def test_a_sink_is_taken_in(softmax: str, before: bool, sizes: tuple[str, str, str]) -> None:
    batch, rows, keys = sizes
    graph, decisions = fused(model(softmax, before=before, batch=batch, rows=rows, keys=keys))
    assert [d.taken for d in decisions] == [True], [d.reason for d in decisions]
    (function,) = graph.functions.values()
    assert {"Concat", "Slice"} <= {n.op_type for n in function}


def test_several_sinks_stay() -> None:
    assert reasons(model(width=2)) == ["a reduction inside the attention is not over the keys"]


def test_weights_of_other_columns_stay() -> None:
    """[1:] of scores before a sink: weights are moved by one key."""
    other = model()
    (piece,) = [n for n in other.graph.node if n.op_type == "Slice"]
    starts, ends = (next(i for i in other.graph.initializer if i.name == name) for name in piece.input[1:3])
    for value, number in ((starts, 1), (ends, 9223372036854775807)):
        value.ClearField("raw_data")
        value.int64_data[:] = [number]
    assert reasons(other)
