"""From the nodes of a window and its epilogue to their space.

What counts is the computation that remains: views vanish into addresses, and the addresses tell which layout an operand
has. The result is in blocked layout, or plain where the filters are few; the source is blocked, or plain [N, C,
*spatial].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from tilegraph.ops.conv.scaled import scaled
from tilegraph.ops.conv.space import ConvSpace, Result, Window
from tilegraph.ops.conv.windows import WINDOWS
from tilegraph.ops.index import Ix, Var, flat_address
from tilegraph.ops.loops import mergeable
from tilegraph.ops.lower import lower_region
from tilegraph.ops.lower.base import point
from tilegraph.ops.lower.sliding import Axis
from tilegraph.ops.prims import Const, Decline, Input, Lowered, Prim
from tilegraph.ops.pull import Puller
from tilegraph.ops.space import Apply, Inst, Load, Place, index_of, indices_of, insts, rewritten
from tilegraph.spec.dims import Dim

LANES = (8, 16)
MAX_PRODUCTS = 576  # of one sum with a plain result: longer ones are cut, and their parts kept in memory


def lower_conv(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) -> Lowered:
    """Lowers `nodes` (in topological order) as a region with one window; `Decline` with the reason."""
    return lower_region(nodes, outputs, opsets, WINDOWS)


def plan_conv(lowered: Lowered) -> ConvSpace:
    """The space of the window and epilogue that `lowered` is, or `Decline` with what it is not."""
    if lowered.stored != ("float",):
        raise Decline(f"a convolution stored as {', '.join(lowered.stored)}: kernels are float32")
    return _Convolution(lowered.outputs[0]).plan()


def plan_fast(lowered: Lowered) -> ConvSpace:
    """The same, with larger rounding errors allowed."""
    return replace(plan_conv(lowered), fast=True)


class _Convolution(Puller[ConvSpace]):
    """Its loops are those of the output, [N, blocks, *spatial, lanes]."""

    def start(self) -> None:
        super().start()
        self.phases: tuple[Var, ...] = ()  # of a transposed convolution, and what its loops are in those of the kernel
        self.spread: tuple[Axis, ...] = ()
        self.places: dict[Var, Ix] = {}

    def build(self) -> ConvSpace:
        self.windows: dict[tuple[int, tuple[Ix, ...]], tuple[Window, tuple[Ix, ...], Result]] = {}
        value = self.pull(self.root, tuple(self.index))
        if len(self.windows) != 1:
            raise Decline("no window is in it" if not self.windows else "it reads more than one window, or one at "
                          "more than one place")
        ((window, at, _),) = self.windows.values()
        if len(self.root.shape) == len(window.shape) == 4:
            return self._narrow(window, at, value)
        lanes = self.root.shape[-1].as_int()
        if len(self.root.shape) != len(window.shape) + 1 or lanes not in LANES:
            raise Decline(f"the result is not in blocks of {' or '.join(map(str, LANES))} channels")
        lane, block = self.loops[-1], None
        batch = _loop(at[0], "the batch")
        channel = at[1] - Ix.of(lane)
        if channel.terms:
            block = _loop(Ix({a: _exact(c, lanes) for a, c in channel.terms}, channel.const), "the channels")
        elif channel.const != 0:
            raise Decline("the channels of the result are not in order")
        positions = tuple(_loop(ix, "a spatial dim") for ix in at[2:])
        filters = window.shape[1].as_int()
        if filters is None or -(-filters // lanes) != (1 if block is None else block.extent.as_int()):
            raise Decline("the blocks of the result are not those of the window's channels")
        if [v for v in (batch, block, *positions, lane) if v is not None] != self.loops:
            raise Decline("the loops of the result are not those of the window")
        self.windows.clear()
        if window.kind == "transposed":
            window, positions = self._apart(window, positions)
            at = (at[0], at[1], *(Ix() if v is None else Ix.of(v) for v in positions))
            value = rewritten(list(insts(value)), self.places)[id(value)]
        space = self._space(window, at, value, lanes, filters, batch, block, positions, lane)
        if self.phases:
            space = replace(space, phases=self.phases, address=space.address.replace(self.places), spread=self.spread)
        _check(space)
        return _flattened(space)

    def _narrow(self, window: Window, at: tuple[Ix, ...], value: Inst) -> ConvSpace:
        """A plain result of few filters: they and the phases share one block."""
        batch, channel = _loop(at[0], "the batch"), _loop(at[1], "the channels")
        rows, columns = (_loop(ix, "a spatial dim") for ix in at[2:])
        lanes, filters = _lanes_of(window.source), window.shape[1].as_int()
        if filters is None or [v for v in (batch, channel, rows, columns) if v is not None] != self.loops:
            raise Decline("the loops of the result are not those of the window")
        self.windows.clear()
        positions: tuple[Var | None, ...] = rows, columns
        if window.kind == "transposed":
            window, positions = self._apart(window, positions)
            at = (at[0], at[1], *(Ix() if v is None else Ix.of(v) for v in positions))
            if self.spread:
                raise Decline("a plain result of a transposed convolution whose windows overlap or are cut")
        count = filters * math.prod(v.extent.value for v in self.phases)
        products = Dim.product(a.kernel for a in window.axes).as_int()
        if columns is None or count > lanes or products is None:
            raise Decline(f"a plain result of {count} numbers for each place of the source")
        space = self._space(window, at, value, lanes, filters, batch, None, positions, Var("lane", Dim.of(lanes)))
        if space.kind != "conv" or not space.blocked or space.groups > 1 or space.depth * products > MAX_PRODUCTS:
            raise Decline(f"a plain result of {space.kind} in {space.groups} groups with {space.depth} channels")
        for inst in insts(space.value):
            ix = index_of(inst)
            if ix is not None and (columns in ix.hidden() or ix.coef(columns) not in (Dim.of(0), Dim.of(1))):
                raise Decline("an operand of the epilogue is not contiguous along the line")
        space = replace(space, phases=self.phases, plain=(channel, rows, columns))
        _check(space)
        return space

    def _apart(self, window: Window, positions: tuple[Var | None, ...]) -> tuple[Window, tuple[Var | None, ...]]:
        """A transposed convolution as one with results for each phase, and its positions, see `ConvSpace.phases`."""
        self.phases = tuple(Var(f"p{k}", Dim.of(axis.stride)) for k, axis in enumerate(window.axes))
        taps = [axis.kernel.ceildiv(axis.stride) for axis in window.axes]
        axes = tuple(Axis(a.size, a.size + t - 1, t, before=t.value - 1)
                     for a, t in zip(window.axes, taps, strict=True))
        if any(a.kernel != a.stride or a.out != a.size * a.stride for a in window.axes):
            self.spread = window.axes
        found: list[Var | None] = []
        for k, (axis, made, old, phase) in enumerate(zip(window.axes, axes, positions, self.phases, strict=True)):
            place = None if made.out == 1 else Var(f"y{k}", made.out)
            found.append(place)
            if old is not None:
                whole = Ix() if place is None else Ix.of(place) * axis.stride
                self.places[old] = (whole + Ix.of(phase) if axis.stride != 1 else whole) - axis.before
        shape = (*window.shape[:2], *(a.out for a in axes))
        return replace(window, shape=shape, kind="conv", axes=axes), tuple(found)

    def _space(self, window: Window, at: tuple[Ix, ...], value: Inst, lanes: int, filters: int, batch: Var | None,
               block: Var | None, positions: tuple[Var | None, ...], lane: Var) -> ConvSpace:
        channels = window.source.shape[1].as_int()
        if channels is None:
            raise Decline("the number of channels is symbolic")
        kind, depth = window.kind, channels // window.groups
        if kind != "conv" or (not self.phases and window.groups == channels == filters and channels > 1):
            kind, depth = ("depthwise" if kind == "conv" else kind), 1
        elif window.groups > 1 and not self.phases and _several_in_a_block(depth, filters // window.groups, lanes):
            kind = "grouped"
        outer, inner = Var("cb", Dim.of(-(-channels // lanes))), Var("cl", Dim.of(lanes))
        inside = tuple(Var(f"s{k}", axis.size) for k, axis in enumerate(window.axes))
        channel = Ix.of(outer) * lanes + Ix.of(inner)
        load, factor = self._source(window.source, (at[0], channel, *map(Ix.of, inside)), set(inside))
        found, slot = load.address, load.slot
        blocked = found.coef(inner) == 1
        if found.hidden() or not found.vars() <= {outer, inner, *inside, *([batch] if batch else [])}:
            raise Decline("the source is read in another order than the result is made")
        if not blocked and (found.coef(inside[-1]) != 1 or found.coef(outer) != found.coef(inner) * lanes):
            raise Decline("the source is neither in blocks of channels nor in plain order")
        loops: tuple[Var, ...] = outer, inner
        if kind == "grouped" and not blocked:
            raise Decline("groups of a source that is not in blocks of channels")
        if kind not in ("conv", "grouped"):
            if not blocked:
                raise Decline(f"{kind} of a source that is not in blocks of channels")
            found = found.replace({outer: Ix() if block is None else Ix.of(block), inner: Ix.of(lane)})
            loops = ()
        elif not blocked:
            single = Var("c", Dim.of(channels))
            found, loops = found.replace({outer: Ix(), inner: Ix.of(single)}), (single,)
        if window.groups > 1 and kind == "conv" and (not blocked or depth % lanes or filters // window.groups % lanes):
            raise Decline(f"groups of {depth} to {filters // window.groups} channels are neither "
                          f"whole blocks of {lanes} nor several in one")
        if factor is not None and (kind != "conv" or not blocked or window.groups > 1):
            raise Decline(f"{kind} of a source whose channels are scaled, in {window.groups} groups")
        if self.phases and not blocked:
            raise Decline("a transposed convolution of a source that is not in blocks of channels")
        if isinstance(window.weights, Const):
            raise Decline("the weights are one number")
        weights, bias = _tensor(window.weights, "the weights are"), _tensor(window.bias, "the bias is")
        return ConvSpace(kind, lanes, batch, block, lane, positions, window.axes, depth, filters, window.groups,
                         blocked, loops, inside, found, slot, weights, bias, value,
                         flat_address(self.index, self.root.shape), factor)

    def _source(self, source: Prim, at: tuple[Ix, ...], inside: set[Var]) -> tuple[Load, Inst | None]:
        """What is read, and by what each of its channels is multiplied."""
        made = self.pull(source, at)
        if self.windows:
            raise Decline("the source is computed inside the kernel")
        if isinstance(made, Load):
            load, factor = made, None
        else:
            load, factor = scaled(made, inside)
        if load.stored != "float":
            raise Decline("the source is computed inside the kernel")
        return load, factor

    def operation(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        if not isinstance(prim, Window):
            raise Decline(f"a {type(prim).__name__.lower()} follows the window")
        leaf = Result(prim.dtype)
        self.windows[id(prim), at] = prim, at, leaf
        if isinstance(prim.bias, Const):  # of a single filter
            return Apply(prim.dtype, point("Add", [prim, prim.bias], prim.dtype), (leaf, self.pull(prim.bias, ())))
        return leaf


def _several_in_a_block(depth: int, filters: int, lanes: int) -> bool:
    """Whether a block of filters holds whole groups whose channels lie in one block of the source."""
    return lanes % filters == 0 and filters % depth == 0 and depth < lanes


def _lanes_of(source: Prim) -> int:
    """The channels of a block of the tensor that `source` is a view of."""
    prim = source
    while prim.args:
        prim = prim.args[0]
    lanes = prim.shape[-1].as_int() if prim.shape else None
    if lanes not in LANES:
        raise Decline("the source is not in blocks of channels")
    return lanes


def _exact(coef: Dim, lanes: int) -> Dim:
    found = coef.exact_div(lanes)
    if found is None:
        raise Decline("the channels of the result are not in order")
    return found


def _loop(ix: Ix, what: str) -> Var | None:
    """The loop that `ix` is, or None where it is always 0."""
    if not ix.terms and ix.const == 0:
        return None
    single = ix.single()
    if single is None or single[1] != 0:
        raise Decline(f"{what} of the result: in another order, or only a part of it")
    return single[0]


def _tensor(prim: Prim | None, what: str) -> int | None:
    if prim is None or isinstance(prim, Const):
        return None
    if not isinstance(prim, Input) or prim.stored != "float":
        raise Decline(f"{what} computed inside the kernel")
    return prim.slot


def _flattened(space: ConvSpace) -> ConvSpace:
    """Two spatial dims as one where results read elements of their own place only and every address walks them as one,
    or where one of them has a single element."""
    if len(space.axes) != 2 or space.spread or not all(axis.plain for axis in space.axes):
        return space
    (rows, columns), values = space.axes, list(insts(space.value))
    (y, x), (outer, inner) = space.at, space.inside
    one = Var("yx", rows.out * columns.out)
    loops: dict[Var, Ix] = {}
    if y is not None and x is not None:
        if mergeable((y, x), [space.address, *indices_of(values)]) is None \
                or space.source.coef(outer) != space.source.coef(inner) * columns.size:
            return space
        loops = {y: Ix(), x: Ix.of(one)}
    elif y is not None or x is not None:
        loops = {v: Ix.of(one) for v in (y, x) if v is not None}
    place = Var("s", one.extent)
    kept = outer if columns.size == 1 else inner
    source = space.source.replace({outer: Ix(), inner: Ix(), kept: Ix.of(place)})
    return replace(space, at=(one if loops else None,), axes=(Axis(one.extent, one.extent, Dim.of(1)),),
                   inside=(place,), source=source, value=rewritten(values, loops)[id(space.value)],
                   address=space.address.replace(loops))


def _check(space: ConvSpace) -> None:
    """Lanes must be contiguous or constant wherever they are used, and the result in its own order."""
    lane = space.lane
    for inst in insts(space.value):
        if isinstance(inst, Load):
            if lane in inst.address.hidden() or inst.address.coef(lane) not in (Dim.of(0), Dim.of(1)):
                raise Decline("an operand of the epilogue is not contiguous along the lanes")
            if inst.slot in (space.weights_slot, space.bias_slot):
                raise Decline("the epilogue reads the weights too")
        elif isinstance(inst, Place) and lane in inst.index.hidden():
            raise Decline("the epilogue divides the index of the channel")
    for inst in () if space.factor is None else insts(space.factor):
        if isinstance(inst, Load) and inst.slot in (space.source_slot, space.weights_slot, space.bias_slot):
            raise Decline("the channels of the source are scaled by the source or by the weights")
    slots = [s for s in (space.source_slot, space.weights_slot, space.bias_slot) if s is not None]
    if len(set(slots)) != len(slots):
        raise Decline("two operands are the same tensor")

