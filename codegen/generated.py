"""What generators hand over: a function and how to call it. Imports no TVM, which takes a second."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters


@dataclass(frozen=True)
class Packed:
    """How a kernel reads a constant float32 matrix [k, n], or [n, k] if `transposed`, of input `slot`.

    As [panel][k][column in the panel], `panel` columns each; as "bfloat16" [panel][k/2][column][2], k filled up to an
    even number with a zero. `behind`: the inputs whose matrices follow as panels of their own, and whether each is
    transposed; the kernel has no pointers to those.
    """

    slot: int
    panel: int
    transposed: bool
    dtype: str = "float32"
    behind: tuple[tuple[int, bool], ...] = ()

    @property
    def matrices(self) -> tuple[tuple[int, bool], ...]:
        """(input, transposed) of all."""
        return ((self.slot, self.transposed), *self.behind)

    @staticmethod
    def from_json(data: list[Any]) -> Packed:
        slot, panel, transposed, dtype, behind = data
        return Packed(slot, panel, transposed, dtype, tuple((k, turned) for k, turned in behind))


@dataclass(frozen=True)
class Items:
    """A range that is `count` items (elements of a batch) one after the other, each as many units.

    Items can be made one by one: each needs what lies `strides` elements behind what the item before needs, for each
    pointer in the order of the kernel's parameters; 0 for what items share.
    """

    count: Dim
    strides: tuple[Dim, ...]

    def to_json(self) -> list[Any]:
        return [self.count.to_json(), [s.to_json() for s in self.strides]]

    @staticmethod
    def from_json(data: list[Any]) -> Items:
        return Items(Dim.from_json(data[0]), tuple(map(Dim.from_json, data[1])))


@dataclass(frozen=True)
class Kernel:
    """A kernel's function and how to call it.

    Its parameters are pointers to the inputs `slots`, to `outputs` and to `scratch` bytes, then `sizes`, begin and end.
    It does the part [begin, end) of `extent`; begin is a multiple of `align`, and `grain` is worth a task of its own.
    `packed`: inputs that are constant matrices. `filters`: of constants of convolutions, see there. `features`: what it
    needs beside the base level of the instruction set. `equal`: extents that have to be equal, which the run checks.
    `items`: whether the range is a batch of them.
    """

    symbol: str
    slots: tuple[int, ...]
    outputs: tuple[int, ...]
    sizes: tuple[str, ...]
    extent: Dim
    align: int
    scratch: Dim
    grain: Dim
    packed: tuple[Packed, ...] = ()
    filters: tuple[tuple[int, Filters], ...] = ()
    features: tuple[str, ...] = ()
    equal: tuple[tuple[Dim, Dim], ...] = ()
    items: Items | None = None

    def to_json(self) -> dict[str, Any]:
        return {"symbol": self.symbol, "slots": self.slots, "outputs": self.outputs, "sizes": self.sizes,
                "extent": self.extent.to_json(), "align": self.align, "scratch": self.scratch.to_json(),
                "grain": self.grain.to_json(), "packed": [astuple(p) for p in self.packed],
                "filters": [[slot, how.to_json()] for slot, how in self.filters], "features": self.features,
                "equal": [[a.to_json(), b.to_json()] for a, b in self.equal],
                "items": None if self.items is None else self.items.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Kernel:
        return Kernel(data["symbol"], tuple(data["slots"]), tuple(data["outputs"]), tuple(data["sizes"]),
                      Dim.from_json(data["extent"]), data["align"], Dim.from_json(data["scratch"]),
                      Dim.from_json(data["grain"]), tuple(map(Packed.from_json, data["packed"])),
                      tuple((slot, Filters.from_json(how)) for slot, how in data["filters"]),
                      tuple(data["features"]),
                      tuple((Dim.from_json(a), Dim.from_json(b)) for a, b in data["equal"]),
                      None if data["items"] is None else Items.from_json(data["items"]))


@dataclass(frozen=True)
class Generated:
    """A kernel before compilation: `func` is the TIR function."""

    func: Any
    kernel: Kernel
