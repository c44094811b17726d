"""A plan for many sizes that depend on the input: slots, each as large as the first buffer put into it.

Source: Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep Neural Net Inference", MLSys 2020 workshop,
"greedy by size" for shared objects. Slots lie one after another, so an offset is a sum of sizes: plans by offset make
maxima of maxima where no order of the sizes can be proven, which for an image network of twelve scales came to 166 KB
of text and a depth of 33.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilegraph.memory.buffers import ArenaPlan, Buffer
from tilegraph.memory.compare import Comparer
from tilegraph.spec.dims import Dim


@dataclass
class _Slot:
    size: Dim
    buffers: list[Buffer] = field(default_factory=list)
    fits: dict[Dim, bool] = field(default_factory=dict)  # by size: the proofs that were tried

    def takes(self, buffer: Buffer, size: Dim, compare: Comparer) -> bool:
        if any(b.meets(buffer) for b in self.buffers):
            return False
        if size not in self.fits:
            self.fits[size] = size == self.size or compare.at_most(size, self.size)
        return self.fits[size]


def plan_slots(order: Sequence[Buffer], sizes: Mapping[str, Dim], compare: Comparer) -> ArenaPlan:
    """Each buffer of `order` (by falling size) goes into the last, so smallest, slot that is free and provably large
    enough, else into a new one. Never above the sum of all sizes."""
    slots: list[_Slot] = []
    for buffer in order:
        size = sizes[buffer.name]
        slot = next((s for s in reversed(slots) if s.takes(buffer, size, compare)), None)
        if slot is None:
            slot = _Slot(size)
            slots.append(slot)
        slot.buffers.append(buffer)
    offsets: dict[str, Dim] = {}
    end = Dim.of(0)
    for slot in slots:
        offsets.update({b.name: end for b in slot.buffers})
        end = end + slot.size
    return ArenaPlan(offsets, end)
