"""One TIR function for any `AttentionSpace`: online softmax over blocks of keys.

For each batch and head the keys are packed, transposed, into panels of a few vectors; for each block of queries the
kernel then walks over the blocks of keys: products into a scratch block (8 rows x 2 vectors in registers), modifier and
running row maximum, exponentials and row sums, and the product with the values in registers. This is the schedule of
FlashAttention-2 (Dao 2023) for vectors on a CPU. Blocks that the modifier hides are passed over, see `bounds`.

A block is passed over while its scores have an upper bound that is low. At the end each row's maximum shows whether
every exponential that was left out is 0 in float32; where one is not, the block of queries is computed again, whole.
With that, and a check that keys, queries and values are finite, the result is the one of the whole score matrix.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.blocks import Blocks
from tilegraph.codegen.attention.bounds import can_skip
from tilegraph.codegen.attention.ends import Ends
from tilegraph.codegen.attention.few import Rows
from tilegraph.codegen.attention.operands import Operands
from tilegraph.codegen.attention.products import Tile
from tilegraph.codegen.attention.step import Step
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.ops.attention import FEW, AttentionSpace
from tilegraph.spec.dims import Dim

_SHARE_PACKING = 4  # blocks of queries that should share one packing of the keys


def generate(space: AttentionSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits."""
    e, skips = Emitter(), can_skip(space)
    tile = Tile.choose(space, vector_bits // 32, skips)
    ends = Ends(e, space, tile)
    operands = Operands(e, space, tile, ends.memory, ends.at.queries, ends.at.keys, skips)
    step, many = Step(ends, operands), Blocks(ends, operands)
    blocks, few = space.i.extent.ceildiv(tile.rows), space.has_few
    if space.caches and few:  # they are made even if there is no query
        blocks = Dim.max(blocks, 1)
    if few is None:
        with e.block() as small:
            step.run()
        with e.block() as large:
            many.run(blocks)
        e.stmts.append(t.IfThenElse(t.LT(e.dim(space.i.extent), e.i64(FEW)), t.sequence(small), t.sequence(large)))
    elif few:
        step.run()
    else:
        many.run(blocks)
    rows = Dim.of(tile.rows) if few is False else Dim.min(space.i.extent, tile.rows)
    work = (rows * space.j.extent * (space.depth + space.width)).ceildiv(tile.lanes)
    grain = Dim.of(TASK_COST).ceildiv(Dim.max(work, 1))
    keys = Dim.of(0) if few else space.j.extent.ceildiv(tile.panel) * (tile.panel * space.depth)
    align = 1 if few is False or space.pieces > 1 else Rows(e, space).heads
    return e.finish(name, [ends.memory], extent=Dim.product(v.extent for v in space.batch) * blocks, align=align,
                    scratch=(keys + ends.at.keys) * 4, grain=grain if few else Dim.max(grain, _SHARE_PACKING))
