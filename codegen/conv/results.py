"""What follows the sums of a window kernel: bias, epilogue, stores, and the function around it all."""

from __future__ import annotations

from abc import ABC
from contextlib import AbstractContextManager, nullcontext

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V, typed
from tilegraph.ops.conv import ConvSpace, Result
from tilegraph.ops.conv.items import item_strides
from tilegraph.ops.index import Var
from tilegraph.ops.prims import Decline
from tilegraph.ops.space import Apply, insts
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters

UNROLLED = 12  # an epilogue of more vector instructions is a loop over the results of a tile
STREAMED = 3 << 18  # bytes of weights that the level 2 cache does not keep from one run to the next


def _results_exist(space: ConvSpace) -> tuple[tuple[Dim, Dim], ...]:
    """What the run refuses: images smaller than a window. ONNX Runtime refuses them in convolutions, too; pools that
    lack less than a stride have one result there, which rounds towards 0, and none here."""
    pool = space.kind in ("max", "average", "padded_average")
    if space.phases:
        return ()
    return tuple((Dim.min(a.out, 1), Dim.of(1)) for a in space.axes if a.out.as_int() is None
                 and (a.stride > 1 or not pool) and (a.kernel.value - 1) * a.dilation > 2 * a.before)


class Results(ABC):
    """`vectors`: blocks of channels of a panel. `panel` is the number of the current one, which has `now` of them, all
    of one `phase` (along each spatial dim) in transposed convolutions whose windows overlap or are cut."""

    vectors: int
    now: int
    panel: t.Expr
    phase: tuple[t.Expr, ...]
    y: t.Expr  # the row and the place in the line of the tile that is emitted
    x: t.Expr
    first_row: t.Expr  # of the unit
    first_pixel: t.Expr

    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        if vector_bits // 32 != space.lanes:
            raise Decline(f"blocks of {space.lanes} channels, but vectors of {vector_bits // 32}")
        self.space = space
        self.lanes = space.lanes
        self.e = Emitter()
        self.result = self.e.output(0, "float")
        self.leaves = [inst for inst in insts(space.value) if isinstance(inst, Result)]
        self.bias = None if space.bias_slot is None else self.e.input(space.bias_slot, "float")
        self.epilogue_cost = sum(i.point.cost for i in insts(space.value) if isinstance(i, Apply))

    def kernel(self, name: str, memory: list[t.Buffer], extent: Dim, work: Dim, scratch: Dim,
               filters: tuple[tuple[int, Filters], ...]) -> Generated:
        """`work`: vector instructions of a unit. Units of one batch element follow each other."""
        space = self.space
        if space.bias_slot is not None and space.filters % self.lanes and space.plain is None:
            filters = (*filters, (space.bias_slot, Filters("bias", self.lanes)))
        grain = Dim.of(TASK_COST).ceildiv(Dim.max(work, 1))
        return self.e.finish(name, memory, extent=extent, align=1, scratch=scratch, grain=grain, filters=filters,
                             equal=_results_exist(space), items=item_strides(space))

    def set_loop(self, var: Var | None, value: t.Expr) -> None:
        if var is not None:
            self.e.loops[var] = value

    def fma(self, a: t.Expr, b: t.Expr, c: t.Expr) -> V:
        return V(t.intrinsic(typed("float32", self.lanes), "llvm.fma", a, b, c), "float32", self.lanes)

    def weights_at(self, weights: t.Buffer, at: t.Expr, ahead: int, count: int) -> list[t.Expr]:
        """`count` vectors of weights at `at`; those that are needed `ahead` elements later are asked for if they come
        from memory, so that they arrive while this part is used for all tiles of the unit."""
        e = self.e
        found = []
        for j in range(count):
            found.append(e.math.share(e.read(weights, "float32", t.Add(at, e.i64(j * self.lanes)), self.lanes)).expr)
            if ahead:
                e.prefetch(weights, t.Add(at, e.i64(ahead + j * self.lanes)))
        return found

    def epilogue(self, sums: t.Buffer, width: int, place: int | t.Expr = 0) -> None:
        """Stores results x .. x+width-1 from `sums` [result][block][lane]."""
        e = self.e
        if width * self.now == 1 or self.epilogue_cost <= UNROLLED:
            for i in range(width):
                self.store(sums, t.Add(self.x, e.i64(i)) if i else self.x, _plus(e, place, i * self.now * self.lanes))
            return
        with e.loop("i", width) as i:
            at = t.Mul(i, e.i64(self.now * self.lanes))
            start = _plus(e, at, place) if isinstance(place, int) else t.Add(at, place)
            self.store(sums, e.share(t.Add(self.x, i)), e.share(start))

    def store(self, sums: t.Buffer, x: t.Expr, place: int | t.Expr) -> None:
        e, space = self.e, self.space
        self.set_loop(space.at[-1], x)
        e.loops[space.lane] = e.i64(0)
        for j in range(self.now):
            block = self.set_block(self.block_of(j))
            with self.on_axis(-1, x):
                self._store(sums, _plus(e, place, j * self.lanes), block)

    def on_axis(self, k: int, place: t.Expr) -> AbstractContextManager[None]:
        """What is emitted in it is for places of the result only: not all that a transposed convolution has along a
        spatial dim `k`, by `place` and the phase of the panel, are."""
        e, space = self.e, self.space
        if not space.spread:
            return nullcontext()
        axis = space.spread[k]
        at = e.share(t.Sub(t.Add(t.Mul(place, e.i64(axis.stride)), self.phase[k]), e.i64(axis.before)))
        return e.when(t.And(t.LE(e.i64(0), at), t.LT(at, e.dim(axis.out))))

    def _store(self, sums: t.Buffer, place: int | t.Expr, block: t.Expr) -> None:
        e, space = self.e, self.space
        value = e.math.share(e.read(sums, "float32", place, self.lanes))
        value = self.finished(value, block)
        if self.bias is not None:
            at = t.Mul(block, e.i64(self.lanes))
            value = e.math.add(value, e.read(self.bias, "float32", at, self.lanes))
        known = {id(leaf): value for leaf in self.leaves}
        e.write(self.result, e.index(space.address), e.value(space.value, space.lane, self.lanes, known),
                self.lanes)

    def set_block(self, number: t.Expr) -> t.Expr:
        """Takes the number of a block apart into its phases and the block of channels, which is returned."""
        e, space = self.e, self.space
        if space.phases:
            channels = e.i64(-(-space.filters // self.lanes))
            rest = e.share(t.Div(number, channels))
            number = e.share(t.Rem(number, channels))
            e.set_loops(space.phases, rest)
        self.set_loop(space.block, number)
        return number

    def finished(self, value: V, block: t.Expr) -> V:
        """The result of what was summed: zero in lanes that are no channels."""
        return value

    def block_of(self, j: int) -> t.Expr:
        e = self.e
        return e.share(t.Add(t.Mul(self.panel, e.i64(self.vectors)), e.i64(j)))


def _plus(e: Emitter, place: int | t.Expr, more: int) -> int | t.Expr:
    if isinstance(place, int):
        return place + more
    return t.Add(place, e.i64(more)) if more else place
