"""From the nodes of a product and its epilogue to their space.

The nodes are lowered as those of a region are, with the product as one more operator, so the epilogue may be spelled in
any way: what counts is the computation that remains. Its loops are those of the output; views between the product and
the output, such as the split into heads, become the addresses of the stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from tilegraph.ops.broadcast import broadcast, project
from tilegraph.ops.dtypes import NARROW
from tilegraph.ops.gemm.einsum import lower_einsum
from tilegraph.ops.gemm.matrix import Matrix, plan_matrix
from tilegraph.ops.gemm.operands import operands
from tilegraph.ops.gemm.quantized import (
    BlockDot,
    IntegerDot,
    integer_product,
    lower_matmul_integer,
    lower_matmul_nbits,
    lower_matmul_to_float,
    lower_qlinear_matmul,
    plan_blocks,
    plan_integers,
)
from tilegraph.ops.gemm.space import Blocks, GemmSpace, Integers, Other, Product
from tilegraph.ops.index import Ix, Var, flat_address
from tilegraph.ops.loops import digits, merge, mergeable, with_merged
from tilegraph.ops.lower import Rule, lower_region
from tilegraph.ops.lower.base import NodeContext, point, scalar
from tilegraph.ops.lower.quantize import lower_quantize
from tilegraph.ops.lower.views import reshape, transpose
from tilegraph.ops.prims import Decline, Dot, Input, Lowered, Prim, View, signature
from tilegraph.ops.pull import Puller
from tilegraph.ops.space import Inst, Load, Place, indices_of, insts, rewritten
from tilegraph.spec.dims import Dim

LANES = 16  # the widest vectors; a view must not cut one
_STORED = ("float", "int32", "int8", "uint8")
_Dot = Dot | IntegerDot | BlockDot


def _matmul(c: NodeContext) -> list[Prim]:
    return [_dot(c, *operands(c))]


def _dot(c: NodeContext, left: Prim, right: Prim, rounded: str) -> Prim:
    """A left operand of rank 1 is one row, whose dim the result lacks; leading dims of 1 of the matrix vanish.

    Where both operands are integers with scales, the product is one of integers.
    """
    if (integers := integer_product(left, right)) is not None:
        return integers
    if not left.shape or len(right.shape) < 2:
        raise c.decline("a product with a vector on the right: one column only streams the left operand")
    while len(right.shape) > 2 and right.shape[0] == 1 and len(left.shape) >= len(right.shape):
        right = reshape(right, right.shape[1:])
    if len(right.shape) != 2:
        raise c.decline(f"the matrix has {len(right.shape)} dims; kernels take 2")
    if left.dtype != "float32" or right.dtype != "float32":
        raise c.decline(f"a product of {left.dtype}: kernels are float32")
    if left.shape[-1] != right.shape[-2]:
        raise c.decline(f"extents {left.shape[-1]} and {right.shape[-2]} are not equal for certain")
    return Dot((*left.shape[:-1], right.shape[-1]), left.dtype, left=left, right=right, rounded=rounded)


def _gemm(c: NodeContext) -> list[Prim]:
    """alpha times the product plus beta times C, which is not read where beta is 0."""
    left, right, rounded = operands(c)
    left = transpose(left, [1, 0]) if c.attr("transA", 0) else left
    right = transpose(right, [1, 0]) if c.attr("transB", 0) else right
    made = _scaled(_dot(c, left, right, rounded), c.attr("alpha", 1.0))
    beta = c.attr("beta", 1.0)
    if beta == 0 or (c.optional(2) is None and (len(c.node.inputs) < 3 or c.node.inputs[2] is None)):
        return [made]
    bias = _scaled(c.arg(2), beta)
    if broadcast([made.shape, bias.shape]) != made.shape:
        raise c.decline("a bias that is larger than the product")
    return [point("Add", [made, bias], "float32")]


def _scaled(prim: Prim, factor: float) -> Prim:
    return prim if factor == 1.0 else point("Mul", [prim, scalar(factor, "float32")], "float32")


PRODUCTS: dict[tuple[str, str], Rule] = {
    ("", "MatMul"): _matmul, ("", "Gemm"): _gemm, ("", "Einsum"): lower_einsum,
    ("", "MatMulInteger"): lower_matmul_integer, ("", "QLinearMatMul"): lower_qlinear_matmul,
    ("com.microsoft", "MatMulIntegerToFloat"): lower_matmul_to_float,
    ("com.microsoft", "MatMulNBits"): lower_matmul_nbits}
_RULES: dict[tuple[str, str], Rule] = {**PRODUCTS, ("", "DequantizeLinear"): lower_quantize}  # of 4 bits, too


def lower_gemm(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) -> Lowered:
    """Lowers `nodes` (in topological order) as a region with a product for each output; `Decline` with the reason."""
    return lower_region(nodes, outputs, opsets, _RULES)


def plan_gemm(lowered: Lowered) -> GemmSpace:
    """The space of the product and epilogue that `lowered` is, or of several of the same rows.

    `Decline` with what it is not.
    """
    planners = [_Product(root) for root in lowered.outputs]
    spaces = [_stored(planner, stored) for planner, stored in zip(planners, lowered.stored, strict=True)]
    if len(spaces) == 1:
        return spaces[0]
    if any(one.matrix is not None or one.quantized is not None or one.others for one in spaces):
        raise Decline("several results, and not all are of one product each with a matrix of floats")
    if len({(signature((planner.left,)), one.precision) for planner, one in zip(planners, spaces, strict=True)}) > 1:
        raise Decline("several results of products of different rows or precisions")
    if len({one.right_slot for one in spaces}) < len(spaces):
        raise Decline("several results of products with one matrix")
    space = replace(spaces[0], beside=tuple(spaces[1:]))
    for one in spaces:
        _check_constants(one, space.constant_slots)
    return space


def _stored(planner: _Product, stored: str) -> GemmSpace:
    if stored not in _STORED:
        raise Decline(f"a product stored as {stored}: kernels are float32")
    space = planner.plan()
    if space.quantized is None and stored != "float":
        raise Decline(f"a product stored as {stored}: kernels are float32")
    return replace(space, stored=stored)


@dataclass(frozen=True)
class _Right:
    """The matrix of a product, see `GemmSpace`."""

    slot: int
    transposed: bool = False
    matrix: Matrix | None = None
    quantized: Integers | Blocks | None = None


class _Product(Puller[GemmSpace]):
    """Its loops are those of the output. `left`: the left operand of its product, once planned."""

    left: Prim

    def build(self) -> GemmSpace:
        self.products: dict[tuple[int, tuple[Ix, ...]], tuple[_Dot, tuple[Ix, ...]]] = {}
        value = self.pull(self.root, tuple(self.index))
        if not self.products:
            raise Decline("no product is in it")
        (dot, at), *others = self.products.values()
        if any(place != at for _, place in others):
            raise Decline("it reads products at more than one place")
        if Dim.product(dot.shape) != Dim.product(self.root.shape):
            raise Decline("the result has more elements than the product")
        rows = _digits(flat_address(at[:-1], dot.shape[:-1]), self.loops, "rows")
        cols = _digits(at[-1], self.loops, "columns")
        if set(rows) & set(cols) or set(rows) | set(cols) != set(self.loops) or not cols:
            raise Decline("rows and columns of the product are not loops of the result")
        self.k = k = Var("k", dot.left.shape[-1])
        depth, width = k.extent.as_int(), dot.shape[-1].as_int()
        if depth is None or width is None:
            raise Decline("the matrix has a symbolic extent")
        if not depth or not width:
            raise Decline("the matrix is empty")
        self.products.clear()
        self.left = dot.left
        left = self.pull(dot.left, (*project(at[:-1], dot.left.shape[:-1]), Ix.of(k)))
        kinds = ("int8", "uint8") if isinstance(dot, IntegerDot) else ("float",)
        if self.products or not isinstance(left, Load) or left.stored not in kinds:
            raise Decline("the left operand is computed inside the kernel")
        if (depth > 1 and left.address.coef(k) != 1) or k in left.address.hidden() or left.address.vars() & set(cols):
            raise Decline("the left operand is not contiguous along the summed dim")
        right = self._right(dot, left, at[-1])
        more = tuple(self._other(one, dot, left, right, at) for one, _ in others)
        rows, value, places = _merge_rows(rows, value, (left.address, flat_address(self.index, self.root.shape)))
        rounded = dot.rounded if isinstance(dot, Dot) else ""
        space = GemmSpace(rows, cols, k, Dim.product(dot.shape[:-1]), width, depth, places[0], left.slot, right.slot,
                          right.transposed, value, places[1], rounded or "float32", right.matrix, right.quantized,
                          others=more)
        _check(space)
        return space

    def _right(self, dot: _Dot, left: Load, column: Ix) -> _Right:
        """`column`: where in the matrix the element of the result comes from."""
        if isinstance(dot, IntegerDot):
            integers, slot, turned = plan_integers(
                dot, left, lambda zero: self.pull(zero, project((column,), zero.shape)))
            return _Right(slot, turned, quantized=integers)
        if isinstance(dot, BlockDot):
            blocks, slot = plan_blocks(dot)
            return _Right(slot, quantized=blocks)
        right, transposed = dot.right, False
        if isinstance(right, View) and right.key == "transpose[1, 0]":
            right, transposed = right.source, True
        if isinstance(right, Input) and right.stored == "float":
            return _Right(right.slot, transposed)
        matrix = plan_matrix(dot.right)
        return _Right(matrix.slot, matrix=matrix)

    def _other(self, dot: _Dot, first: _Dot, left: Load, right: _Right, at: tuple[Ix, ...]) -> Other:
        """The matrix of a product beside the first one: both are plain, of the same rows and extents."""
        if not isinstance(dot, Dot) or not isinstance(first, Dot) or right.matrix is not None:
            raise Decline("it reads more than one product, and not all are with matrices of floats")
        if dot.right.shape != first.right.shape or dot.rounded != first.rounded:
            raise Decline("it reads products with matrices of more than one shape or precision")
        if self.pull(dot.left, (*project(at[:-1], dot.left.shape[:-1]), Ix.of(self.k))) is not left:
            raise Decline("it reads products of different rows")
        found = self._right(dot, left, at[-1])
        if found.matrix is not None:
            raise Decline("it reads more than one product, and not all are with matrices of floats")
        if found.slot == right.slot:
            raise Decline("it reads two products with one matrix")
        return Other(found.slot, found.transposed)

    def operation(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        if not isinstance(prim, _Dot):
            raise Decline(f"a {type(prim).__name__.lower()} follows the product")
        leaf = Product(prim.dtype, len(self.products))
        self.products[id(prim), at] = prim, at
        return leaf


def _digits(number: Ix, loops: Sequence[Var], what: str) -> tuple[Var, ...]:
    found = digits(number, loops)
    if found is None:
        raise Decline(f"the {what} of the product are not in order in the result")
    return found


def _merge_rows(rows: tuple[Var, ...], value: Inst, places: tuple[Ix, ...]) \
        -> tuple[tuple[Var, ...], Inst, tuple[Ix, ...]]:
    """Merges neighbouring row loops that every address walks as one."""
    while True:
        values = list(insts(value))
        pair = mergeable(rows, [*indices_of(values), *places])
        if pair is None:
            return rows, value, places
        one, mapping = merge(*pair)
        rows = with_merged(rows, *pair, one)
        value = rewritten(values, mapping)[id(value)]
        places = tuple(ix.replace(mapping) for ix in places)


def _check(space: GemmSpace) -> None:
    """Vectors along the last column loop must be contiguous or constant wherever they are used, and whole."""
    lanes = space.cols[-1]
    if space.matrix is not None and space.precision != "float32":
        raise Decline(f"a computed matrix in {space.precision}")
    if len(space.cols) > 1:
        extent = lanes.extent.as_int()
        if extent is None or extent % LANES:
            raise Decline(f"a view cuts the columns into pieces of {lanes.extent}, which is no multiple of {LANES}")
    for inst in insts(space.value):
        if isinstance(inst, Load):
            if inst.stored in NARROW:
                raise Decline(f"the epilogue reads {inst.stored}")
            if lanes in inst.address.hidden() or inst.address.coef(lanes) not in (Dim.of(0), Dim.of(1)):
                raise Decline("an operand of the epilogue is not contiguous along the columns")
        elif isinstance(inst, Place) and lanes in inst.index.hidden():
            raise Decline("the epilogue divides the column index")
    if lanes in space.address.hidden() or space.address.coef(lanes) != 1:
        raise Decline("the result is not contiguous along the columns")
    _check_constants(space, space.constant_slots)


def _check_constants(space: GemmSpace, constants: frozenset[int]) -> None:
    """What kernels read packed has no other reader."""
    if any(isinstance(inst, Load) and inst.slot in constants for inst in insts(space.value)):
        raise Decline("the epilogue reads the matrix too")
    if space.left_slot in constants:
        raise Decline("both operands are the same tensor")
