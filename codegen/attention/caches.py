"""Keys and values that a kernel concatenates: written to outputs of its own, and read from there.

Each task puts together what it reads, so no task waits for another. Where several work on heads that share keys, they
write the same bytes.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.operands import along, fit
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.rows.values import pack
from tilegraph.ops.attention import AttentionSpace, Cache, Part
from tilegraph.ops.space import Load

_AHEAD = 64  # rows that memory is asked for before they are read


def append(e: Emitter, space: AttentionSpace, lanes: int, first: t.Expr, count: t.Expr) -> None:
    """Writes keys and values `first` .. `first + count` of the current batch and head to the outputs of the caches."""
    for cache in space.caches:
        for part in cache.parts:
            start = e.dim(part.start)
            low = e.share(t.Max(first, start))
            high = t.Min(t.Add(first, count), t.Add(start, e.dim(part.var.extent)))
            with e.loop("r", e.share(t.Max(t.Sub(high, low), e.i64(0)))) as r:
                e.loops[space.j] = e.share(t.Add(low, r))
                e.loops[part.var] = e.share(t.Sub(t.Add(low, r), start))
                _row(e, cache, part, lanes)


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
