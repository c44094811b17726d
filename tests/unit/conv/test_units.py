"""Which nodes have a blocked form, what a window takes with it, and each reason against."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.fusion.parse import model
from tilegraph.graph import GraphView
from tilegraph.passes import PassContext
from tilegraph.rewrites.conv import find_units
from tilegraph.rewrites.fusion.base import opsets_of
from tilegraph.rewrites.normalise import NORMALISE


def weights(name: str, *shape: int) -> str:
    count = 1
    for extent in shape:
        count *= extent
    numbers = ", ".join(str(k % 7 - 3) for k in range(count))
    return f"{name} = Constant<value = float[{','.join(map(str, shape))}] {{{numbers}}}>() "


W = weights("w", 16, 16, 3, 3)
V = weights("v", 17, 17, 1, 1)


def units(text: str, lanes: int = 16) -> tuple[list[str], Mapping[str, str]]:
    """The operators of each unit, and operator -> why it is in none."""
    graph = model(text)
    for step in NORMALISE:
        step.run(graph, PassContext())
    found, refusals = find_units(GraphView(graph.graph), opsets_of(graph), lanes)
    return ["+".join(n.op_type for n in u.nodes) for u in found], {n.op_type: r for n, r in refusals.items()}


def test_a_convolution_takes_activation_gate_and_residual() -> None:
    found, _ = units(f"(float[1,16,8,8] x) => (float[1,16,6,6] y) {{ {W} a = Conv(x, w) b = Relu(a) c = Conv<pads = "
                     "[1,1,1,1]>(b, w) s = Sigmoid(c) d = Mul(c, s) y = Add(d, b) }")
    assert found == ["Conv+Relu", "Conv+Sigmoid+Mul+Add"]


def test_the_epilogue_ends_where_something_else_reads() -> None:
    found, _ = units(f"(float[1,16,8,8] x) => (float[1,16,6,6] y, float[1,16,6,6] z) {{ {W} a = Conv(x, w) "
                     "y = Relu(a) z = Tanh(y) }")
    assert found == ["Conv+Relu", "Tanh"]
    found, _ = units(f"(float[1,16,8,8] x) => (float[1,16,6,6] a, float[1,16,6,6] y) {{ {W} a = Conv(x, w) "
                     "y = Relu(a) }")
    assert found == ["Conv", "Relu"]


def test_of_two_convolutions_that_are_added_one_takes_the_sum() -> None:
    found, _ = units(f"(float[1,16,8,8] x) => (float[1,16,6,6] y) {{ {W} {weights('k', 16)} a = Conv(x, w) "
                     "b = Conv(x, w, k) "
                     "c = Add(a, b) y = Relu(c) }")
    assert sorted(found) == ["Conv", "Conv+Add+Relu"]


def test_a_scale_by_channel_from_the_graph_joins_an_epilogue() -> None:
    found, _ = units(f"(float[n,17,h,w0] x) => (float[n,17,h,w0] y) {{ {V} p = GlobalAveragePool(x) s = Conv(p, v) "
                     "t = Conv(x, v) y = Mul(t, s) }")
    assert found == ["GlobalAveragePool", "Conv", "Conv+Mul"]


def test_scales_of_the_channels_join_the_convolution_behind_them() -> None:
    head = (f"(float[n,16,h,w0] x, float[n,16,1,1] s, float[n,16,1,w0] r) => (float[n,16,h,w0] y, float[n,16,a,b] z) "
            f"{{ {W} {weights('v', 16, 16, 1, 1)} ")
    for text, unit in [
        ("p = Mul(x, s) y = Conv(p, v) z = Relu(x) }", "Mul+Conv"),
        ("p = Mul(x, s) q = Add(p, x) y = Conv(q, v) z = Relu(x) }", "Mul+Add+Conv"),
        ("p = Mul(x, s) y = Conv(p, v) z = Relu(p) }", "Conv"),  # somebody else reads the product
        ("p = Mul(x, s) q = Add(p, s) y = Conv(q, v) z = Relu(x) }", "Conv"),  # another sum
        ("p = Mul(x, r) y = Conv(p, v) z = Relu(x) }", "Conv"),  # a number for each place of a line
        ("p = Mul(x, s) y = Conv<group = 16, pads = [1,1,1,1]>(p, d) z = Relu(x) }", "Conv"),  # depthwise
    ]:
        found, _ = units(head + weights("d", 16, 1, 3, 3) + text)
        assert unit in found, found
        assert [u for u in found if "Conv" in u] == [unit]


def test_few_filters_give_a_plain_result_unless_a_window_reads_it() -> None:
    def plain(text: str) -> dict[str, bool]:
        graph = model(f"(float[n,16,h,w0] x) => (float[n,k,a,b] y) {{ {weights('p', 6, 16, 1, 1)} "
                      f"{weights('q', 9, 16, 1, 1)} {weights('r', 3, 6, 1, 1)} {weights('c', 4, 16, 1, 1)} "
                      f"{weights('d', 16, 4, 1, 1)} {weights('s', 16, 2, 2, 2)} {text} }}")
        for step in NORMALISE:
            step.run(graph, PassContext())
        found, _ = find_units(GraphView(graph.graph), opsets_of(graph), 16)
        return {"+".join(n.op_type for n in u.nodes): u.plain for u in found}

    assert plain("t = Conv(x, p) y = Sigmoid(t)") == {"Conv+Sigmoid": True}
    assert plain("t = Conv(x, p) y = Softmax<axis = 1>(t)") == {"Conv": True}
    assert plain("y = ConvTranspose<strides = [2, 2]>(x, s)") == {"ConvTranspose": True}
    assert plain("t = Conv(x, q) y = Sigmoid(t)") == {"Conv+Sigmoid": False}  # nine are more than half a block
    assert plain("t = Conv(x, p) u = Relu(t) y = Conv(u, r)") == {"Conv+Relu": False, "Conv": True}
    # A window that reads so few channels as they are.
    assert plain("t = Conv(x, c) u = Relu(t) y = Conv(u, d)") == {"Conv+Relu": True, "Conv": False}
    assert plain("t = Conv(x, p) y = Concat<axis = 1>(t, x)") == {"Conv": False, "Concat": False}


def test_normalisation_joins_the_window_before_it() -> None:
    norm = " ".join(weights(n, 16) for n in "abcd") + "e = Abs(d) "
    found, _ = units(f"(float[1,16,8,8] x) => (float[1,16,6,6] y, float[1,16,6,6] t) {{ {W} {norm} u = Conv(x, w) "
                     "t = Relu(u) y = Tanh(t) }")
    assert found == ["Conv+Relu", "Tanh"]
    found, _ = units(f"(float[1,16,8,8] x) => (float[1,16,6,6] y) {{ {W} {norm} u = Conv(x, w) "
                     "t = Relu(u) y = BatchNormalization(t, a, b, c, e) }")
    assert found == ["Conv+Relu+BatchNormalization"]


@pytest.mark.parametrize(("text", "op", "reason"), [
    ("(float[1,16,8,8] x, float[16,16,3,3] w) => (float[1,16,6,6] y) { y = Conv(x, w) }", "Conv",
     "the weights w are not constant"),
    (f"(float[1,16,8,8] x, float[40] b) => (float[1,40,6,6] y) {{ {weights('w', 40, 16, 3, 3)} y = Conv(x, w, b) }}",
     "Conv", "the bias b is not constant, and its 40 filters"),
    (f"(float[1,4,8,8,8] x) => (float[1,4,8,8,8] y) {{ {weights('w', 4, 4, 1, 1, 1)} y = Conv(x, w) }}", "Conv",
     "rank 5"),
    (f"(float[1,15,8,8] x) => (float[1,15,6,6] y) {{ {weights('w', 15, 5, 3, 3)} y = Conv<group = 3>(x, w) }}", "Conv",
     "neither whole blocks"),
    ("(float[1,16,8,8] x) => (float[1,16,7,7] y, int64[1,16,7,7] p) { y, p = MaxPool<kernel_shape = [2,2]>(x) }",
     "MaxPool", "p is"),
    ("(float16[1,16,8,8] x) => (float16[1,16,8,8] y) { y = Relu(x) }", "Relu", "blocked values are float32"),
    ("(float[1,c,8,8] x) => (float[1,c,8,8] y) { y = Relu(x) }", "Relu", "the channels are symbolic"),
    ("(float[1,17,8,8] x) => (float[1,17,8,8] y) { y = Exp(x) }", "Exp", "infinities of lanes that hold nothing"),
    ("(float[1,16,8,8] x, float[1,1,8,8] m) => (float[1,16,8,8] y) { y = Mul(x, m) }", "Mul",
     "is broadcast to 16 channels"),
    ("(float[1,16,8,8] x, float[8,8] m) => (float[1,16,8,8] y) { y = Mul(x, m) }", "Mul",
     "m [8,8] is broadcast to 16 channels"),
    (f"(float[1,16,8,8] x) => (float[1,16,8,8] y) {{ {weights('m', 8)} y = Mul(x, m) }}", "Mul",
     "neither one number nor one a channel"),
    ("(float[1,16,8,8] x) => (float[1,16,8,8] y) { y = Softmax<axis = 1>(x) }", "Softmax", "Softmax has no blocked"),
    ("(float[1,48,8,8] x) => (float[1,48,4,8] y, float[1,48,4,8] z) { y, z = Split<axis = 2, num_outputs = 2>(x) }",
     "Split", "another axis"),
    ("(float[1,48,8,8] x, int64[1] e) => (float[1,48,4,8] y) { s = Constant<value = int64[1] {0}>() "
     "a = Constant<value = int64[1] {1}>() y = Slice(x, s, e, a) }", "Slice", "computed limits"),
    ("(float[1,16,8,8] x, float[1,16,8,8] z) => (float[1,16,16,8] y) { y = Concat<axis = 2>(x, z) }", "Concat",
     "another axis"),
    ("(float[1,16,8,8] x) => (float[1,16,16,16] y) { s = Constant<value = float[4] {1., 1., 2., 2.}>() "
     "y = Resize<mode = \"linear\">(x, , s) }", "Resize", "mode linear"),
    ("(float[1,16,8,8] x) => (float[1,16,12,12] y) { s = Constant<value = float[4] {1., 1., 1.5, 1.5}>() "
     "y = Resize(x, , s) }", "Resize", "whole factors"),
    ("(float[1,16,8,8] x) => (float[1,16,16,16] y) { s = Constant<value = float[4] {1., 1., 2., 2.}>() "
     "y = Resize<coordinate_transformation_mode = \"align_corners\">(x, , s) }", "Resize", "align_corners"),
])
def test_each_reason_against(text: str, op: str, reason: str) -> None:
    found, refusals = units(text)
    assert reason in refusals[op]
    assert op not in found


def test_near_misses_have_a_blocked_form() -> None:
    for text in (
            f"(float[1,64,8,8] x) => (float[1,64,6,6] y) {{ {weights('w', 64, 16, 3, 3)} y = Conv<group = 4>(x, w) }}",
            "(float[1,16,8,8] x) => (float[1,16,8,8] y) { y = Exp(x) }",
            "(float[1,17,8,8] x) => (float[1,17,8,8] y) { y = Sigmoid(x) }",
            "(float[1,16,8,8] x, float[1,16,1,8] m) => (float[1,16,8,8] y) { y = Mul(x, m) }",
            "(float[1,8,8,8] x, float[1,16,8,8] z) => (float[1,24,8,8] y) { y = Concat<axis = -3>(x, z) }",
            "(float[1,16,8,8] x) => (float[1,16,16,16] y) { s = Constant<value = float[4] {1., 1., 2., 2.}>() "
            "y = Resize(x, , s) }"):
        found, refusals = units(text)
        assert len(found) == 1, refusals


def test_joins_take_the_upsampling_that_only_they_read() -> None:
    head = ("(float[n,24,h,w0] x, float[n,24,p,q] z) => (float[n,c,a,b] y, float[n,24,d,e] u) "
            "{ s = Constant<value = float[4] {1., 1., 2., 2.}>() r = Resize(z, , s) ")
    for text, unit in [
        ("y = Concat<axis = 1>(x, r) u = Relu(x) }", "Resize+Concat"),
        ("y = Add(r, x) u = Relu(x) }", "Resize+Add"),
        ("y = Concat<axis = 1>(x, r) u = Relu(r) }", "Concat"),  # somebody else reads the larger value
        ("y = Mul(x, r) u = Relu(x) }", "Mul"),  # no join
        ("g = GlobalMaxPool(x) y = Add(r, g) u = Relu(x) }", "Add"),  # a broadcast: pointwise
    ]:
        found, refusals = units(head + text)
        assert unit in found, (found, refusals)
        assert ("Resize" in found) == (unit in ("Concat", "Mul", "Add"))


def test_extents_behind_strides_come_from_what_the_kernel_reads() -> None:
    """x itself is no input of the second kernel, and the residual has the extents of its result."""
    k = weights("k", 16, 16, 1, 1)
    found, refusals = units(f"(float[n,16,h,w0] x) => (float[n,16,a,b] y) {{ {W} {k} p = Conv<strides = [2,2]>(x, w) "
                            "q = Softmax<axis = 3>(p) r = Conv<strides = [2,2]>(q, k) "
                            "s = MaxPool<kernel_shape = [1,1], strides = [2,2]>(q) y = Add(r, s) }")
    assert found == ["Conv", "MaxPool", "Conv+Add"]
    assert list(refusals) == ["Softmax"]


def test_each_choice_is_a_unit_but_views_of_whole_blocks_and_single_joins_are_not() -> None:
    two = "(float[1,{0},8,8] x) => (float[1,a,8,8] y, float[1,b,8,8] z) {{ {1} p, q = Split<axis = 1>(x, w) "

    def widths(*parts: int) -> str:
        return f"w = Constant<value = int64[2] {{{', '.join(map(str, parts))}}}>() "

    ends = "y = Relu(p) z = Relu(q) }"
    assert units(two.format(40, widths(24, 16)) + ends)[0] == ["Split", "Split", "Relu", "Relu"]
    assert units(two.format(40, widths(16, 24)) + ends)[0] == ["Split", "Relu", "Relu"]
    swapped = "s = Concat<axis = 1>(q, p) y = Relu(s) z = Relu(q) }"
    assert units(two.format(40, widths(16, 24)) + swapped)[0] == ["Split", "Split+Concat", "Relu", "Relu"]
