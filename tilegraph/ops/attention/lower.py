"""From the nodes of an attention to its space.

The nodes are lowered as those of a region are, with matrix products as one more operator, so every spelling of the
softmax, of masks and of views is the same here: what is matched is the computation that remains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from tilegraph.ops.attention.forms import softmax
from tilegraph.ops.attention.insert import Insert, scatter, shortened, start_of, uses
from tilegraph.ops.attention.positions import affine, lower_shape, simplified
from tilegraph.ops.attention.space import AttentionSpace, Cache, Part, Score, Sunk
from tilegraph.ops.broadcast import broadcast, project
from tilegraph.ops.index import Ix, Var, flat_address, reshape_indices
from tilegraph.ops.lower import lower_region
from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.lower.reductions import axes_of, reduce_over
from tilegraph.ops.lower.tables import Rule
from tilegraph.ops.lower.views import transpose
from tilegraph.ops.prims import Concat, Decline, Dot, Lowered, Pick, Point, Prim, Reduce, View
from tilegraph.ops.pull import Puller
from tilegraph.ops.space import Fold, Inst, Load, index_of, insts
from tilegraph.spec.dims import Dim

MAX_DEPTH = 256  # of d and of e
STORED = ("float", "float16", "bfloat16")


def _matmul(c: NodeContext) -> list[Prim]:
    return [_dot(c, c.arg(0), c.arg(1))]


def _dot(c: NodeContext, left: Prim, right: Prim) -> Dot:
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise c.decline("a matrix product with a vector")
    if left.dtype != "float32" or right.dtype != "float32":
        raise c.decline(f"a matrix product of {left.dtype}: attention kernels are float32")
    if left.shape[-1] != right.shape[-2]:
        raise c.decline(f"extents {left.shape[-1]} and {right.shape[-2]} are not equal for certain")
    batch = broadcast([left.shape[:-2], right.shape[:-2]])
    return Dot((*batch, left.shape[-2], right.shape[-1]), left.dtype, left=left, right=right)


def _einsum(c: NodeContext) -> list[Prim]:
    """Two operands, one label summed over, one label of each alone; all other labels in both."""
    equation = c.attr("equation", "")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    terms, arrow, out = text.partition("->")
    sides = terms.split(",")
    if len(sides) != 2 or not arrow or "." in text or any(len(set(s)) != len(s) for s in (*sides, out)):
        raise c.decline(f"Einsum {text!r}: only explicit products of two operands")
    a, b = sides
    shared = [label for label in out if label in a and label in b]
    summed = [label for label in a if label in b and label not in out]
    rows = [label for label in a if label not in b]
    columns = [label for label in b if label not in a]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or set(out) != {*shared, *rows, *columns}:
        raise c.decline(f"Einsum {text!r}: not one matrix product per batch")
    left = transpose(c.arg(0), [a.index(label) for label in (*shared, *rows, *summed)])
    right = transpose(c.arg(1), [b.index(label) for label in (*shared, *summed, *columns)])
    made = [*shared, *rows, *columns]
    return [transpose(_dot(c, left, right), [made.index(label) for label in out])]


def _greatest(c: NodeContext) -> list[Prim]:
    """ReduceMax that passes over NaN: the sum of the weights does not."""
    x = c.arg(0)
    return [reduce_over("peak", x, axes_of(c, x), int(c.attr("keepdims", 1)) == 1)]


CONTRACTIONS: dict[tuple[str, str], Rule] = {("", "MatMul"): _matmul, ("", "Einsum"): _einsum}
_RULES = {**CONTRACTIONS, ("", "ReduceMax"): _greatest, ("", "Shape"): lower_shape, ("", "ScatterElements"): scatter}


def lower_attention(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) -> Lowered:
    """Lowers `nodes` (in topological order) as a region with products; `Decline` with the reason.

    `outputs`: the result, then concatenations of keys or values, or insertions, that the kernel makes (see `Cache`).
    """
    return lower_region(nodes, outputs, opsets, _RULES)


def plan_attention(lowered: Lowered) -> AttentionSpace:
    """The space of the attention that `lowered` is, or `Decline` with what it is not."""
    if any(stored not in STORED for stored in lowered.stored):
        raise Decline(f"attention of {', '.join(lowered.stored)}: kernels compute in float32")
    return replace(_Attention(lowered).plan(), stored=lowered.stored[0])


def plan_trusting(lowered: Lowered) -> AttentionSpace:
    """`plan_attention` of a model whose hidden keys and values are finite."""
    return replace(plan_attention(lowered), trusts=True)


class _Attention(Puller[AttentionSpace]):
    """Its loops are those of the result (views after the product included)."""

    def __init__(self, lowered: Lowered) -> None:
        super().__init__(lowered.outputs[0])
        self.made = {id(prim): k for k, prim in enumerate(lowered.outputs) if k}
        self.stored = lowered.stored

    def build(self) -> AttentionSpace:
        self.column: Var | None = None
        self.query: Var | None = None
        self.dots: list[tuple[Dot, tuple[Ix, ...]]] = []
        self.caches: dict[int, Cache] = {}  # by output
        prim, at = self.root, tuple(self.index)
        while isinstance(prim, View) or (isinstance(prim, Point) and prim.key == f"round[{self.stored[0]}]"):
            if isinstance(prim, Point):  # as the store does
                at, prim = project(at, prim.operands[0].shape), prim.operands[0]
                continue
            at, prim = prim.pull(at), prim.source
        if not isinstance(prim, Dot):
            raise Decline("something other than views follows the second matrix product")
        depth, width = prim.shape, _static(prim.shape[-1], "the width of the values")
        i, e = _query(at[-2], depth[-2]), _loop(at[-1], depth[-1], "e")
        batch = tuple(v for v in self.loops if v not in (i, e))
        j = Var("j", prim.left.shape[-1])
        self.column, self.query = j, i
        left = self.pull(prim.left, (*project(at[:-2], prim.left.shape[:-2]), at[-2], _at(j)))
        self.inner = e
        v = self._inner(prim.right, (*project(at[:-2], prim.right.shape[:-2]), _at(j), at[-1]), "the values")
        weights = softmax(left, j)
        if len(self.dots) != 1:
            raise Decline("no matrix product makes the scores" if not self.dots else
                          "the scores are made of more than one matrix product")
        first, place = self.dots[0]
        depth_d = _static(first.left.shape[-1], "the depth of queries and keys")
        d = Var("d", Dim.of(depth_d))
        outer = place[:-2]
        self.inner = d
        rows = self._inner(first.left, (*project(outer, first.left.shape[:-2]), place[-2], _at(d)), "the queries")
        columns = self._inner(first.right, (*project(outer, first.right.shape[:-2]), _at(d), place[-1]), "the keys")
        if at[-2] == place[-2] and _at(j) == place[-1]:
            q, k = rows, columns
        elif at[-2] == place[-1] and _at(j) == place[-2]:  # keys times queries, read transposed
            q, k = columns, rows
        else:
            raise Decline("the scores are not read in the order in which they are computed")
        x, v, length = shortened(weights.x, v, j)
        space = AttentionSpace(batch, i, j, d, e, q, k, v, x, depth_d, width, weights.guarded,
                               flat_address(self.index, self.root.shape), weights.hides,
                               caches=tuple(self.caches[k] for k in sorted(self.caches)), sink=weights.sink,
                               length=length)
        if len(self.caches) != len(self.made):
            raise Decline("a further result is no concatenation of keys or values")
        _check(space)
        return space

    def _inner(self, prim: Prim, at: tuple[Ix, ...], what: str) -> Inst:
        """An operand of a product: computed from inputs point by point."""
        before = len(self.dots)
        inst = self.pull(prim, at)
        if len(self.dots) != before or any(isinstance(one, Fold) for one in insts(inst)):
            raise Decline(f"{what} are the result of a product or a reduction inside the attention")
        return inst

    def operation(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        match prim:
            case Reduce():
                return self._fold(prim, at)
            case Dot():
                self.dots.append((prim, at))
                return Score(prim.dtype)
            case (Concat() | Insert()) if id(prim) in self.made:
                return self._cached(prim, at)
            case Concat():
                return self._part(prim, at)
        raise Decline(f"{type(prim).__name__} inside the attention")

    def point(self, prim: Point, operands: tuple[Inst, ...]) -> Inst:
        return simplified(prim, operands, self._leaf)

    def picked(self, prim: Pick, at: tuple[Ix, ...]) -> Inst:
        """An element at a place that is a position after all."""
        places = [affine(self.pull(index, project(at, index.shape))) for index in prim.indices]
        known = tuple(ix for ix in places if ix is not None)
        if len(known) < len(places):
            return super().picked(prim, at)
        return self.pull(prim.source, prim.pull(at, known))

    def _part(self, prim: Concat, at: tuple[Ix, ...]) -> Inst:
        """An element of a concatenation of which one part holds all that is read: the scores, or a sink beside them."""
        assert self.column is not None
        start = Dim.of(0)
        along = at[prim.axis]
        for part in prim.parts:
            extent = part.shape[prim.axis]
            inside = along - start
            whole = extent == self.column.extent and inside == _at(self.column)
            if whole or (extent == 1 and inside == Ix()):
                return self.pull(part, (*at[:prim.axis], inside, *at[prim.axis + 1:]))
            start = start + extent
        raise Decline("a concatenation inside the attention")

    def _cached(self, prim: Concat | Insert, at: tuple[Ix, ...]) -> Inst:
        """An element of keys or values that the kernel puts together: read from the output where it puts them."""
        output, axis = self.made[id(prim)], prim.axis
        assert self.column is not None
        assert self.query is not None
        if at[axis] != _at(self.column) or not all(map(_walks, at, prim.shape)):
            raise Decline("a concatenation inside the attention is not one of whole keys or values")
        used = [v for ix in at for v in ix.vars()]
        if len(set(used)) != len(used) or self.query in used:
            raise Decline("a concatenation inside the attention is read along axes that are not its own")
        if output in self.caches:
            raise Decline("a concatenation inside the attention is read in two ways")
        parts: list[Part] = []
        start = Dim.of(0)
        for k, part in enumerate(prim.parts if isinstance(prim, Concat) else (prim.data, prim.updates)):
            along = Var(f"j{output}{k}", part.shape[axis])
            place = (*at[:axis], _at(along), *at[axis + 1:])
            inst = self._inner(part, place, "parts of a concatenation")
            if isinstance(prim, Insert):
                behind = None if part is prim.data else start_of(self.pull(prim.indices, place), along)
                if behind is not None and uses(behind, (self.inner, self.query, self.column)):
                    raise Decline("new keys or values go to more than one place in a sequence")
                parts.append(Part(along, Dim.of(0), inst, behind))
            else:
                parts.append(Part(along, start, inst))
            start = start + along.extent
        load = Load(prim.dtype, -1 - output, self.stored[output], flat_address(at, prim.shape))
        if load.address.coef(self.inner) != (1 if self.inner.extent != 1 else 0):
            raise Decline("keys that are concatenated inside the attention lie transposed")
        self.caches[output] = Cache(load, self.inner, tuple(parts))
        return load

    def _fold(self, prim: Reduce, at: tuple[Ix, ...]) -> Inst:
        reduced = prim.operand.shape[len(prim.operand.shape) - prim.axes:]
        assert self.column is not None
        if any(self.column in ix.vars() for ix in at):
            raise Decline("a reduction inside the attention is not over the keys")
        if len(reduced) == 1 and reduced[0] == self.column.extent + 1:
            return self._sunk(prim, at)
        if Dim.product(reduced) != self.column.extent:
            raise Decline("a reduction inside the attention is not over the keys")
        inside = reshape_indices((_at(self.column),), (self.column.extent,), reduced)
        return Fold(prim.dtype, prim.kind, self.pull(prim.operand, (*at, *inside)))


    def _sunk(self, prim: Reduce, at: tuple[Ix, ...]) -> Inst:
        """A reduction over the scores and a sink behind or before them."""
        assert self.column is not None
        behind = (_at(self.column), Ix() + self.column.extent)
        before = (_at(self.column) + Dim.of(1), Ix())
        reason: Decline | None = None
        for keys, sink in (behind, before):
            try:
                operand, extra = (self.pull(prim.operand, (*at, place)) for place in (keys, sink))
            except Decline as why:
                reason = reason or why
                continue
            return Sunk(prim.dtype, prim.kind, operand, extra)
        assert reason is not None
        raise reason


def _at(var: Var) -> Ix:
    return Ix() if var.extent == 1 else Ix.of(var)


def _walks(ix: Ix, extent: Dim) -> bool:
    """Whether the loops of `ix` reach each index of a dim once: a mixed radix number."""
    left = dict(ix.terms)
    stride = Dim.of(1)
    while left:
        atom = next((a for a, coef in left.items() if isinstance(a, Var) and coef == stride), None)
        if not isinstance(atom, Var):
            return False
        stride = stride * atom.extent
        del left[atom]
    return ix.const == 0 and stride == extent


def _loop(ix: Ix, extent: Dim, name: str) -> Var:
    """The loop that walks the dim; a dim of extent 1 gets one of its own."""
    if extent == 1 and ix == Ix():
        return Var(name, extent)
    single = ix.single()
    if single is None or single[1] != 0 or single[0].extent != extent:
        raise Decline("a view after the second matrix product mixes rows and columns")
    return single[0]


def _query(ix: Ix, extent: Dim) -> Var:
    """The loop over queries of those that walk the rows of the product: heads that share keys may be rows too."""
    if len(ix.terms) < 2 or not _walks(ix, extent):
        return _loop(ix, extent, "i")
    loops = [atom for atom, _ in ix.terms if isinstance(atom, Var)]
    return max(loops, key=lambda v: (v.extent.as_int() is None, v.extent.as_int() or 0))


def _static(extent: Dim, what: str) -> int:
    size = extent.as_int()
    if size is None:
        raise Decline(f"{what} is symbolic ({extent})")
    if size > MAX_DEPTH:
        raise Decline(f"{what} is {size}, more than {MAX_DEPTH}")
    return size


def _check_length(space: AttentionSpace) -> None:
    assert space.length is not None
    if space.guarded or space.hides is not None:
        raise Decline("a run says how many keys there are, and rows without a key are treated apart")
    if uses(space.length, (space.i, space.e, *space.sharing)):
        raise Decline("how many keys there are is not the same for the queries that share them")


def _check(space: AttentionSpace) -> None:
    """What the kernel generator relies on."""
    for inst in insts(space.x):
        ix = index_of(inst)
        if ix is not None:
            if space.j in ix.hidden():
                raise Decline("a view divides the key's index in a mask")
            if isinstance(inst, Load) and ix.coef(space.j) not in (Dim.of(0), Dim.of(1)):
                raise Decline(f"an operand of the scores is read with stride {ix.coef(space.j)} along the keys")
    if not isinstance(space.v, Load) or space.v.address.coef(space.e) != (1 if space.width > 1 else 0) \
            or space.e in space.v.address.hidden():
        raise Decline("the values are not contiguous along their last axis")
    if space.address.coef(space.e) != (1 if space.width > 1 else 0):
        raise Decline("the output is not contiguous along its last axis")
    for inst in (space.q, space.k):
        for one in insts(inst):
            if isinstance(one, Load) and space.d in one.address.hidden():
                raise Decline("a view divides the inner index of queries or keys")
    if space.length is not None:
        _check_length(space)
    for cache in space.caches:
        if not set(cache.owners(space.batch)) <= set(space.sharing):
            raise Decline("keys and values that are concatenated inside belong to different heads")
    if any(i.dtype not in ("float32",) for i in (space.q, space.k, space.v, space.x)):
        raise Decline("attention kernels are float32")
    if not any(isinstance(inst, Score) for inst in insts(space.x)):
        raise Decline("the weights do not depend on the scores")
