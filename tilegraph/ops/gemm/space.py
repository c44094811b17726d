"""What a GEMM kernel evaluates, at its loops: rows m, columns n, and the depth k that is summed over."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegraph.ops.gemm.matrix import Matrix
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.space import Inst, Literal, Load
from tilegraph.spec.dims import Dim
from tilegraph.spec.schedule import DEFAULT, Schedule


@dataclass(frozen=True, eq=False)
class Product(Inst):
    """The matrix product at (m, n), a leaf of the epilogue (float32; int32 of integers); `number`: with which matrix,
    0 that of the space, else one more than its place in `others`."""

    number: int = 0


@dataclass(frozen=True)
class Other:
    """One more matrix that the rows are multiplied with, of the same extents: input `slot`, [n, k] if `transposed`."""

    slot: int
    transposed: bool


@dataclass(frozen=True)
class Integers:
    """Operands are 8-bit integers, `left_stored` and `right_stored`, less their zero points; sums are exact in int32.

    A zero point of the left operand is the same everywhere, one of the right operand is evaluated at the column.
    """

    left_stored: str
    right_stored: str
    left_zero: Load | Literal | None
    right_zero: Load | Literal | None


@dataclass(frozen=True)
class Blocks:
    """The matrix, [n, k], is `count` blocks of `block` integers of `bits` bits in each column, with a float32 scale
    each in `scales_slot` and a zero point each in `zeros_slot` (None: 2^(bits - 1)). `rounded`: rows are rounded to
    int8 by block, and integers are multiplied; else the matrix is (integer - zero point) * scale in float32.
    """

    bits: int
    block: int
    count: int
    scales_slot: int
    zeros_slot: int | None
    rounded: bool = True


@dataclass(frozen=True)
class GemmSpace:
    """out[m, n] = value(sum_k left[m, k] * right[k, n]), float32; `precision` is what both operands are rounded to.

    The row m is the mixed radix number of the loops `rows`, outermost first, the column n that of `cols`; there may be
    no rows (one row). `left` is the element offset of (m, k) in input `left_slot`; `right_slot` is the matrix, [k, n]
    row-major, or [n, k] if `transposed`. `value` is evaluated at (rows, cols) with a `Product` leaf and contiguous
    along the last loop of `cols`; `address` is where the result lies. `matrix`: how the matrix is computed from
    constants, where it is; `quantized`: how it is summed, where not in floats. `stored`: the dtype of the result.
    `schedule`: what the generator need not decide. `others`: further matrices, each with a `Product` leaf of its own;
    then `matrix` and `quantized` are None. `beside`: further products of the same rows, each with a matrix and a result
    of its own, in the order of the results; then there are no `others`, nor have those any. `left` and `k` of the first
    one hold for all.
    """

    rows: tuple[Var, ...]
    cols: tuple[Var, ...]
    k: Var
    m: Dim
    n: int
    depth: int
    left: Ix
    left_slot: int
    right_slot: int
    transposed: bool
    value: Inst
    address: Ix
    precision: str = "float32"
    matrix: Matrix | None = None
    quantized: Integers | Blocks | None = None
    stored: str = "float"
    schedule: Schedule = DEFAULT
    others: tuple[Other, ...] = ()
    beside: tuple[GemmSpace, ...] = ()

    @property
    def members(self) -> tuple[GemmSpace, ...]:
        """What makes each of the results."""
        return (self, *self.beside)

    @property
    def columns(self) -> int:
        """Of all matrices together."""
        return sum(one.n * len(one.matrices) for one in self.members)

    @property
    def matrices(self) -> tuple[Other, ...]:
        """All of them, by the number of their `Product`."""
        return (Other(self.right_slot, self.transposed), *self.others)

    @property
    def constant_slots(self) -> frozenset[int]:
        """The inputs that kernels read packed."""
        if self.beside:
            return frozenset().union(*(replace(one, beside=()).constant_slots for one in self.members))
        if self.matrix is not None:
            return frozenset(table.load.slot for table in self.matrix.tables)
        if isinstance(self.quantized, Blocks):
            more = (self.quantized.scales_slot, self.quantized.zeros_slot)
            return frozenset({self.right_slot, *(slot for slot in more if slot is not None)})
        return frozenset(one.slot for one in self.matrices)
