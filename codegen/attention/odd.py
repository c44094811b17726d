"""Whether keys that nobody sees may be passed over where only a few queries read them: they must be ordinary numbers.

Of a block that is left out no score is computed, so nothing bounds its scores but this: keys and queries that are
smaller than `_LARGE` make scores below `ORDINARY`, whatever they are. An infinity, a NaN or a number beyond that turns
a running sum of zeros into NaN.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.bounds import can_skip
from tilegraph.codegen.attention.operands import fit
from tilegraph.codegen.attention.products import Tile
from tilegraph.codegen.emitter import STORAGE, Emitter
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import AttentionSpace
from tilegraph.ops.space import Load, index_of, insts

_LARGE = 1e13
_OVERFLOWS = 3.5e38 / _LARGE  # times a number above `_LARGE`
ORDINARY = 1e30  # above MAX_DEPTH * _LARGE ** 2


def few_skips(space: AttentionSpace) -> bool:
    """Whether the modifier may hide keys, from all heads alike that read them together."""
    used = {v for inst in insts(space.x) if (ix := index_of(inst)) is not None for v in ix.vars()}
    return can_skip(space) and not used & set(space.sharing)


class Odd:
    """The sum of zeros, NaN once something that is not ordinary was seen."""

    def __init__(self, e: Emitter, space: AttentionSpace, tile: Tile) -> None:
        self.e = e
        self.space = space
        self.lanes = tile.lanes
        self.pitch = tile.depth_pitch
        self.total = e.local("odd", "float32", tile.lanes)
        e.write(self.total, 0, e.f32(0.0), tile.lanes)

    def queries(self, memory: t.Buffer, at: int, rows: t.Expr) -> None:
        e, depth = self.e, self.space.depth
        with e.loop("r", rows) as r:
            row = e.share(t.Add(t.Mul(r, e.i64(self.pitch)), e.i64(at)))
            for first, width in self._vectors(depth):
                self._see(e.read(memory, "float32", t.Add(row, e.i64(first)), width), _OVERFLOWS)

    def keys(self, j0: t.Expr, columns: t.Expr) -> None:
        """Keys and values `j0` .. `j0 + columns`."""
        e, space = self.e, self.space
        assert space.streamed is not None
        assert isinstance(space.v, Load)
        key, factor, _ = space.streamed
        with e.loop("c", columns) as c:
            e.loops[space.j] = e.share(t.Add(j0, c))
            for load, var, size, scale in ((key, space.d, space.depth, max(abs(factor), 1.0) * _OVERFLOWS),
                                           (space.v, space.e, space.width, 1.0)):
                buffer, stored = e.input(load.slot, load.stored), STORAGE.get(load.stored, load.stored)
                e.loops[var] = e.i64(0)
                row = e.share(e.index(load.address))
                for first, width in self._vectors(size):
                    raw = e.read(buffer, stored, t.Add(row, e.i64(first)), width)
                    self._see(e.unpack(raw, load.stored, load.dtype), scale)

    def sum(self) -> V:
        e, m = self.e, self.e.math
        return m.folded(m.share(e.read(self.total, "float32", 0, self.lanes)), m.add)

    def _see(self, value: V, scale: float) -> None:
        e, m = self.e, self.e.math
        grown = value if scale == 1.0 else m.mul(value, e.f32(scale))
        before = e.read(self.total, "float32", 0, value.lanes)
        e.write(self.total, 0, m.fma(m.share(grown), e.f32(0.0), before), value.lanes)

    def _vectors(self, size: int) -> list[tuple[int, int]]:
        found, done = [], 0
        while done < size:
            width = fit(size - done, self.lanes)
            found.append((done, width))
            done += width
        return found
