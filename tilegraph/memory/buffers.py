"""What the planner takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilegraph.errors import InternalError
from tilegraph.spec.dims import Dim


@dataclass(frozen=True)
class Buffer:
    """`bytes` of memory that hold something from step `first` to step `last`, both included."""

    name: str
    bytes: Dim
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class ArenaPlan:
    """A byte offset for each buffer, by name, and the bytes of the arena; all multiples of the alignment.

    With symbolic sizes both are expressions; they are not negative for any binding of the symbols.
    """

    offsets: Mapping[str, Dim]
    total: Dim


def check(buffers: Sequence[Buffer], alignment: int) -> None:
    """Raises `InternalError` for buffers or an alignment that make no sense."""
    if alignment < 1 or alignment & (alignment - 1):
        raise InternalError(f"arena alignment {alignment} is not a power of two")
    names: set[str] = set()
    for buffer in buffers:
        if buffer.name in names:
            raise InternalError(f"two arena buffers are named {buffer.name}")
        names.add(buffer.name)
        if buffer.first > buffer.last:
            raise InternalError(f"arena buffer {buffer.name} ends at step {buffer.last}, before its start "
                                f"{buffer.first}")
        if buffer.bytes.is_static and buffer.bytes.value < 0:
            raise InternalError(f"arena buffer {buffer.name} has {buffer.bytes} bytes")
