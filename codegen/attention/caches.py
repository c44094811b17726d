"""Keys and values that a kernel concatenates: written to outputs of its own, and read from there.

With few queries the task that reads a head's keys makes them on the way, while they are in the processor's cache. With
many, several tasks read the same keys, so a kernel of its own makes them first, one task a head.

A past that lies where the new cache shall is left as it is: only the new rows are written.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.operands import along, fit
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.rows.values import pack
from tilegraph.ops.attention import FEW, AttentionSpace, Cache, Part
from tilegraph.ops.space import Load, insts
from tilegraph.spec.dims import Dim

_AHEAD = 64  # rows that memory is asked for before they are read
_FUNCTIONS = """
define i64 @tg_same_place(ptr %one, ptr %other) alwaysinline nounwind {
  %a = ptrtoint ptr %one to i64
  %b = ptrtoint ptr %other to i64
  %same = icmp eq i64 %a, %b
  %r = zext i1 %same to i64
  ret i64 %r
}
"""


def generate(space: AttentionSpace, name: str, vector_bits: int) -> Generated:
    """Emits the function `name` that makes the caches of `space` before its kernel reads them: one task a head."""
    e, lanes = Emitter(), vector_bits // 32
    owners = tuple(v for v in space.batch if v not in space.sharing)
    with e.block() as body, e.loop("o", t.Sub(e.end, e.begin), e.begin) as o:
        e.set_loops(owners, o)
        for var in space.sharing:
            e.loops[var] = e.i64(0)
        for cache in space.caches:
            if cache.moves:
                _insert(e, space, cache, lanes)
        still = [cache for cache in space.caches if not cache.moves]
        if still:
            # Without a query no task reads a head's keys, so that none makes them on the way either.
            queries = e.dim(space.i.extent)
            here = t.Or(t.LE(e.i64(FEW), queries), t.EQ(queries, e.i64(0)))
            with e.when(here if space.has_few is None else t.LE(e.i64(0), queries)):
                for cache in still:
                    _append(e, space, cache, lanes, e.i64(0), e.dim(space.j.extent))
    e.stmts.extend(body)
    rows = space.j.extent
    if all(cache.moves for cache in space.caches):  # most often only what is new
        rows = sum((cache.parts[-1].var.extent for cache in space.caches), Dim.of(0))
    grain = Dim.of(TASK_COST).ceildiv(Dim.max(rows * (2 + (space.depth + space.width) // lanes), 1))
    return e.finish(name, [], extent=Dim.product(v.extent for v in owners), align=1, scratch=Dim.of(0), grain=grain)


def append(e: Emitter, space: AttentionSpace, lanes: int, first: t.Expr, count: t.Expr) -> None:
    """Writes keys and values `first` .. `first + count` of the current batch and head to the outputs of the caches
    that are made on the way."""
    for cache in space.caches:
        if not cache.moves:
            _append(e, space, cache, lanes, first, count)


def _append(e: Emitter, space: AttentionSpace, cache: Cache, lanes: int, first: t.Expr, count: t.Expr) -> None:
    for part in cache.parts:
        start = e.dim(part.start)
        low = e.share(t.Max(first, start))
        high = t.Min(t.Add(first, count), t.Add(start, e.dim(part.var.extent)))
        with e.loop("r", e.share(t.Max(t.Sub(high, low), e.i64(0)))) as r:
            e.loops[space.j] = e.share(t.Add(low, r))
            e.loops[part.var] = e.share(t.Sub(t.Add(low, r), start))
            _row(e, cache, part, lanes)


def _insert(e: Emitter, space: AttentionSpace, cache: Cache, lanes: int) -> None:
    """The new rows where the run wants them; around them the old ones, unless they lie there already."""
    old, new = cache.parts
    assert new.behind is not None
    have, more = e.dim(old.var.extent), e.dim(new.var.extent)
    wanted = e.value(new.behind, space.j, 1, {}).expr
    # Inside, whatever the run says: what asks before the kernel lets nothing else through.
    start = e.share(t.Max(t.Min(wanted, t.Sub(have, more)), e.i64(0)))
    end = e.share(t.Min(t.Add(start, more), have))
    with e.when(t.EQ(_same_place(e, cache, old), e.i64(0))):
        for low, count in ((e.i64(0), start), (end, t.Sub(have, end))):
            with e.loop("r", count) as r:
                e.loops[space.j] = e.loops[old.var] = e.share(t.Add(low, r))
                _row(e, cache, old, lanes)
    with e.loop("r", t.Sub(end, start)) as r:
        e.loops[space.j] = e.share(t.Add(start, r))
        e.loops[new.var] = r
        _row(e, cache, new, lanes)


def _same_place(e: Emitter, cache: Cache, old: Part) -> t.Expr:
    """1 where the old rows are what the output's memory holds: the caller gave one buffer for both."""
    e.imports = _FUNCTIONS
    (past,) = {one.slot: one for one in insts(old.inst) if isinstance(one, Load) and one.stored == cache.load.stored
               and cache.inner in one.address.vars()}.values()
    e.input(past.slot, past.stored)
    e.output(-1 - cache.load.slot, cache.load.stored)
    pointers = (e.inputs[past.slot][0], e.outputs[-1 - cache.load.slot][0])
    return e.share(t.external("int64", "tg_same_place", *pointers))


def _row(e: Emitter, cache: Cache, part: Part, lanes: int) -> None:
    load, size = cache.load, cache.inner.extent.value
    wide = along(part.inst, cache.inner, lanes, size)
    output = e.output(-1 - load.slot, load.stored)

    def move(first: t.Expr, width: int) -> None:
        e.loops[cache.inner] = first
        _ask_ahead(e, part)
        value = e.math.share(e.value(part.inst, cache.inner, width, {}))
        e.write(output, e.index(load.address), pack(e.math, value, load.stored), width)

    if wide == 1:
        with e.loop("d", size) as d:
            move(d, 1)
        return
    done = 0
    while done < size:
        width = fit(size - done, wide)
        move(e.i64(done), width)
        done += width


def _ask_ahead(e: Emitter, part: Part) -> None:
    """The processor follows rows by itself, but not from page to page."""
    load = part.inst
    stride = load.address.coef(part.var).as_int() if isinstance(load, Load) else None
    if isinstance(load, Load) and stride:
        e.prefetch(e.input(load.slot, load.stored), t.Add(e.index(load.address), e.i64(_AHEAD * stride)))
