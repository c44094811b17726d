"""What a GEMM kernel evaluates, at its loops: rows m, columns n, and the depth k that is summed over."""

from __future__ import annotations

from dataclasses import dataclass

from tilegraph.ops.gemm.matrix import Matrix
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.space import Inst
from tilegraph.spec.dims import Dim


@dataclass(frozen=True, eq=False)
class Product(Inst):
    """The matrix product at (m, n), a leaf of the epilogue (float32)."""


@dataclass(frozen=True)
class GemmSpace:
    """out[m, n] = value(sum_k left[m, k] * right[k, n]), float32; `precision` is what both operands are rounded to.

    The row m is the mixed radix number of the loops `rows`, outermost first, the column n that of `cols`; there may be
    no rows (one row). `left` is the element offset of (m, k) in input `left_slot`; `right_slot` is the matrix, [k, n]
    row-major, or [n, k] if `transposed`. `value` is evaluated at (rows, cols) with a `Product` leaf and contiguous
    along the last loop of `cols`; `address` is where the result lies. `matrix`: how the matrix is computed from
    constants, where it is.
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
