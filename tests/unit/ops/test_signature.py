"""What makes two kernels one: the text that names a computation says all that decides its code."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.unit.fusion.parse import lowered
from tilegraph.ops.prims import signature


def k(name: str, *values: int) -> str:
    return f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values))}}}>()"


def named(text: str) -> str:
    return signature(lowered(text, 18).outputs)


# In each group, models that differ in one thing.
GROUPS = {
    "operator": ["(float[B,8] x, float[B,8] z) => (float[B,8] y) { y = Add(x, z) }",
                 "(float[B,8] x, float[B,8] z) => (float[B,8] y) { y = Sub(x, z) }"],
    "dtype": [f"({dtype}[B,8] x) => ({dtype}[B,8] y) {{ y = Neg(x) }}"
              for dtype in ("float", "double", "float16", "bfloat16", "int32", "int8")],
    "shape": [f"(float[{shape}] x) => (float[{shape}] y) {{ y = Neg(x) }}"
              for shape in ("B,8", "8,B", "8,8", "B,9", "B")],
    "number": [f"(float[B,8] x) => (float[B,8] y) {{ c = Constant<value = float {{{value}}}>() y = Mul(x, c) }}"
               for value in ("2.0", "3.0", "2.000001")],
    "attribute": [f"(float[B,8] x) => (float[B,8] y) {{ y = LeakyRelu<alpha={alpha}>(x) }}"
                  for alpha in ("0.1", "0.2")],
    "epsilon": [f"(float[B,8] x, float[8] s) => (float[B,8] y) {{ y = LayerNormalization<epsilon={epsilon}>(x, s) }}"
                for epsilon in ("0.00001", "0.00002")],
    "reduction": [f"(float[B,8] x) => (float[B,1] y) {{ {k('a', 1)} y = {op}(x, a) }}"
                  for op in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd")],
    "axes": [f"(float[4,4,4] x) => (float[{shape}] y) {{ {k('a', axis)} y = ReduceSum(x, a) }}"
             for axis, shape in ((0, "1,4,4"), (1, "4,1,4"), (2, "4,4,1"))],
    "places": [f"(float[B,8] x) => (float[B,4] y) {{ {k('b', begin)} {k('e', begin + 4)} {k('a', 1)} "
               "t = Slice(x, b, e, a) y = Neg(t) }" for begin in (0, 1, 4)],
    "permutation": [f"(float[4,4,4] x) => (float[4,4,4] y) {{ t = Transpose<perm=[{perm}]>(x) y = Neg(t) }}"
                    for perm in ("0,2,1", "1,0,2", "2,1,0", "1,2,0")],
    "padding": [f"(float[8] x) => (float[10] y) {{ {k('p', *pads)} t = Pad<mode=\"{mode}\">(x, p) y = Neg(t) }}"
                for pads, mode in (((1, 1), "constant"), ((2, 0), "constant"), ((1, 1), "edge"), ((1, 1), "reflect"))],
    "running": [f"(float[B,8] x) => (float[B,8] y) {{ {k('a', 1)} y = CumSum<exclusive={e}, reverse={r}>(x, a) }}"
                for e, r in ((0, 0), (0, 1), (1, 0))],
    "wiring": ["(float[B,8] x) => (float[B,8] y) { t = Exp(x) u = Neg(t) y = Add(t, u) }",
               "(float[B,8] x) => (float[B,8] y) { t = Exp(x) u = Neg(x) y = Add(t, u) }"],
    "cast": [f"(float[B,8] x) => ({dtype}[B,8] y) {{ t = Exp(x) y = Cast<to={code}>(t) }}"
             for dtype, code in (("float16", 10), ("bfloat16", 16), ("int32", 6), ("int8", 3))],
}


@pytest.mark.parametrize("group", list(GROUPS))
def test_what_differs_has_another_name(group: str) -> None:
    for one, other in combinations(GROUPS[group], 2):
        assert named(one) != named(other), f"{one}\n{other}"


def test_names_of_values_do_not_matter() -> None:
    assert named("(float[B,8] x, float[B,8] z) => (float[B,8] y) { t = Exp(x) y = Sub(t, z) }") == \
        named("(float[B,8] left, float[B,8] right) => (float[B,8] out) { inner = Exp(left) out = Sub(inner, right) }")


def test_bounds_of_clip_are_the_same_as_attributes_and_as_constants() -> None:
    """Models of opset 10 and of opset 11 have the same kernels."""
    ten = lowered("(float[B,8] x) => (float[B,8] y) { y = Clip<min=-0.5, max=1.5>(x) }", 10)
    eleven = lowered("(float[B,8] x) => (float[B,8] y) { a = Constant<value = float {-0.5}>() "
                     "b = Constant<value = float {1.5}>() y = Clip(x, a, b) }", 11)
    assert signature(ten.outputs) == signature(eleven.outputs)
    low = lowered("(float[B,8] x) => (float[B,8] y) { y = Clip<min=-0.5>(x) }", 10)
    assert signature(low.outputs) != signature(ten.outputs)
