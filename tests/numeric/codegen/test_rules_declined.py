"""What the lowering rules and the planner of regions do not take, and the reason that they give."""

from __future__ import annotations

import pytest

from tests.numeric.codegen.rule_texts import k, resized
from tests.unit.fusion.parse import lowered
from tilegraph.ops.prims import Decline
from tilegraph.ops.region import plan

DECLINED = {
    "unknown number of elements": (14, "(float[N,4] x, int64[2] s) => (float[M,K] y) { y = Reshape(x, s) }",
                                   "cannot show that"),
    "Expand of unequal": (13, "(float[N] x, int64[1] s) => (float[M] y) { y = Expand(x, s) }",
                          "extents N and M are not equal for certain"),
    "Slice by values": (13, "(float[8] x, int64[1] b, int64[1] e) => (float[4] y) { y = Slice(x, b, e) }",
                        "input 1 of Slice is not constant"),
    "Slice of a symbol": (13, f"(float[N] x) => (float[M] y) {{ {k('b', 0)} {k('e', 3)} y = Slice(x, b, e) }}",
                          "a slice of the symbolic extent N"),
    "Slice of a symbol that may be empty": (13, f"(float[N] x) => (float[M] y) {{ {k('b', 0)} {k('e', -1)} "
                                            "t = Slice(x, b, e) y = Relu(t) }", "a slice of the symbolic extent N"),
    "Split of a symbol": (13, "(float[N] x) => (float[A] y, float[B] z) { y, z = Split<axis=0>(x) }",
                          "Split of the symbolic extent N"),
    "Concat of unequal": (13, "(float[N,4] x, float[M,4] z) => (float[N,8] y) { y = Concat<axis=1>(x, z) }",
                          "extents N and M of axis 0 are not equal for certain"),
    "Squeeze of a symbol": (13, f"(float[N,4] x) => (float[4] y) {{ {k('a', 0)} y = Squeeze(x, a) }}",
                            "a squeezed dim is not 1 for certain"),
    "GatherElements of unknown rows": (13, "(float[N,8] x, int64[M,8] i) => (float[M,8] y) { "
                                       "y = GatherElements<axis=1>(x, i) }", "indices of extent M in axis 0"),
    "GatherND of unknown places": (13, "(float[8,8] x, int64[5,N] i) => (float[M] y) { y = GatherND(x, i) }",
                                   "GatherND of places in N axes"),
    "ReverseSequence of unequal axes": (10, "(float[8,8,3] x, int64[8] i) => (float[8,8,3] y) { "
                                        "y = ReverseSequence<time_axis=0, batch_axis=2>(x, i) }", "other axes than"),
    "LRN over an even number": (13, "(float[1,8,2,2] x) => (float[1,8,2,2] y) { y = LRN<size=4>(x) }",
                                "LRN over 4 channels of a value of 4 dims"),
    "GlobalLpPool of no norm": (2, "(float[1,8,2,2] x) => (float[1,8,1,1] y) { y = GlobalLpPool<p=0>(x) }",
                                "GlobalLpPool with p = 0"),
    "LpPool over many": (18, "(float[1,2,9,9] x) => (float[1,2,4,4] y) { y = LpPool<kernel_shape=[6,6]>(x) }",
                         "a window of 36 elements: kernels take up to 9"),
    "LpPool dilated, padded by itself": (18, "(float[1,2,9,9] x) => (float[1,2,A,B] y) { "
                                         "y = LpPool<kernel_shape=[3,3], dilations=[2,2], "
                                         "auto_pad=\"SAME_UPPER\">(x) }",
                                         "of a dilated window"),
    "LpPool of symbols with steps": (18, "(float[1,2,N,9] x) => (float[1,2,M,9] y) { "
                                     "y = LpPool<kernel_shape=[2,1], strides=[2,1]>(x) }",
                                     "the symbolic extent N with stride 2"),
    "Pad by values": (13, "(float[8] x, int64[2] p) => (float[N] y) { y = Pad(x, p) }",
                      "input 1 of Pad is not constant"),
    "Pad with a computed value": (13, f"(float[8] x, float v) => (float[10] y) {{ {k('p', 1, 1)} y = Pad(x, p, v) }}",
                                  "a value that is not constant"),
    "Pad beyond the reflection": (13, f"(float[3] x) => (float[6] y) {{ {k('p', 3, 0)} "
                                  "y = Pad<mode=\"reflect\">(x, p) }",
                                  "Pad of 3 elements by 3 and 0 in mode reflect"),
    "Pad of a symbol by its edge": (13, f"(float[N] x) => (float[M] y) {{ {k('p', 3, 0)} "
                                    "y = Pad<mode=\"edge\">(x, p) }",
                                    "the symbolic extent N in mode edge"),
    "Pad of a symbol by less": (13, f"(float[N] x) => (float[M] y) {{ {k('p', -3, 0)} y = Pad(x, p) }}",
                                "negative pads of the extent N"),
    "CenterCropPad of a symbol": (18, f"(float[N] x) => (float[3] y) {{ {k('p', 3)} y = CenterCropPad(x, p) }}",
                                  "the symbolic extent N"),
    "Tile by values": (13, "(float[8] x, int64[1] r) => (float[N] y) { y = Tile(x, r) }", "input 1 of Tile"),
    "SpaceToDepth of a symbol": (13, "(float[1,2,N,4] x) => (float[1,8,M,2] y) { y = SpaceToDepth<blocksize=2>(x) }",
                                 "an image of N x 4 in blocks of 2 x 2"),
    "ArgMax of bool": (13, "(bool[3,4] x) => (int64[3,1] y) { y = ArgMax<axis=1>(x) }", "ArgMax of bool"),
    "reduction by values": (18, "(float[2,3] x, int64[1] a) => (float[2,1] y) { y = ReduceSum(x, a) }",
                            "input 1 of ReduceSum is not constant"),
    "mean of integers": (18, f"(int64[2,3] x) => (int64[2,1] y) {{ {k('a', 1)} y = ReduceMean(x, a) }}",
                         "a sum or product of int64, which ONNX Runtime rounds to 53 bits"),
    "max of bool": (20, f"(bool[2,3] x) => (bool[2,1] y) {{ {k('a', 1)} y = ReduceMax(x, a) }}", "a reduction of bool"),
    "training before opset 14": (9, "(float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3] y, "
                                 "float[3] p, float[3] q) { y, p, q = BatchNormalization(x, s, b, m, v) }",
                                 "training mode"),
    "Resize on the edge of two elements": (13, resized("15,1", "nearest", "half_pixel", "floor"),
                                           "rounds where exact arithmetic does not"),
    "Resize of a symbol": (13, f"(float[1,1,N] x) => (float[1,1,14] y) {{ {k('s', 1, 1, 14)} y = Resize(x, , , s) }}",
                           "the symbolic extent N"),
    "CumSum by values": (14, "(float[9] x, int64 a) => (float[9] y) { y = CumSum(x, a) }", "input 1 of CumSum"),
    "running sums both ways": (14, f"(float[9,4] x) => (float[9,4] y) {{ {k('a', 0)} s = CumSum(x, a) "
                               "t = CumSum<reverse=1>(x, a) y = Add(s, t) }", "in both directions"),
    "running sums along two axes": (14, f"(float[9,4] x) => (float[9,4] y) {{ {k('a', 0)} {k('b', 1)} s = CumSum(x, a) "
                                    "t = CumSum(x, b) y = Add(s, t) }", "along another loop"),
    "a running sum of parts": (14, f"(float[9,4] x, float[2,4] z) => (float[11,4] y) {{ {k('a', 0)} "
                               "c = Concat<axis=0>(x, z) y = CumSum(c, a) }", "beside a concatenation"),
    "Resize that smoothes": (18, f"(float[9] x) => (float[4] y) {{ {k('s', 4)} "
                             "y = Resize<antialias=1, mode=\"linear\">(x, , , s) }", "smoothes"),
    "Resize by values": (13, "(float[9] x, float[1] s) => (float[N] y) { y = Resize(x, , s) }", "not constant"),
    "linear Resize of integers": (13, f"(uint8[9] x) => (uint8[4] y) {{ {k('s', 4)} "
                                  "y = Resize<mode=\"linear\">(x, , , s) }", "linear Resize of uint8"),
    "channels that no group holds": (21, "(float[2,5,3] x, float[5] s, float[5] b) => (float[2,5,3] y) { "
                                     "y = GroupNormalization<num_groups=2>(x, s, b) }", "5 channels in 2 groups"),
    "rows in float64": (21, "(float[2,4,3] x, float[4] s, float[4] b) => (float[2,4,3] y) { "
                        "y = GroupNormalization<num_groups=2, stash_type=11>(x, s, b) }", "in the type 11"),
    "rows of float64 in float32": (21, "(double[2,4,3] x, double[4] s, double[4] b) => (double[2,4,3] y) { "
                                   "y = GroupNormalization<num_groups=2>(x, s, b) }", "rounded to float32"),
    "a deviation that is read": (17, "(float[2,3,7] x, float[2,3,7] z, float[7] s) => (float[2,3,7] y, float[2,3,1] m) "
                                 "{ y, m = com.microsoft.SkipLayerNormalization(x, z, s) }",
                                 "the mean or deviation output of a skip normalisation is used"),
    "Range of floats": (11, "(float[4] x) => (float[4] y) <float[4] r> { b = Constant<value_float=0.0>() "
                        "e = Constant<value_float=4.0>() "
                        "d = Constant<value_float=1.0>() r = Range(b, e, d) y = Add(x, r) }", "Range of floats"),
    "Range by values": (11, "(int64 b, int64 e, int64 d, int64[N] x) => (int64[N] y) { r = Range(b, e, d) "
                        "y = Add(x, r) }",
                        "a start or a step that is not constant"),
    "log of sums of integers": (18, f"(int64[2,3] x) => (int64[2,1] y) {{ {k('a', 1)} y = ReduceLogSumExp(x, a) }}",
                                "of integers"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_rules_decline_with_the_reason(name: str) -> None:
    opset, text, reason = DECLINED[name]
    with pytest.raises(Decline, match=reason):
        plan(lowered(text, opset))
