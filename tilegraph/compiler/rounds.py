"""Which calls of a program are done a few batch elements at a time.

A batch makes values that the caches do not hold: each kernel then waits for what the one before has just written. Where
neighbouring kernels make their batch elements one by one, a round does some elements in all of them before the next
ones, and the values that pass between them only need memory for one round.

Left as they are: kernels with more weights than a cache keeps from one round to the next, or than an item has values,
values that others read, and batches that are small enough as a whole. A round has as many items as give its calls some
tasks each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from tilegraph.codegen.generated import Items, Kernel
from tilegraph.memory import Buffer, plan
from tilegraph.ops.dtypes import BYTES, stored_name
from tilegraph.ops.lower.base import shape_of
from tilegraph.spec.artifact import Rounds
from tilegraph.spec.dims import Dim, Shape

_TASKS = 4  # in a call of a round, on average: fewer leave threads idle, and calls cost what they gain
_CACHE = 2 << 20  # bytes that pass between the kernels of a round; half of it is read while half is written
_WEIGHTS = 1 << 20  # bytes of one kernel
_FEW_WEIGHTS = 1 << 18  # however few values an item has: squeeze and excite has one a channel
_EXTENT = 512  # what a symbol may be: smaller items make larger rounds, which read weights less often


class Step(Protocol):
    """A call of a kernel, as `compiler.program` has it."""

    @property
    def kernel(self) -> Kernel: ...

    @property
    def reads(self) -> tuple[ir.Value, ...]: ...

    @property
    def writes(self) -> tuple[ir.Value, ...]: ...


@dataclass(frozen=True)
class Local:
    """A value of which only the items of a round exist: `item` bytes each."""

    rounds: Rounds
    item: Dim


def find_rounds(steps: Sequence[Step], shapes: Mapping[ir.Value, Shape], outputs: Collection[ir.Value],
                dim: Callable[[Dim], Dim], symbols: Collection[str],
                ) -> tuple[tuple[Rounds, ...], dict[ir.Value, Local]]:
    """The rounds of a program, in order, and the values that live in one round. `shapes`: of what the steps make, in
    the program's `symbols`; `dim` brings a kernel's extent into those."""
    found: list[Rounds] = []
    local: dict[ir.Value, Local] = {}
    used = {v: n for n, step in enumerate(steps) for v in step.reads}
    first = 0
    while first < len(steps):
        last = _run(steps, first, shapes, dim)
        rounds, items = _rounds(steps, first, last, used, outputs, dim, symbols)
        if rounds is not None:
            found.append(rounds)
            local |= {value: Local(rounds, item) for value, item in items.items()}
        first = last + 1
    return tuple(found), local


def lifetimes(alive: Sequence[int], rounds: Sequence[Rounds], local: bool) -> tuple[int, int]:
    """The first and the last step of the `alive` steps of a value: of rounds that it takes part in, all, as each comes
    back to their first step; but not of those that it lives in."""
    first, last = alive[0], alive[-1]
    for r in rounds:
        inside = [n for n in alive if r.first <= n < r.first + r.calls]
        if inside and not local:
            first, last = min(first, r.first), max(last, r.first + r.calls - 1)
    return first, last


def _run(steps: Sequence[Step], first: int, shapes: Mapping[ir.Value, Shape], dim: Callable[[Dim], Dim]) -> int:
    """The last step up to which, from `first` on, one batch goes through all kernels item by item."""
    made: dict[ir.Value, Dim] = {}
    count: Dim | None = None
    for n in range(first, len(steps)):
        items = steps[n].kernel.items
        if items is None or steps[n].kernel.align != 1 or _heavy(steps[n], items):
            return max(n - 1, first)
        batch = dim(items.count)
        strides = [dim(s) for s in items.strides]
        reads, writes = steps[n].reads, steps[n].writes
        fits = count in (None, batch) and all(
            made.get(v, stride) == stride for v, stride in zip(reads, strides, strict=False)) and all(
            Dim.product(shapes[v]) == stride * batch for v, stride in zip(writes, strides[len(reads):], strict=True))
        if not fits:
            return max(n - 1, first)
        count = batch
        made |= dict(zip(writes, strides[len(reads):], strict=True))
    return len(steps) - 1


def _rounds(steps: Sequence[Step], first: int, last: int, used: Mapping[ir.Value, int], outputs: Collection[ir.Value],
            dim: Callable[[Dim], Dim], symbols: Collection[str]) -> tuple[Rounds | None, dict[ir.Value, Dim]]:
    """Rounds of the steps `first` to `last`, and the values between them with the bytes of an item. `used`: the last
    step that reads a value."""
    items = steps[first].kernel.items
    if items is None or last == first:
        return None, {}
    sizes: dict[ir.Value, Dim] = {}
    buffers: list[Buffer] = []
    for n in range(first, last + 1):
        kernel = steps[n].kernel
        assert kernel.items is not None
        for v, stride in zip(steps[n].writes, kernel.items.strides[len(steps[n].reads):], strict=True):
            if v not in outputs and used.get(v, n) <= last:
                sizes[v] = dim(stride) * BYTES[stored_name(v.dtype)]
                buffers.append(Buffer(str(len(buffers)), sizes[v], n, used.get(v, n)))
    batch = dim(items.count)
    kernels = [s.kernel for s in steps[first:last + 1]]
    tasks = sum((dim(k.extent) // Dim.max(1, dim(k.grain)) for k in kernels), Dim.of(0))
    worth = batch * (_TASKS * len(kernels)) // Dim.max(1, tasks)
    step = Dim.min(batch, Dim.max(1, Dim.of(_CACHE) // Dim.max(1, plan(buffers).total), worth))
    if not sizes or step == batch:
        return None, {}
    name = f"round{first}"
    while name in symbols:
        name += "_"
    return Rounds(first, last - first + 1, batch, step, name), sizes


def _heavy(step: Step, items: Items) -> bool:
    """Whether reading a step's constants once more for each round takes longer than what passes through it."""
    constants, values = 0, 0
    for v, stride in zip((*step.reads, *step.writes), items.strides, strict=True):
        size = BYTES[stored_name(v.dtype)]
        if v.is_initializer():
            constants += Dim.product(shape_of(v)).value * size
        else:
            values += stride.evaluate(dict.fromkeys(stride.symbols, _EXTENT)) * size
    return constants > _WEIGHTS or constants > max(values, _FEW_WEIGHTS)
