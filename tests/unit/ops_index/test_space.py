"""Iteration spaces: what they store and read, enumerated, and what is refused with which reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.numeric.codegen.graphs import Graph, graphs
from tests.unit.fusion.parse import lowered
from tilegraph.ops.index import Ix, Quotient, Remainder, Var, evaluate
from tilegraph.ops.lower import lower_region
from tilegraph.ops.lower.base import shape_of
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.ops.region import plan
from tilegraph.ops.space import Choose, Fold, Load, Space, uneven
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import RegionFusion
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.spec.dims import Dim

Array = np.ndarray[Any, Any]


class Enumerated:
    """All values of a kernel's loops at once, as broadcast arrays."""

    def __init__(self, space: Space, dims: Mapping[str, int]) -> None:
        self.dims = dims
        loops = (*space.rows, *space.cols)
        self.sizes = [v.extent.evaluate(dims) for v in loops]
        self.at = {v: np.arange(n).reshape([-1 if k == i else 1 for k in range(len(loops))])
                   for i, (v, n) in enumerate(zip(loops, self.sizes, strict=True))}

    def __call__(self, ix: Ix) -> Array:
        self._no_negative_divisions(ix)
        return np.asarray(evaluate(ix, lambda v: self.at[v], self.dims))  # type: ignore[arg-type,return-value]

    def _no_negative_divisions(self, ix: Ix) -> None:
        for atom, _ in ix.terms:
            if isinstance(atom, (Quotient, Remainder)):
                assert self(atom.of).min() >= 0, "kernels divide towards zero"

    def whole(self, loops: tuple[Var, ...], ix: Ix) -> Array:
        """The values over all of `loops` (and one value of every other)."""
        sizes = [n if v in loops else 1 for v, n in zip(self.at, self.sizes, strict=True)]
        return np.broadcast_to(self(ix), sizes)


def check_stores(space: Space, region: Lowered, dims: Mapping[str, int]) -> None:
    """Every element of every output is written exactly once."""
    grid = Enumerated(space, dims)
    for store in space.stores:
        loops = space.rows if store.per_row else (*space.rows, *space.cols)
        addresses = grid.whole(loops, store.address).reshape(-1)
        size = int(np.prod([d.evaluate(dims) for d in region.outputs[store.output].shape], dtype=np.int64))
        assert np.array_equal(np.sort(addresses), np.arange(size)), f"output {store.output}: {store.address}"
    assert sorted(s.output for s in space.stores) == list(range(len(region.outputs)))


def check_loads(space: Space, region: Lowered, dims: Mapping[str, int]) -> None:
    """Every operand is read inside its bounds, wherever the parts of concatenations say that it is read."""
    grid = Enumerated(space, dims)
    sizes = {slot: int(np.prod([d.evaluate(dims) for d in shape_of(value)], dtype=np.int64))
             for slot, value in region.inputs}
    read: dict[int, Array] = {id(s.inst): np.ones(grid.sizes, bool) for s in space.stores}
    for inst in reversed(list(space.insts())):
        here = read.get(id(inst), np.zeros(grid.sizes, bool))
        if isinstance(inst, Load):
            address = np.broadcast_to(grid(inst.address), grid.sizes)[here]
            assert not address.size or (address.min() >= 0 and address.max() < sizes[inst.slot]), repr(inst.address)
        for k, arg in enumerate(inst.args):
            part = here
            if isinstance(inst, Choose):
                low = inst.bounds[k - 1].evaluate(dims) if k else 0
                high = inst.bounds[k].evaluate(dims) if k < len(inst.bounds) else None
                var = grid.at[inst.var]
                part = here & (var >= low) & (True if high is None else var < high)
            read[id(arg)] = read.get(id(arg), np.zeros(grid.sizes, bool)) | part


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_spaces_of_random_regions(graph: Graph) -> None:
    RegionFusion("all").run(graph.model, PassContext())
    for node in graph.model.graph:
        if node.domain != DOMAIN:
            continue
        function = graph.model.functions[node.op_identifier()]
        region = lower_region(list(function), list(function.outputs), function.opset_imports)
        space = plan(region)
        dims = dict(graph.binding)
        for _, value in region.inputs:  # an input's extent such as "2*B" is one symbol where nothing else tells B
            dims |= {str(d): d.evaluate(graph.binding) for d in shape_of(value)}
        if space.elements().evaluate(dims) > 30_000:
            continue
        check_stores(space, region, dims)
        check_loads(space, region, dims)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_symbolic_extents_of_any_size(n: int) -> None:
    region = lowered("""(float[N,M,4] x, float[M,4] b) => (float[N,M,4] y, float[N,M,1] s) {
        ax = Constant<value_ints=[2]>() s = ReduceSum(x, ax) d = Sub(x, s) y = Mul(d, b) }""")
    space = plan(region)
    check_stores(space, region, {"N": n, "M": 3})
    check_loads(space, region, {"N": n, "M": 3})


def test_loops_merge_where_every_address_walks_them_as_one() -> None:
    space = plan(lowered("(float[2,3,4] x, float[2,3,4] z) => (float[2,3,4] y) { y = Add(x, z) }"))
    assert [v.extent for v in (*space.rows, *space.cols)] == [24]
    space = plan(lowered("(float[2,3,4] x, float[4] z) => (float[2,3,4] y) { y = Add(x, z) }"))
    assert [v.extent for v in (*space.rows, *space.cols)] == [6, 4]


def test_a_row_per_group_of_channels() -> None:
    """A reshape takes a loop apart so that the reduced part becomes the columns."""
    space = plan(lowered("""(float[2,8,5] x) => (float[2,8,5] y) {
        g = Constant<value_ints=[2,4,10]>() r = Reshape(x, g) ax = Constant<value_ints=[2]>() m = ReduceMean(r, ax)
        d = Sub(r, m) o = Constant<value_ints=[2,8,5]>() y = Reshape(d, o) }"""))
    assert Dim.product(v.extent for v in space.cols) == 10
    assert sum(isinstance(i, Fold) for i in space.insts()) == 1


REFUSED = {
    "an order of too few axes": ("(float[2,3,4] x) => (float[2,4,3] y) { a = Exp(x) y = Transpose<perm=[0,2]>(a) }",
                                 r"perm \[0, 2\] is no order of the 3 axes of \[2, 3, 4\]"),
    "extents 'A' and 'B'": ("(float[A,8] x, float[B,8] z) => (float[A,8] y) { y = Add(x, z) }",
                            "extents A and B are not equal for certain"),
    "a slice of a reduced row": ("""(float[3,8] x) => (float[3,4] y) { s = Softmax<axis=-1>(x)
        st = Constant<value_ints=[0]>() en = Constant<value_ints=[4]>() ax = Constant<value_ints=[1]>()
        y = Slice(s, st, en, ax) }""", "a reduction over 8 elements does not match the loops"),
    "parts that meet in a divided loop": ("""(float[2,8] p, float[3,8] q) => (float[8,5] y) {
        c = Concat<axis=0>(p, q) sh = Constant<value_ints=[8,5]>() r = Reshape(c, sh) y = Exp(r) }""",
                                          "the parts of a concatenation meet inside a merged loop"),
    "a copy": ("""(float[4,8] x) => (float[32] y) { sh = Constant<value_ints=[32]>() y = Reshape(x, sh) }""",
               "an output is only a copy or a constant"),
    "a constant": ("(float[4] x) => (float[4] y, float[3] z) { y = Relu(x) sh = Constant<value_ints=[3]>() "
                   "z = ConstantOfShape(sh) }", "an output is only a copy or a constant"),
    "outputs of two sizes": ("(float[4,8] x, float[5] w) => (float[4,8] y, float[5] z) { y = Relu(x) z = Relu(w) }",
                             r"outputs of shapes \[4, 8\] and \[5\] in one kernel"),
    "an output and its part": ("""(float[4] x, float[1] g) => (float[4] m, float[8] y) { a = Exp(x) m = Mul(a, g)
        e = Neg(x) y = Concat<axis=0>(m, e) }""", r"outputs of shapes \[8\] and \[4\] in one kernel"),
    "an extent that nothing binds": ("""(int64 n, int64[1] x) => (int64[N] y) { z = Constant<value_int=0>()
        o = Constant<value_int=1>() r = Range(z, n, o) y = Add(r, x) }""", "is not known from the inputs"),
    "one element": ("(float[1] x) => (float[1] y) { y = Relu(x) }", "a single element"),
    "a reduction that moves along the columns": ("""(float[8,8] x) => (float[8,8] y) {
        ax = Constant<value_ints=[1]>() m = ReduceMean(x, ax) d = Sub(x, m) s = ReduceSum(x, ax)
        t = Transpose<perm=[1,0]>(s) y = Mul(d, t) }""", "a reduction that depends on the column it reduces"),
    "reductions over two extents": ("""(float[4,8] x) => (float[4,8] y) {
        a = Constant<value_ints=[1]>() m = ReduceMax(x, a) d = Sub(x, m) b = Constant<value_ints=[0,1]>()
        s = ReduceSum(d, b) y = Mul(d, s) }""", "reductions over"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_reason(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(Decline, match=reason):
        plan(lowered(text))


NEAR = {
    "extents 'A' and 'B'": "(float[A,8] x, float[A,8] z) => (float[A,8] y) { y = Add(x, z) }",
    "another axis": """(float[4,8] x) => (float[4,1] y) { ax = Constant<value_ints=[1]>() y = ReduceSum(x, ax) }""",
    "a slice of a reduced row": """(float[3,8] x) => (float[2,8] y) { s = Softmax<axis=-1>(x)
        st = Constant<value_ints=[0]>() en = Constant<value_ints=[2]>() ax = Constant<value_ints=[0]>()
        y = Slice(s, st, en, ax) }""",
    "a stride along the lanes": "(float[2,4,8] x) => (float[4,2,8] y) { t = Transpose<perm=[1,0,2]>(x) y = Relu(t) }",
    "a divided lane index": """(float[2,6] x, float[6,2] b) => (float[6,2] y) { e = Exp(x)
        sh = Constant<value_ints=[6,2]>() r = Reshape(e, sh) y = Add(r, b) }""",
    "parts that meet in a divided loop": """(float[2,8] p, float[3,8] q) => (float[40] y) {
        c = Concat<axis=0>(p, q) sh = Constant<value_ints=[40]>() r = Reshape(c, sh) y = Exp(r) }""",
    "a copy": "(float[4,8] x) => (float[32] y) { r = Relu(x) sh = Constant<value_ints=[32]>() y = Reshape(r, sh) }",
    "outputs of two sizes": "(float[4,8] x, float[4,1] w) => (float[4,8] y, float[4,1] z) { y = Relu(x) z = Relu(w) }",
    "an extent that nothing binds": """(int64 n, int64[N] x) => (int64[N] y) <int64[N] r> { z = Constant<value_int=0>()
        o = Constant<value_int=1>() r = Range(z, n, o) y = Add(r, x) }""",
    "one element": "(float[2] x) => (float[2] y) { y = Relu(x) }",
    "reductions over two extents": """(float[1,8] x) => (float[1,8] y) {
        a = Constant<value_ints=[1]>() m = ReduceMax(x, a) d = Sub(x, m) b = Constant<value_ints=[0,1]>()
        s = ReduceSum(d, b) y = Mul(d, s) }""",
}


@pytest.mark.parametrize("name", NEAR)
def test_what_is_nearly_refused_is_planned(name: str) -> None:
    region = lowered(NEAR[name])
    space = plan(region)
    check_stores(space, region, {"A": 3, "N": 4})
    check_loads(space, region, {"A": 3, "N": 4})

BY_ELEMENT = {
    "a stride along the lanes": ("(float[4,8] x) => (float[8,4] y) { t = Transpose<perm=[1,0]>(x) y = Relu(t) }",
                                 "an operand is read with stride 8 along the innermost axis"),
    "a reversed row": ("""(float[4,8] x) => (float[4,8] y) { st = Constant<value_ints=[-1]>()
        en = Constant<value_ints=[-9]>() ax = Constant<value_ints=[1]>() sp = Constant<value_ints=[-1]>()
        r = Slice(x, st, en, ax, sp) y = Relu(r) }""", "an operand is read with stride -1 along the innermost axis"),
    "a divided lane index": ("""(float[2,7] x, float[7,2] b) => (float[7,2] y) { e = Exp(x)
        sh = Constant<value_ints=[7,2]>() r = Reshape(e, sh) y = Add(r, b) }""", "a view divides the innermost index"),
}


@pytest.mark.parametrize("name", BY_ELEMENT)
def test_operands_without_contiguous_lanes_are_read_by_element(name: str) -> None:
    text, reason = BY_ELEMENT[name]
    space = plan(lowered(text))
    assert reason in {uneven(i, space.lanes) for i in space.insts()}
    if name in NEAR:
        near = plan(lowered(NEAR[name]))
        assert {uneven(i, near.lanes) for i in near.insts()} == {None}


def test_an_outer_axis_is_reduced_across_the_lanes() -> None:
    space = plan(lowered("""(float[4,8] x) => (float[1,8] y) {
        ax = Constant<value_ints=[0]>() y = ReduceSum(x, ax) }"""))
    assert space.across == space.rows[-1]
    assert [str(v.extent) for v in (*space.rows, *space.cols)] == ["8", "4"]
    (inst,) = [i for i in space.insts() if isinstance(i, Load)]
    assert inst.address.coef(space.lanes) == 1
    assert plan(lowered(NEAR["another axis"])).across is None


def test_rows_are_lanes_only_where_their_outputs_are_contiguous() -> None:
    """The result lies along the first axis, which is not contiguous in the operand: it is read element by element."""
    space = plan(lowered("""(float[4,8,2] x) => (float[4,2] y) {
        ax = Constant<value_ints=[1]>() y = ReduceSum<keepdims=0>(x, ax) }"""))
    assert space.across is not None
    assert space.across.extent == 2
