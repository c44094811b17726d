"""A kernel whose batch elements can be made one by one: how far apart what they read and write lies."""

from __future__ import annotations

from tilegraph.ops.conv.join import JoinSpace
from tilegraph.ops.conv.space import ConvSpace
from tilegraph.ops.space import Load, insts
from tilegraph.spec.dims import Dim

# The batch, and the elements from one batch element to the next by slot and, as None, of the result. 0: all share it.
Strides = tuple[Dim, dict[int | None, Dim]]


def item_strides(space: ConvSpace) -> Strides | None:
    """None for a batch of one, and where an operand is not read by batch element alone."""
    batch = space.batch
    if batch is None:
        return None
    roots = (space.value,) if space.factor is None else (space.value, space.factor)
    found: dict[int | None, Dim] = {}
    reads = [(i.slot, i.address) for i in insts(*roots) if isinstance(i, Load)]
    for slot, address in [(None, space.address), (space.source_slot, space.source), *reads]:
        stride = address.coef(batch)
        if address.dynamic or batch in address.hidden() or found.setdefault(slot, stride) != stride:
            return None
    return batch.extent, found


def join_strides(space: JoinSpace) -> Strides:
    """Parts and result are whole tensors with the batch in front. Parts of one slot are the same tensor."""
    found: dict[int | None, Dim] = {p.slot: -(-p.channels // space.lanes) * space.lanes * p.rows * p.columns
                                    for p in space.parts}
    found[None] = space.blocks * space.lanes * space.rows * space.columns
    return space.n, found
