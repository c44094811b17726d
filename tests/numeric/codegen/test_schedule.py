"""Which pass over the columns evaluates what, and what is kept between passes."""

from __future__ import annotations

from tests.unit.fusion.parse import lowered
from tilegraph.codegen.schedule import column_dependent, divide
from tilegraph.ops.region import plan
from tilegraph.ops.space import Apply, Fold, Literal, Load

AXIS = "a = Constant<value = int64[1] {1}>() "


def test_chained_reductions_take_a_pass_each_and_one_for_the_output() -> None:
    passes = divide(plan(lowered("(float[4,64] x) => (float[4,64] y) { y = Softmax<axis=1>(x) }")))
    assert passes.count == 3
    assert [[f.kind for f in folds] for folds in passes.folds] == [["peak"], ["sum"], []]
    assert [len(s) for s in passes.stores] == [0, 0, 1]


def test_independent_reductions_share_a_pass() -> None:
    passes = divide(plan(lowered(f"(float[4,64] x) => (float[4,64] y) {{ {AXIS} s = ReduceSum(x, a) "
                                 "m = ReduceMax(x, a) d = Sub(x, m) y = Div(d, s) }")))
    assert [sorted(f.kind for f in folds) for folds in passes.folds] == [["peak", "sum"], []]


def test_a_region_without_reductions_takes_one_pass() -> None:
    passes = divide(plan(lowered("(float[4,64] x) => (float[4,64] y) { e = Exp(x) y = Neg(e) }")))
    assert (passes.count, passes.kept) == (1, [])


def test_dear_values_are_kept_and_cheap_ones_computed_again() -> None:
    dear = divide(plan(lowered(f"(float[4,64] x) => (float[4,64] y) {{ {AXIS} e = Exp(x) s = ReduceSum(e, a) "
                               "y = Div(e, s) }")))
    assert [i.point.key.partition("<")[0] for i in dear.kept if isinstance(i, Apply)] == ["Exp"]
    cheap = divide(plan(lowered(f"(float[4,64] x) => (float[4,64] y) {{ {AXIS} e = Neg(x) s = ReduceSum(e, a) "
                                "y = Mul(e, s) }")))
    assert cheap.kept == []


def test_an_output_that_later_passes_need_is_read_back() -> None:
    passes = divide(plan(lowered(f"(float[4,64] x) => (float[4,64] e, float[4,64] y) {{ {AXIS} e = Exp(x) "
                                 "s = ReduceSum(e, a) y = Div(e, s) }")))
    assert passes.kept == []
    assert [store.output for store in passes.from_output.values()] == [0]
    # What is stored with fewer bits than it has cannot be read back.
    half = divide(plan(lowered(f"(float16[4,64] x) => (float16[4,64] e, float16[4,64] y) {{ {AXIS} e = Exp(x) "
                               "s = ReduceSum(e, a) y = Div(e, s) }")))
    assert not half.from_output
    assert len(half.kept) == 1


def test_what_only_a_part_of_a_concatenation_computes_is_not_kept() -> None:
    text = f"""(float[3,64] x, float[3,32] z) => (float[3,64] y) {{ {AXIS}
        b = Constant<value = int64[1] {{0}}>() n = Constant<value = int64[1] {{32}}>()
        e = Exp(x) h = Slice(e, b, n, a) c = Concat<axis=1>(h, z) s = ReduceSum(c, a) y = Mul(e, s) }}"""
    assert divide(plan(lowered(text))).kept == []


def test_what_changes_along_the_columns() -> None:
    region = lowered(f"(float[4,64] x, float[4,1] r, float[64] c) => (float[4,64] y) {{ {AXIS} p = Sqrt(r) "
                     "q = Sqrt(c) m = ReduceSum(x, a) u = Add(p, m) v = Add(u, q) y = Add(v, x) }")
    names = {slot: value.name for slot, value in region.inputs}
    space = plan(region)
    found = column_dependent(space)
    for inst in space.insts():
        if isinstance(inst, Load):
            assert found[id(inst)] == (names[inst.slot] in ("x", "c"))
        elif isinstance(inst, (Fold, Literal)):
            assert not found[id(inst)]
    by_cost = [i for i in space.insts() if isinstance(i, Apply) and i.point.key.startswith("Sqrt")]
    assert sorted(found[id(i)] for i in by_cost) == [False, True]
