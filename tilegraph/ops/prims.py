"""The primitive operations that nodes of a region are lowered to.

A lowered region is a DAG of `Prim`s, one per value. Each has a shape (tuple of `Dim`) and the numpy name of its
computing dtype. Views and concatenations are index maps, never copies; a reduction always runs over the trailing
`axes` dims of its operand. The DAG is what both fusion (to decide) and codegen (to emit) look at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilegraph.ops.index import Ix
from tilegraph.spec.dims import Dim, Shape


class Decline(Exception):
    """A node or a region cannot become a kernel; the message is the reason, `node` what stopped it."""

    def __init__(self, reason: str, node: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node


@dataclass(frozen=True, eq=False)
class Prim:
    """Base: a value with a shape. Identity is what distinguishes two prims."""

    shape: Shape
    dtype: str

    @property
    def args(self) -> tuple[Prim, ...]:
        return ()

    def text(self) -> str:
        """What it does beside its operands, for `signature`: prims that are defined elsewhere say it themselves."""
        raise TypeError(type(self).__name__)


@dataclass(frozen=True, eq=False)
class Input(Prim):
    """A tensor in memory, contiguous and row-major. `slot` counts the region's inputs; `stored` is its ONNX dtype.

    A reshaped input is another `Input` of the same slot.
    """

    slot: int = 0
    stored: str = ""


@dataclass(frozen=True, eq=False)
class Const(Prim):
    """A scalar known at compile time, broadcast to any shape."""

    value: Any = 0


@dataclass(frozen=True, eq=False)
class Position(Prim):
    """The index of the element along `axis`, int64."""

    axis: int = 0


@dataclass(frozen=True, eq=False)
class Extent(Prim):
    """A dim as a scalar integer value."""

    dim: Dim = field(default_factory=lambda: Dim.of(0))


@dataclass(frozen=True, eq=False)
class Point(Prim):
    """A pointwise operation: an entry of the operator table with attributes, or a primitive of `Math` by name.

    `fn(math, values) -> value`; operands broadcast to `shape`. `key` says the same thing as text, for cache keys.
    `cost` is in vector instructions per vector of elements.
    """

    key: str = ""
    operands: tuple[Prim, ...] = ()
    fn: Callable[..., Any] = field(default=lambda m, a: a[0], repr=False)
    cost: int = 1

    @property
    def args(self) -> tuple[Prim, ...]:
        return self.operands


@dataclass(frozen=True, eq=False)
class Reduce(Prim):
    """`kind` in sum, prod, max, min, peak over the last `axes` dims of `operand`; the result lacks those dims.

    peak is a maximum that ignores NaN: one instruction instead of five, for where NaN arrives by another way.
    """

    kind: str = "sum"
    operand: Prim = None  # type: ignore[assignment]
    axes: int = 1

    @property
    def args(self) -> tuple[Prim, ...]:
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Scan(Prim):
    """Running `kind` (sum or prod) along the last axis, from the front or, `reverse`, from the end.

    `exclusive`: without the element itself.
    """

    kind: str = "sum"
    operand: Prim = None  # type: ignore[assignment]
    exclusive: bool = False
    reverse: bool = False

    @property
    def args(self) -> tuple[Prim, ...]:
        return (self.operand,)

    def text(self) -> str:
        return f"scan {self.kind}{' exclusive' if self.exclusive else ''}{' reverse' if self.reverse else ''}"


@dataclass(frozen=True, eq=False)
class View(Prim):
    """`source` read at another index: `pull(indices of this) -> indices of source`. `key` is the map as text."""

    source: Prim = None  # type: ignore[assignment]
    pull: Callable[[tuple[Ix, ...]], tuple[Ix, ...]] = field(default=lambda ix: ix, repr=False)
    key: str = ""

    @property
    def args(self) -> tuple[Prim, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Concat(Prim):
    """`parts` side by side along `axis`."""

    parts: tuple[Prim, ...] = ()
    axis: int = 0

    @property
    def args(self) -> tuple[Prim, ...]:
        return self.parts


@dataclass(frozen=True, eq=False)
class Pick(Prim):
    """`source` read where computed indices say.

    `indices`: int64 prims that broadcast to this one's shape, each with values in [0, extents[k]) whatever the data;
    `pull(indices of this, computed ones) -> indices of source`. `key` is the map as text.
    """

    source: Prim = None  # type: ignore[assignment]
    indices: tuple[Prim, ...] = ()
    extents: Shape = ()
    pull: Callable[[tuple[Ix, ...], tuple[Ix, ...]], tuple[Ix, ...]] = field(default=lambda ix, at: ix, repr=False)
    key: str = ""

    @property
    def args(self) -> tuple[Prim, ...]:
        return (self.source, *self.indices)

    def text(self) -> str:
        return f"pick {self.key}"


@dataclass(frozen=True, eq=False)
class Dot(Prim):
    """The matrix product of `left` [.., M, K] and `right` [.., K, N], leading dims broadcast.

    Only attention and products are lowered with it; kernels of regions have no contractions. `rounded`: the 16-bit
    float to which the elements of both operands are rounded first; sums are of the dtype of the product.
    """

    left: Prim = None  # type: ignore[assignment]
    right: Prim = None  # type: ignore[assignment]
    rounded: str = ""

    @property
    def args(self) -> tuple[Prim, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Lowered:
    """A region as prims: one per output, plus how to round each output when it is stored.

    `stored[i]` is the ONNX dtype of output i; `inputs` maps a slot to the region input that it reads.
    """

    outputs: tuple[Prim, ...]
    stored: tuple[str, ...]
    inputs: tuple[Any, ...]


def signature(outputs: tuple[Prim, ...]) -> str:
    """A text that is equal for equal computations: the basis of kernel cache keys."""
    names: dict[int, str] = {}
    lines: list[str] = []

    def shape(dims: Shape) -> str:
        return "[" + ",".join(str(d) for d in dims) + "]"

    stack: list[tuple[Prim, bool]] = [(p, False) for p in reversed(outputs)]
    while stack:
        prim, ready = stack.pop()
        if id(prim) in names:
            continue
        if not ready:
            stack.append((prim, True))
            stack.extend((a, False) for a in reversed(prim.args))
            continue
        names[id(prim)] = f"%{len(names)}"
        args = ",".join(names[id(a)] for a in prim.args)
        match prim:
            case Input():
                body = f"input {prim.slot} {prim.stored}"
            case Const():
                body = f"const {prim.value!r}"
            case Position():
                body = f"position {prim.axis}"
            case Extent():
                body = f"extent {prim.dim}"
            case Point():
                body = f"{prim.key}({args})"
            case Reduce():
                body = f"{prim.kind}[{prim.axes}]({args})"
            case View():
                body = f"view {prim.key}({args})"
            case Concat():
                body = f"concat[{prim.axis}]({args})"
            case Dot():
                body = f"dot{prim.rounded}({args})"
            case _:
                body = f"{prim.text()}({args})"
        lines.append(f"{names[id(prim)]}: {prim.dtype}{shape(prim.shape)} = {body}")
    return "\n".join([*lines, "return " + ",".join(names[id(p)] for p in outputs)])
