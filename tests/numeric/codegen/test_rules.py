"""Every lowering rule against ONNX Runtime with its optimizations off: attribute by attribute, opset by opset.

Views must give the same bits. Floats that are computed may differ by 8 units of float32 at the largest magnitude of the
output: both sides round, over at most 64 elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.numeric.codegen.rule_texts import R, k, resized
from tests.numeric.codegen.runner import lower, run_lowered
from tests.unit.fusion.parse import model, proto
from tilegraph.ops.lower.tables import COMPOSED, GENERATORS, REDUCTIONS, VIEWS

Array = np.ndarray[Any, Any]


X = "(float[3,4,5] x) =>"
VIEW: dict[str, tuple[int, str]] = {
    "Reshape with 0 and -1": (14, f"{X} (float[3,20] y) {{ {k('s', 0, -1)} v = Reshape(x, s) y = Neg(v) }}"),
    "Reshape taking an axis apart": (14, "(float[6,5] x) => (float[2,3,5] y) { n = Abs(x) " + k("s", 2, 3, 5)
                                     + "v = Reshape(n, s) y = Neg(v) }"),
    "Reshape across axes": (6, "(float[4,6] x) => (float[8,3] y) { n = Abs(x) " + k("s", 8, 3)
                            + "v = Reshape(n, s) y = Neg(v) }"),
    "Transpose": (13, f"{X} (float[4,3,5] y) {{ v = Transpose<perm=[1,0,2]>(x) y = Neg(v) }}"),
    "Transpose without perm": (13, "(float[6,1,1] x) => (float[1,1,6] y) { v = Transpose(x) y = Neg(v) }"),
    "Expand": (13, "(float[3,1] x) => (float[2,3,4] y) { " + k("s", 2, 3, 4) + "v = Expand(x, s) y = Neg(v) }"),
    "Expand by a smaller shape": (13, "(float[2,3,4] x) => (float[2,3,4] y) { n = Abs(x) " + k("s", 3, 1)
                                  + "v = Expand(n, s) y = Neg(v) }"),
    "Slice": (13, f"{X} (float[3,2,5] y) {{ {k('b', 1)} {k('e', 3)} {k('a', 1)} v = Slice(x, b, e, a) y = Neg(v) }}"),
    "Slice from the end": (13, f"{X} (float[3,2,5] y) {{ {k('b', -3)} {k('e', -1)} {k('a', -2)} v = Slice(x, b, e, a) "
                           "y = Neg(v) }"),
    "Slice beyond the end": (13, f"{X} (float[2,3,4] y) {{ {k('b', 1, 1, 1)} {k('e', 9, 99, 2**40)} v = Slice(x, b, e) "
                             "y = Neg(v) }"),
    "Slice with steps": (13, f"{X} (float[2,2,5] y) {{ {k('b', 0, 1)} {k('e', 3, 4)} {k('a', 0, 1)} {k('t', 2, 2)} "
                         "v = Slice(x, b, e, a, t) y = Neg(v) }"),
    "Slice backwards": (13, f"{X} (float[3,4,5] y) {{ {k('b', -1)} {k('e', -9)} {k('a', 0)} {k('t', -1)} "
                        "v = Slice(x, b, e, a, t) y = Neg(v) }"),
    "Slice backwards by two": (13, f"{X} (float[3,2,5] y) {{ {k('b', 3)} {k('e', 0)} {k('a', 1)} {k('t', -2)} "
                               "v = Slice(x, b, e, a, t) y = Neg(v) }"),
    "Slice backwards from beyond": (13, f"{X} (float[3,3,5] y) {{ {k('b', 77)} {k('e', 0)} {k('a', 1)} {k('t', -1)} "
                                    "v = Slice(x, b, e, a, t) y = Neg(v) }"),
    "Slice by attributes": (9, f"{X} (float[3,2,5] y) {{ v = Slice<starts=[1], ends=[-1], axes=[1]>(x) y = Neg(v) }}"),
    "Split": (13, f"{X} (float[3,1,5] y, float[3,3,5] z) {{ {k('s', 1, 3)} a, b = Split<axis=1>(x, s) "
              "m = Sub(b, a) y = Neg(a) z = Neg(m) }".replace("(float[3,1,5] y, float[3,3,5] z)", "(float[3,3,5] z)")
              .replace("y = Neg(a) ", "")),
    "Split into unequal parts": (18, "(float[2,7] x) => (float[2,1] z) { a, b, c = Split<axis=-1, num_outputs=3>(x) "
                                 + k("e", 1) + "s = ReduceSum(a, e) t = ReduceMax(b, e) m = Add(s, t) z = Add(m, c) }"),
    "Split in equal parts": (13, "(float[2,8] x) => (float[2,4] y) { a, b = Split<axis=-1>(x) y = Sub(a, b) }"),
    "Split by attribute": (11, "(float[2,8] x) => (float[2,4] y) { a, b = Split<axis=1, split=[4,4]>(x) "
                           "y = Sub(a, b) }"),
    "Concat along rows": (13, "(float[2,5] x, float[3,5] z) => (float[5,5] y) { c = Concat<axis=0>(x, z) y = Neg(c) }"),
    "Concat along columns": (13, "(float[2,5] x, float[2,3] z) => (float[2,8] y) { c = Concat<axis=-1>(x, z) "
                             "y = Neg(c) }"),
    "Concat of one": (13, "(float[2,5] x) => (float[2,5] y) { c = Concat<axis=0>(x) y = Neg(c) }"),
    "Squeeze": (13, "(float[1,3,1,5] x) => (float[3,1,5] y) { " + k("a", 0) + "v = Squeeze(x, a) y = Neg(v) }"),
    "Squeeze of every 1": (13, "(float[1,3,1,5] x) => (float[3,5] y) { v = Squeeze(x) y = Neg(v) }"),
    "Squeeze by attribute": (11, "(float[1,3,1,5] x) => (float[1,3,5] y) { v = Squeeze<axes=[-2]>(x) y = Neg(v) }"),
    "Unsqueeze": (13, "(float[3,5] x) => (float[3,1,5,1] y) { " + k("a", 1, -1) + "v = Unsqueeze(x, a) y = Neg(v) }"),
    "Unsqueeze by attribute": (11, "(float[3,5] x) => (float[1,3,5] y) { v = Unsqueeze<axes=[0]>(x) y = Neg(v) }"),
    "Flatten": (13, f"{X} (float[3,20] y) {{ v = Flatten(x) y = Neg(v) }}"),
    "Flatten at 0": (13, f"{X} (float[1,60] y) {{ v = Flatten<axis=0>(x) y = Neg(v) }}"),
    "Flatten from the end": (13, f"{X} (float[12,5] y) {{ v = Flatten<axis=-1>(x) y = Neg(v) }}"),
    "Gather of one": (13, f"{X} (float[3,5] y) {{ i = Constant<value_int=2>() v = Gather<axis=1>(x, i) y = Neg(v) }}"),
    "Gather from the end": (13, f"{X} (float[3,5] y) {{ i = Constant<value_int=-1>() v = Gather<axis=-2>(x, i) "
                            "y = Neg(v) }"),
    "Gather of a range": (13, f"{X} (float[3,3,5] y) {{ {k('i', 3, 2, 1)} v = Gather<axis=1>(x, i) y = Neg(v) }}"),
    "Gather of a table": (13, f"{X} (float[3,2,2,5] y) {{ i = Constant<value = int64[2,2] {{0, 1, 2, -1}}>() "
                          "v = Gather<axis=1>(x, i) y = Neg(v) }"),
    "Transpose of the last axes": (13, "(float[3,20,37] x) => (float[3,37,20] y) { v = Transpose<perm=[0,2,1]>(x) "
                                   "y = Neg(v) }"),
    "Transpose of bool": (13, "(bool[20,37] x) => (bool[37,20] y) { v = Transpose(x) y = Not(v) }"),
    "Transpose of float16": (13, "(float16[20,37] x) => (float16[37,20] y) { v = Transpose(x) y = Neg(v) }"),
    "Transpose of double": (13, "(double[20,37] x) => (double[37,20] y) { v = Transpose(x) y = Neg(v) }"),
    "Transpose of int8": (13, "(int8[20,37] x) => (int8[37,20] y) { v = Transpose(x) y = Neg(v) }"),
    "Slice backwards along the row": (13, f"(float[3,70] x) => (float[3,70] y) {{ {k('b', -1)} {k('e', -99)} "
                                      f"{k('a', 1)} {k('t', -1)} v = Slice(x, b, e, a, t) y = Neg(v) }}"),
    "Slice every third": (13, f"(float[3,70] x) => (float[3,23] y) {{ {k('b', 1)} {k('e', 99)} {k('a', 1)} {k('t', 3)} "
                          "v = Slice(x, b, e, a, t) y = Neg(v) }"),
    "Reshape that divides the row": (6, "(float[20,7] x) => (float[7,20] y) { n = Abs(x) " + k("s", 7, 20)
                                     + "t = Transpose(n) r = Reshape(t, s) y = Neg(r) }"),
    "Trilu of a transposed": (14, "(float[19,19] x) => (float[19,19] y) { t = Transpose(x) y = Trilu(t) }"),
    "Gather of two runs": (13, f"{X} (float[3,4,5] y) {{ {k('i', 2, 3, 0, 1)} v = Gather<axis=1>(x, i) y = Neg(v) }}"),
    "Gather of single places": (13, "(float[3,9] x) => (float[3,6] y) { " + k("i", 4, 4, 4, 0, 7, 8)
                                + "v = Gather<axis=1>(x, i) y = Neg(v) }"),
    "Pad": (13, f"{X} (float[5,4,8] y) {{ {k('p', 2, 0, 1, 0, 0, 2)} v = Pad(x, p) y = Neg(v) }}"),
    "Pad with a value": (11, f"{X} (float[3,4,8] y) {{ {k('p', 0, 0, 1, 0, 0, 2)} c = Constant<value_float=2.5>() "
                         "v = Pad(x, p, c) y = Neg(v) }"),
    "Pad by attributes": (10, f"{X} (float[3,6,5] y) {{ v = Pad<pads=[0,2,0,0,0,0], value=1.5>(x) y = Abs(v) }}"),
    "Pad of some axes": (18, f"{X} (float[4,4,7] y) {{ {k('p', 0, 2, 1, 0)} {k('a', 0, -1)} v = Pad(x, p, , a) "
                         "y = Neg(v) }"),
    "Pad by less": (13, f"{X} (float[2,4,6] y) {{ {k('p', -1, 0, 3, 0, 0, -2)} v = Pad(x, p) y = Neg(v) }}"),
    "Pad of bool": (13, f"(bool[3,5] x) => (bool[3,9] y) {{ {k('p', 0, 1, 0, 3)} v = Pad(x, p) y = Not(v) }}"),
    "Pad of int64": (13, f"(int64[3,5] x) => (int64[4,5] y) {{ {k('p', 1, 0, 0, 0)} v = Pad(x, p) y = Neg(v) }}"),
    "Pad by the edge": (13, f"{X} (float[3,7,8] y) {{ {k('p', 0, 1, 1, 0, 2, 2)} v = Pad<mode=\"edge\">(x, p) "
                        "y = Neg(v) }"),
    "Pad by reflection": (13, f"{X} (float[3,6,9] y) {{ {k('p', 0, 1, 3, 0, 1, 1)} v = Pad<mode=\"reflect\">(x, p) "
                          "y = Neg(v) }"),
    "Pad by wrapping": (19, f"{X} (float[3,6,9] y) {{ {k('p', 0, 1, 3, 0, 1, 1)} v = Pad<mode=\"wrap\">(x, p) "
                        "y = Neg(v) }"),
    "Tile": (13, f"{X} (float[6,4,15] y) {{ {k('r', 2, 1, 3)} v = Tile(x, r) y = Neg(v) }}"),
    "Tile of columns": (13, "(float[3,1] x) => (float[3,40] y) { " + k("r", 1, 40) + "v = Tile(x, r) y = Neg(v) }"),
    "DepthToSpace": (13, "(float[2,8,3,5] x) => (float[2,2,6,10] y) { v = DepthToSpace<blocksize=2>(x) y = Neg(v) }"),
    "DepthToSpace by columns": (13, "(float[2,18,3,5] x) => (float[2,2,9,15] y) { "
                                "v = DepthToSpace<blocksize=3, mode=\"CRD\">(x) y = Neg(v) }"),
    "SpaceToDepth": (13, "(float[2,3,4,40] x) => (float[2,12,2,20] y) { v = SpaceToDepth<blocksize=2>(x) y = Neg(v) }"),
    "SpaceToDepth by columns": (28, "(float[2,3,4,40] x) => (float[2,12,2,20] y) { "
                                "v = SpaceToDepth<blocksize=2, mode=\"CRD\">(x) y = Neg(v) }"),
    "CenterCropPad": (18, f"{X} (float[6,3,5] y) {{ {k('p', 6, 3)} v = CenterCropPad<axes=[0, 1]>(x, p) y = Neg(v) }}"),
    "ArgMax": (13, "(float[3,40] x) => (int64[3,1] y) { y = ArgMax<axis=1>(x) }"),
    "ArgMax of equals": (13, "(int32[3,40] x) => (int64[3] y) { y = ArgMax<axis=-1, keepdims=0>(x) }"),
    "ArgMax of the last equals": (13, "(int32[3,40] x) => (int64[3,1] y) { "
                                  "y = ArgMax<axis=-1, select_last_index=1>(x) }"),
    "ArgMax over the first": (13, "(float[5,40] x) => (int64[40] y) { y = ArgMax<keepdims=0>(x) }"),
    "ArgMin": (13, "(double[3,4,7] x) => (int64[3,1,7] y) { y = ArgMin<axis=1>(x) }"),
    "ArgMin of the last equals": (13, "(int8[4,33] x) => (int64[4,1] y) { "
                                  "y = ArgMin<axis=1, select_last_index=1>(x) }"),
    "DynamicQuantizeLinear": (11, "(float[7,40] x) => (uint8[7,40] y, float s, uint8 z) { "
                              "y, s, z = DynamicQuantizeLinear(x) }"),
    "DynamicQuantizeLinear of positive values": (
        11, "(float[7,40] x) => (uint8[7,40] y, float s, uint8 z) { a = Abs(x) y, s, z = DynamicQuantizeLinear(a) }"),
    "DynamicQuantizeLinear of zeros": (11, "(float[7,40] x) => (uint8[7,40] y, float s, uint8 z) { a = Sub(x, x) "
                                       "y, s, z = DynamicQuantizeLinear(a) }"),
    "Hardmax": (13, "(float[3,40] x) => (float[3,40] y) { y = Hardmax(x) }"),
    "Hardmax over the first": (13, "(float[3,40] x) => (float[3,40] y) { y = Hardmax<axis=0>(x) }"),
    "Hardmax flattens": (11, "(float[3,4,5] x) => (float[3,4,5] y) { y = Hardmax<axis=1>(x) }"),
    "BitCast": (26, "(float[3,40] x) => (int32[3,40] y) { y = BitCast<to=6>(x) }"),
    "Range": (11, "(int64[6] x) => (int64[6] y) <int64[6] r> { b = Constant<value_int=5>() "
              "e = Constant<value_int=-7>() "
              "d = Constant<value_int=-2>() r = Range(b, e, d) y = Add(x, r) }"),
    "Range of int32": (11, "(int32[4] x) => (int32[4] y) { b = Constant<value = int32 {1}>() "
                       "e = Constant<value = int32 {9}>() d = Constant<value = int32 {2}>() "
                       "r = Range(b, e, d) y = Add(x, r) }"),
    "ConstantOfShape": (9, "(float[2,3] x) => (float[2,3] y) { " + k("s", 2, 3)
                        + "c = ConstantOfShape<value = float[1] {2.5}>(s) y = Mul(x, c) }"),
    "ConstantOfShape without a value": (9, "(float[2,3] x) => (float[2,3] y) { " + k("s", 2, 3)
                                        + "c = ConstantOfShape(s) y = Mul(x, c) }"),
    "Trilu": (14, f"{X} (float[3,4,5] y) {{ y = Trilu(x) }}"),
    "Trilu above the diagonal": (14, f"{X} (float[3,4,5] y) {{ i = Constant<value_int=1>() y = Trilu(x, i) }}"),
    "Trilu beyond the matrix": (14, f"{X} (float[3,4,5] y) {{ i = Constant<value_int={2**63 - 1}>() "
                                "y = Trilu(x, i) }"),
    "Trilu below": (14, f"{X} (float[3,4,5] y) {{ i = Constant<value_int=-1>() y = Trilu<upper=0>(x, i) }}"),
    "Trilu of bool": (14, "(bool[5,5] x) => (bool[5,5] y) { y = Trilu<upper=0>(x) }"),
    "EyeLike": (9, "(float[4,6] x) => (float[4,6] y) { e = EyeLike<k=1>(x) y = Add(e, x) }"),
    "EyeLike of another dtype": (9, "(float[4,6] x, int64[4,6] z) => (int64[4,6] y) { e = EyeLike<dtype=7, k=-2>(x) "
                                 "y = Add(e, z) }"),
}



def reduced(op: str, kept: str, keepdims: int, axes: tuple[int, ...] | None, attribute: bool, **attrs: int) -> str:
    shown = {"keepdims": keepdims, **attrs}
    if attribute and axes is not None:
        text = ", ".join([f"axes=[{', '.join(map(str, axes))}]", *(f"{a}={v}" for a, v in shown.items())])
        return f"{R} (float[{kept}] y) {{ p = Abs(x) y = {op}<{text}>(p) }}"
    text = ", ".join(f"{a}={v}" for a, v in shown.items())
    listed = "" if axes is None else k("a", *axes)
    return f"{R} (float[{kept}] y) {{ p = Abs(x) {listed} y = {op}<{text}>(p{'' if axes is None else ', a'}) }}"


REDUCES = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
           "ReduceLogSum", "ReduceLogSumExp")
FLOAT: dict[str, tuple[int, str]] = {}
for _op in REDUCES:
    FLOAT |= {
        f"{_op} over the last": (18, reduced(_op, "2,3,1", 1, (-1,), False)),
        f"{_op} over two, dropped": (18, reduced(_op, "2", 0, (1, 2), False)),
        f"{_op} by attribute": (11, reduced(_op, "2,1,1", 1, (2, -2), True)),
    }
    FLOAT |= {
        f"{_op} over the first": (18, reduced(_op, "1,3,7", 1, (0,), False)),
        f"{_op} over the middle, dropped": (18, reduced(_op, "2,7", 0, (1,), False)),
        f"{_op} around the middle": (18, reduced(_op, "1,3,1", 1, (0, 2), False)),
    }
FLOAT |= {
    "ReduceSum over all": (13, "(float[2,3,7] x) => (float[1,1,1] s, float[2,3,7] y) { s = ReduceSum(x) y = Sub(x, s) }"
                           .replace("float[1,1,1] s, ", "")),
    "ReduceSum of nothing": (13, "(float[2,3,7] x) => (float[2,3,7] y) { s = ReduceSum<noop_with_empty_axes=1>(x) "
                             "y = Sub(x, s) }"),
    "ReduceMean of nothing": (18, "(float[2,3,7] x) => (float[2,3,7] y) { s = ReduceMean<noop_with_empty_axes=1>(x) "
                              "y = Add(x, s) }"),
    "ReduceL2 of nothing": (18, "(float[2,3,7] x) => (float[2,3,7] y) { s = ReduceL2<noop_with_empty_axes=1>(x) "
                            "y = Add(x, s) }"),
    "ReduceMax over extents of 1": (18, "(float[4,6,1] x) => (float[4,1,1] y) { " + k("a", 1)
                                    + "m = ReduceMax(x, a) y = Neg(m) }"),
    "BatchNormalization in training": (15, "(float[2,3,4,5] x, float[3] s, float[3] b, float[3] m, float[3] v) => "
                                       "(float[2,3,4,5] y, float[3] p, float[3] q) { w = Abs(v) "
                                       "y, p, q = BatchNormalization<training_mode=1, momentum=0.7>(x, s, b, m, w) }"),
    "BatchNormalization of a matrix in training": (
        15, "(float[9,40] x, float[40] s, float[40] b, float[40] m, float[40] v) => (float[9,40] y, float[40] p, "
        "float[40] q) { w = Abs(v) y, p, q = BatchNormalization<training_mode=1>(x, s, b, m, w) }"),
    "CumSum": (14, "(float[3,40] x) => (float[3,40] y) { " + k("a", 1) + "y = CumSum(x, a) }"),
    "CumSum over the first": (14, "(float[9,40] x) => (float[9,40] y) { " + k("a", 0)
                              + "n = Neg(x) y = CumSum(n, a) }"),
    "CumSum over the middle, from the end": (14, "(float[2,9,40] x) => (float[2,9,40] y) { " + k("a", -2)
                                             + "s = CumSum<reverse=1>(x, a) y = Mul(s, x) }"),
    "CumSum without the element": (14, "(int64[2,9] x) => (int64[2,9] y) { " + k("a", 1)
                                   + "y = CumSum<exclusive=1>(x, a) }"),
    "CumSum of the elements behind": (14, "(int32[7] x) => (int32[7] y) { " + k("a", 0)
                                      + "y = CumSum<exclusive=1, reverse=1>(x, a) }"),
    "CumSum of one element": (14, "(float[7,1] x) => (float[7,1] y) { " + k("a", 1) + "s = CumSum(x, a) y = Neg(s) }"),
    "positions of a mask": (14, "(int64[3,50] x) => (int64[3,50] y) { " + k("a", 1) + "z = Constant<value_int=0>() "
                            "b = Greater(x, z) m = Cast<to=7>(b) s = CumSum(m, a) y = Mul(s, m) }"),
    "CumSum of a softmax": (14, "(float[3,40] x) => (float[3,40] y) { " + k("a", 1) + "p = Softmax(x) "
                            "y = CumSum(p, a) }"),
    "MeanVarianceNormalization": (13, "(float[2,3,4,5] x) => (float[2,3,4,5] y) { y = MeanVarianceNormalization(x) }"),
    "MeanVarianceNormalization over the middle": (13, "(float[2,6,40] x) => (float[2,6,40] y) { "
                                                  "y = MeanVarianceNormalization<axes=[1]>(x) }"),
    "RotaryEmbedding": (23, "(float[2,4,3,8] x, float[2,3,4] c, float[2,3,4] s) => (float[2,4,3,8] y) { "
                        "y = RotaryEmbedding(x, c, s) }"),
    "RotaryEmbedding of a part": (23, "(float[2,3,40] x, float[2,3,3] c, float[2,3,3] s) => (float[2,3,40] y) { "
                                  "y = RotaryEmbedding<num_heads=4, rotary_embedding_dim=6>(x, c, s) }"),
    "RotaryEmbedding of neighbours": (23, "(float[2,4,3,8] x, float[2,3,4] c, float[2,3,4] s) => (float[2,4,3,8] y) { "
                                      "y = RotaryEmbedding<interleaved=1>(x, c, s) }"),
    "Softmax flattens": (11, f"{R} (float[2,3,7] y) {{ y = Softmax<axis=1>(x) }}"),
    "Softmax flattens by default": (11, f"{R} (float[2,3,7] y) {{ y = Softmax(x) }}"),
    "Softmax of the last axis": (13, f"{R} (float[2,3,7] y) {{ y = Softmax(x) }}"),
    "Softmax over the middle": (13, "(float[2,5,77] x) => (float[2,5,77] y) { y = Softmax<axis=1>(x) }"),
    "Softmax over the first of two": (13, "(float[6,300] x) => (float[6,300] y) { y = Softmax<axis=0>(x) }"),
    "LogSoftmax over the first": (13, f"{R} (float[2,3,7] y) {{ y = LogSoftmax<axis=0>(x) }}"),
    "LpNormalization over the middle": (1, "(float[2,5,33] x) => (float[2,5,33] y) { y = LpNormalization<axis=1>(x) }"),
    "ReduceSum of many rows of int32": (13, "(int32[5,9,200] x) => (int32[5,1,200] y) { " + k("a", 1)
                                        + "y = ReduceSum(x, a) }"),
    "ReduceMean over the middle of double": (18, "(double[3,9,21] x) => (double[3,21] y) { " + k("a", 1)
                                             + "y = ReduceMean<keepdims=0>(x, a) }"),
    "ReduceSum of a long column": (13, "(float[2,1000,37] x) => (float[2,1,37] y) { " + k("a", 1)
                                   + "y = ReduceSum(x, a) }"),
    "channel norm": (18, "(float[2,24,5,7] x, float[24,1,1] s) => (float[2,24,5,7] y) { " + k("a", 1)
                     + "m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, a) r = Sqrt(v) "
                     "n = Div(d, r) y = Mul(n, s) }"),
    "values of a row beside the rows": (18, "(float[4,9,40] x, float[40] s) => (float[4,1,40] m, float[4,9,40] y) { "
                                        + k("a", 1) + "m = ReduceMax(x, a) e = Sub(x, m) f = Exp(e) y = Mul(f, s) }"),
    "LogSoftmax flattens": (11, f"{R} (float[2,3,7] y) {{ y = LogSoftmax<axis=1>(x) }}"),
    "LogSoftmax of the last axis": (13, f"{R} (float[2,3,7] y) {{ y = LogSoftmax<axis=2>(x) }}"),
    "LayerNormalization": (17, "(float[2,3,7] x, float[7] s, float[7] b) => (float[2,3,7] y) { "
                           "y = LayerNormalization<epsilon=0.001>(x, s, b) }"),
    "LayerNormalization over two axes": (17, "(float[2,3,7] x, float[3,7] s) => (float[2,3,7] y) { "
                                         "y = LayerNormalization<axis=-2>(x, s) }"),
    "LayerNormalization with mean and deviation": (17, "(float[2,3,7] x, float[7] s, float[7] b) => (float[2,3,7] y, "
                                                   "float[2,3,1] m, float[2,3,1] d) { y, m, d = "
                                                   "LayerNormalization(x, s, b) }"),
    "SimplifiedLayerNormalization": (17, "(float[2,3,7] x, float[7] s) => (float[2,3,7] y) { "
                                     "y = SimplifiedLayerNormalization<axis=-1, epsilon=0.01, stash_type=1>(x, s) }"),
    "RMSNormalization": (23, "(float[2,3,7] x, float[7] s) => (float[2,3,7] y) { "
                         "y = RMSNormalization<epsilon=0.01>(x, s) }"),
    "SkipLayerNormalization": (17, "(float[2,3,7] x, float[2,3,7] z, float[7] s, float[7] b, float[7] c) => "
                               "(float[2,3,7] y, float[2,3,7] t) { y, , , t = com.microsoft.SkipLayerNormalization"
                               "<epsilon=0.001>(x, z, s, b, c) }"),
    "SkipSimplifiedLayerNormalization": (17, "(float[2,3,7] x, float[2,3,7] z, float[7] s) => (float[2,3,7] y) { "
                                         "y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=0.01>(x, z, s) }"),
    "InstanceNormalization": (6, "(float[2,3,4,5] x, float[3] s, float[3] b) => (float[2,3,4,5] y) { "
                              "y = InstanceNormalization<epsilon=0.01>(x, s, b) }"),
    "GroupNormalization of 21": (21, "(float[2,4,3,5] x, float[4] s, float[4] b) => (float[2,4,3,5] y) { "
                                 "y = GroupNormalization<num_groups=2>(x, s, b) }"),
    "GroupNormalization of 18": (18, "(float[2,4,3,5] x, float[2] s, float[2] b) => (float[2,4,3,5] y) { "
                                 "y = GroupNormalization<num_groups=2>(x, s, b) }"),
    "BatchNormalization": (15, "(float[2,3,4,5] x, float[3] s, float[3] b, float[3] m, float[3] v) => "
                           "(float[2,3,4,5] y) { w = Abs(v) y = BatchNormalization<epsilon=0.01>(x, s, b, m, w) }"),
    "BatchNormalization of a matrix": (9, "(float[4,6] x, float[6] s, float[6] b, float[6] m, float[6] v) => "
                                       "(float[4,6] y) { w = Abs(v) y = BatchNormalization(x, s, b, m, w) }"),
    "GlobalAveragePool": (1, "(float[2,3,4,5] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }"),
    "GlobalMaxPool": (1, "(float[2,3,4,5] x) => (float[2,3,1,1] y) { y = GlobalMaxPool(x) }"),
    "LpNormalization": (1, f"{R} (float[2,3,7] y) {{ y = LpNormalization(x) }}"),
    "LRN": (13, "(float[2,9,4,5] x) => (float[2,9,4,5] y) { y = LRN<size=5, alpha=0.3>(x) }"),
    "LRN with another exponent": (1, "(float[2,3,1,40] x) => (float[2,3,1,40] y) { "
                                  "y = LRN<size=9, alpha=0.3, beta=0.6, bias=2.0>(x) }"),
    "GlobalLpPool": (2, "(float[2,9,4,5] x) => (float[2,9,1,1] y, float[2,9,1,1] z) { y = GlobalLpPool(x) "
                     "z = GlobalLpPool<p=1>(x) }"),
    "GlobalLpPool of the third norm": (2, "(float[2,9,4,5] x) => (float[2,9,1,1] y) { y = GlobalLpPool<p=3>(x) }"),
    "LpPool": (18, "(float[2,3,9,20] x) => (float[2,3,8,19] y) { y = LpPool<kernel_shape=[2,2]>(x) }"),
    "LpPool with pads and strides": (11, "(float[1,2,9,20] x) => (float[1,2,5,9] y) { "
                                     "y = LpPool<kernel_shape=[3,3], strides=[2,2], pads=[1,0,1,0], p=1>(x) }"),
    "LpPool dilated, of the third norm": (18, "(float[1,2,9,20] x) => (float[1,2,7,20] y) { "
                                          "y = LpPool<kernel_shape=[2,3], dilations=[2,2], pads=[0,2,0,2], p=3>(x) }"),
    "LpPool that rounds up": (22, "(float[2,2,14] x) => (float[2,2,5] y) { "
                              "y = LpPool<kernel_shape=[3], strides=[3], ceil_mode=1>(x) }"),
    "LpPool that rounds up to no window more": (22, "(float[2,2,6] x) => (float[2,2,2] y) { "
                                                "y = LpPool<kernel_shape=[2], strides=[3], ceil_mode=1>(x) }"),
    "LpPool of the same size": (11, "(float[1,2,5,6,7] x) => (float[1,2,5,6,7] y) { "
                                "y = LpPool<kernel_shape=[2,2,2], auto_pad=\"SAME_LOWER\">(x) }"),
    "LpNormalization by sums": (1, f"{R} (float[2,3,7] y) {{ y = LpNormalization<p=1, axis=2>(x) }}"),
    "ReduceSum of int32": (13, "(int32[3,9] x) => (int32[3,1] y) { " + k("a", 1) + "y = ReduceSum(x, a) }"),
    "ReduceMax of int8": (18, "(int8[3,9] x) => (int8[3,1] y) { " + k("a", 1) + "y = ReduceMax(x, a) }"),
    "ReduceMin of uint8": (18, "(uint8[3,9] x) => (uint8[3,1] y) { " + k("a", 1) + "y = ReduceMin(x, a) }"),
    "ReduceProd of int32": (18, "(int32[3,9] x) => (int32[3,1] y) { " + k("a", 1) + "y = ReduceProd(x, a) }"),
    "ReduceMean of double": (18, "(double[3,9] x) => (double[3,1] y) { " + k("a", 1) + "y = ReduceMean(x, a) }"),
}


TRANSFORMS = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "tf_half_pixel_for_nn")
SIZES = ("10,14", "7,20", "3,5", "5,21", "15,1")


for _size in SIZES:
    for _transform in TRANSFORMS:
        FLOAT[f"Resize to {_size}, linear, {_transform}"] = 13, resized(_size, "linear", _transform)
for _size in SIZES[:-1]:
    for _transform, _nearest in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "floor"),
                                 ("half_pixel", "ceil"), ("asymmetric", "round_prefer_ceil"),
                                 ("align_corners", "round_prefer_floor"), ("tf_half_pixel_for_nn", "floor"),
                                 ("pytorch_half_pixel", "round_prefer_ceil")):
        VIEW[f"Resize to {_size}, nearest, {_transform}, {_nearest}"] = (
            13, resized(_size, "nearest", _transform, _nearest))
VIEW |= {
    "Resize by scales": (13, "(float[1,2,5,7] x) => (float[1,2,12,8] y) { r = Constant<value = float[0] {}>() "
                         "s = Constant<value = float[4] {1.0, 1.0, 2.5, 1.2}>() v = Resize<mode=\"nearest\">(x, r, s) "
                         "y = Neg(v) }"),
    "Resize of opset 10": (10, "(float[1,2,5,7] x) => (float[1,2,10,21] y) { "
                           "s = Constant<value = float[4] {1.0, 1.0, 2.0, 3.0}>() v = Resize(x, s) y = Neg(v) }"),
    "Resize of chosen axes": (18, "(int8[1,5,7] x) => (int8[1,10,7] y) { " + k("s", 10)
                              + "v = Resize<axes=[1], mode=\"nearest\">(x, , , s) y = Neg(v) }"),
    "Upsample": (9, "(float[1,2,5,7] x) => (float[1,2,10,14] y) { "
                 "s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() v = Upsample(x, s) y = Neg(v) }"),
}


def contents(dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def both(text: str, opset: int) -> list[tuple[Array, Array]]:
    """(ours, ONNX Runtime's) for every output."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(proto(text, opset).SerializeToString(), options, providers=["CPUExecutionProvider"])
    made = model(text, opset)
    rng = np.random.default_rng(len(text))
    feeds = {v.name or "": contents(v.dtype.numpy(), tuple(v.shape), rng)  # type: ignore[union-attr,arg-type]
             for v in made.graph.inputs}
    theirs = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    ours, kernel, _ = run_lowered(lower(list(made.graph), list(made.graph.outputs), opset), feeds, tasks=2)
    assert len(kernel.outputs) == len(theirs)
    return [(array, theirs[at]) for array, at in zip(ours, kernel.outputs, strict=True)]


@pytest.mark.parametrize("name", VIEW)
def test_views_and_generators_give_the_same_bits(name: str) -> None:
    opset, text = VIEW[name]
    for ours, theirs in both(text, opset):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("name", FLOAT)
def test_reductions_agree(name: str) -> None:
    opset, text = FLOAT[name]
    for ours, theirs in both(text, opset):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if ours.dtype.kind in "iu":
            assert np.array_equal(ours, theirs)
        else:
            bound = 8 * float(np.finfo(ours.dtype).eps) * float(np.abs(theirs).max())
            assert np.abs(ours.astype(np.float64) - theirs).max() <= bound


@pytest.mark.parametrize("op", ["ArgMax<axis=1>", "ArgMin<axis=1>", "ArgMax<axis=1, select_last_index=1>",
                                "ArgMin<axis=1, select_last_index=1>", "Hardmax"])
def test_places_of_extremes_among_special_values(op: str) -> None:
    """Rows with NaN in front, inside and everywhere, infinities, and equal values, as ONNX Runtime has them."""
    nan, inf = np.nan, np.inf
    rows = [[nan, 1, 2], [1, nan, 2], [2, 1, nan], [nan, nan, nan], [-inf, -inf, -inf], [inf, inf, 1], [-inf, nan, inf],
            [0.0, -0.0, 0.0], [1, 1, 1], [nan, inf, -inf]]
    x = np.array([[*row, *row[1:]] for row in rows], np.float32)
    made = "float" if op == "Hardmax" else "int64"
    text = f"(float[10,5] x) => ({made}[10,{5 if op == 'Hardmax' else 1}] y) {{ y = {op}(x) }}"
    session = ort.InferenceSession(proto(text, 13).SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": x})
    parsed = model(text, 13)
    (ours,), _, _ = run_lowered(lower(list(parsed.graph), list(parsed.graph.outputs), 13), {"x": x})
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_running_products(exclusive: int, reverse: int) -> None:
    """ONNX Runtime has no CumProd; numpy does, in float64."""
    made = model(f"(float[3,9] x) => (float[3,9] y) {{ a = Constant<value_int=1>() "
                 f"y = CumProd<exclusive={exclusive}, reverse={reverse}>(x, a) }}", 26)
    x = np.random.default_rng(3).uniform(0.5, 1.5, (3, 9)).astype(np.float32)
    (ours,), _, _ = run_lowered(lower(list(made.graph), list(made.graph.outputs), 26), {"x": x}, tasks=2)
    flipped = (x[:, ::-1] if reverse else x).astype(np.float64)
    running = np.cumprod(flipped, axis=1)
    if exclusive:
        running = np.concatenate([np.ones((3, 1)), running[:, :-1]], axis=1)
    assert np.abs(ours / (running[:, ::-1] if reverse else running) - 1).max() < 1e-6


def test_a_zero_row_has_no_lp_norm() -> None:
    made = model("(float[2,4] x) => (float[2,4] y) { y = LpNormalization(x) }", 13)
    x = np.array([[0, 0, 0, 0], [3, 0, 4, 0]], np.float32)
    (ours,), _, _ = run_lowered(lower(list(made.graph), list(made.graph.outputs), 13), {"x": x})
    assert np.abs(ours - np.array([[0, 0, 0, 0], [0.6, 0, 0.8, 0]])).max() <= 1e-7


def test_every_rule_is_here() -> None:
    text = " ".join(t for _, t in (*VIEW.values(), *FLOAT.values()))
    elsewhere = ("Cast", "CastLike", "CumProd", "GatherElements", "GatherND", "ReverseSequence", "QuantizeLinear",
                 "DequantizeLinear", "OneHot", "GridSample", "AffineGrid")  # have files of their own
    for op in (*VIEWS, *(op for table in (REDUCTIONS, GENERATORS, COMPOSED) for _, op in table)):
        assert op in elsewhere or f"{op}(" in text or f"{op}<" in text, f"no test of {op}"
