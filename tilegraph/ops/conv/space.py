"""What a convolution or pooling kernel evaluates, at its loops: batch, block of channels, spatial dims, lane."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegraph.ops.index import Ix, Var
from tilegraph.ops.lower.sliding import Axis
from tilegraph.ops.prims import Prim
from tilegraph.ops.space import Inst
from tilegraph.spec.dims import Dim
from tilegraph.spec.schedule import DEFAULT, Schedule


@dataclass(frozen=True, eq=False)
class Window(Prim):
    """A sliding window over `source` [N, C, *sizes]; the result is [N, K, *outs].

    kind: conv, transposed, max, average (of the elements that exist) or padded_average (padding counts as zeros). conv
    has `weights` [K, C/groups, *kernel] and may have `bias` [K]. transposed is ConvTranspose in one group:
    element x counts in the results x*stride + k - before; its weights are [C, K, *kernel].
    """

    kind: str = "conv"
    source: Prim = None  # type: ignore[assignment]
    weights: Prim | None = None
    bias: Prim | None = None
    axes: tuple[Axis, ...] = ()
    groups: int = 1

    @property
    def args(self) -> tuple[Prim, ...]:
        return tuple(p for p in (self.source, self.weights, self.bias) if p is not None)

    def text(self) -> str:
        return f"{self.kind}[{','.join(a.text() for a in self.axes)}]/{self.groups}"


@dataclass(frozen=True, eq=False)
class Result(Inst):
    """What the window gives, bias included: a leaf of the epilogue (float32)."""


@dataclass(frozen=True)
class ConvSpace:
    """out = value(window(source)), float32, in blocks of `lanes` channels.

    kind: conv, depthwise (each channel by itself), grouped (a block of filters holds whole groups, whose channels lie
    in one block), max, average or padded_average. Loops of the result, None where the extent is 1: `batch`, `block` (of
    channels), `at` (one a spatial dim); `lane` is the innermost. Loops of the source: `channels` (one channel of a
    group: outer block and lane within it if `blocked`, else the channel alone) and `inside` (one a spatial dim); for
    depthwise and pooling the channel is that of the result. `source` is the element offset at `batch`, these and, for
    groups, the channel's group. `factor`: what each channel of the source counts, at `batch` and `channels` (squeeze
    and excite), None for 1.

    `phases`, of a transposed convolution, one a spatial dim: the place of a result in its window. Each has blocks of
    its own, numbered (phases.., block); `axes` and `at` are those of a convolution that makes all of them: place y and
    phase p are result y*stride + p - before. `spread`: the transposed convolution's own axes, where its windows overlap
    or are cut; then places outside of the result are left out, and a phase has taps k*stride + p below the kernel only,
    in reverse order.

    `plain`: the loops of a result that is [N, K, rows, columns], for few filters: `lane` is then (filter, phases..),
    all in one block, and `value` and `address` are at these loops.

    `fast`: larger rounding errors are allowed where they save time, see `algorithm`. `schedule`: what it need not
    decide.
    """

    kind: str
    lanes: int
    batch: Var | None
    block: Var | None
    lane: Var
    at: tuple[Var | None, ...]
    axes: tuple[Axis, ...]
    depth: int  # channels of the source that a result sums over: C / groups, 1 for depthwise and pooling
    filters: int  # K
    groups: int
    blocked: bool
    channels: tuple[Var, ...]
    inside: tuple[Var, ...]
    source: Ix
    source_slot: int
    weights_slot: int | None
    bias_slot: int | None
    value: Inst
    address: Ix
    factor: Inst | None = None
    phases: tuple[Var, ...] = ()
    spread: tuple[Axis, ...] = ()
    plain: tuple[Var | None, ...] | None = None
    fast: bool = False
    schedule: Schedule = DEFAULT

    @property
    def blocks(self) -> int:
        """Blocks of channels of the result, those of each phase."""
        if self.plain is not None:
            return 1
        return -(-self.filters // self.lanes) * math.prod(v.extent.value for v in self.phases)

    @property
    def n(self) -> Dim:
        return Dim.of(1) if self.batch is None else self.batch.extent

    def multiplications(self) -> Dim:
        """Products that the definition takes, padding included."""
        taps = Dim.product(a.kernel * a.out for a in self.axes)
        return taps * self.n * (self.filters * self.depth * math.prod(v.extent.value for v in self.phases))
