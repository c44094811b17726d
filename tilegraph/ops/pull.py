"""From prims to values at places: what the planners of regions, attention and products share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from tilegraph.ops.broadcast import project
from tilegraph.ops.index import Ix, SplitNeeded, Var, flat_address, may_be_zero
from tilegraph.ops.prims import Const, Decline, Extent, Input, Pick, Point, Position, Prim, View
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place
from tilegraph.spec.dims import Dim

_SPLITS = 24

S = TypeVar("S")


class Puller(ABC, Generic[S]):
    """Evaluates prims at the loops of an output, so that views and broadcasts vanish into addresses.

    `loops`: one for each dim of `root` that has more than one element, outermost first, split where a view needs it.
    `index`: the element of `root` that they stand for. A subclass says what the space of type S is made of, and what
    it does with reductions, concatenations and products.
    """

    def __init__(self, root: Prim) -> None:
        self.root = root
        self.loops: list[Var] = []
        self.index: list[Ix] = []
        for axis, extent in enumerate(root.shape):
            if extent == 1:
                self.index.append(Ix())
            else:
                self.loops.append(Var(f"i{axis}", extent))
                self.index.append(Ix.of(self.loops[-1]))

    def plan(self) -> S:
        """What `build` makes once all loops are split as the views need it, or `Decline`."""
        for _ in range(_SPLITS):
            self.start()
            try:
                return self.build()
            except SplitNeeded as needed:
                self.split(needed.var, needed.inner)
        raise Decline("the index maps of its views have no common refinement")

    def start(self) -> None:
        """Forgets what was pulled at the loops as they were."""
        self.pulled: dict[int, dict[tuple[Ix, ...], Inst]] = {}  # by prim and place
        self._leaves: dict[Any, Inst] = {}

    @abstractmethod
    def build(self) -> S:
        """Pulls everything; `SplitNeeded` where a loop has to become two, `Decline` for what cannot be."""

    @abstractmethod
    def operation(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        """The value of a prim that is neither a leaf nor pointwise nor a view."""

    def split(self, var: Var, inner: Dim) -> None:
        """Makes `var` two loops, the inner one of extent `inner`."""
        extent = var.extent.exact_div(inner)
        groups = [group for group in self.groups() if var in group]
        if extent is None or not groups:
            raise Decline(f"a view splits the loop over {var.extent} elements into pieces of {inner}")
        outer, inside = Var(var.name + "o", extent), Var(var.name + "i", inner)
        whole = Ix.of(outer) * inner + Ix.of(inside)
        self.index = [ix.replace({var: whole}) for ix in self.index]
        for group in groups:
            at = group.index(var)
            group[at:at + 1] = [outer, inside]

    def groups(self) -> list[list[Var]]:
        """The lists of loops that a split changes."""
        return [self.loops]

    def pull(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        """The value of `prim` at the place `at`, one index a dim; the same instance whenever it is asked for."""
        places = self.pulled.setdefault(id(prim), {})
        if at not in places:
            places[at] = self._pull(prim, at)
        return places[at]

    def _pull(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        match prim:
            case Input():
                places = project(at, prim.shape)
                address = flat_address(places, prim.shape)
                present = tuple(d for ix, d in zip(places, prim.shape, strict=True) if not ix.terms and may_be_zero(d))
                load = Load(prim.dtype, prim.slot, prim.stored, address, present)
                return self._leaf(load, prim.slot, address, present)
            case Const():
                return self._leaf(Literal(prim.dtype, prim.value), repr(prim.value))
            case Extent():
                return self._leaf(Place(prim.dtype, Ix.of(prim.dim)), prim.dim)
            case Position():
                return self._leaf(Place(prim.dtype, at[prim.axis]), at[prim.axis])
            case Point():
                return self.point(prim, tuple(self.pull(p, project(at, p.shape)) for p in prim.operands))
            case View():
                return self.pull(prim.source, prim.pull(at))
            case Pick():
                return self.picked(prim, at)
        return self.operation(prim, at)

    def point(self, prim: Point, operands: tuple[Inst, ...]) -> Inst:
        """A pointwise operation on values."""
        return Apply(prim.dtype, prim, operands)

    def picked(self, prim: Pick, at: tuple[Ix, ...]) -> Inst:
        """The value of a prim whose index is computed."""
        raise Decline("an index is computed, which only kernels of regions do")

    def _leaf(self, inst: Inst, *key: Any) -> Inst:
        """`inst`, or the equal leaf that there is already: two views of an input may read the same element."""
        return self._leaves.setdefault((type(inst), inst.dtype, *key), inst)
