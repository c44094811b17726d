"""Products of integers, and products with weights in blocks of 4 or 8 bits.

MatMulInteger sums products of 8-bit integers less their zero points exactly. MatMulNBits (com.microsoft) holds each
column of its matrix as blocks of integers with a scale and a zero point each; at accuracy level 4 the rows of the other
operand are rounded to 8 bits, block by block, and products of integers are summed; at the other levels it computes in
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilegraph.ops.dtypes import NARROW
from tilegraph.ops.gemm.space import Blocks, Integers
from tilegraph.ops.index import Ix
from tilegraph.ops.lower.base import NodeContext, point, quotient, scalar, view
from tilegraph.ops.lower.views import reshape, transpose
from tilegraph.ops.prims import Decline, Input, Point, Prim, View
from tilegraph.ops.space import Inst, Literal, Load
from tilegraph.spec.dims import Dim, Shape

_INT8_LEVEL = 4
_MOST_SUMMED = (1 << 31) // (255 * 255)  # products that int32 holds for certain
_LEAST_BLOCK, _LARGEST_BLOCK = 16, 256  # the sum of a block of int8 fits 16 bits


@dataclass(frozen=True, eq=False)
class IntegerDot(Prim):
    """sum_k (left[.., k] - left_zero)(right[k, n] - right_zero[n]) in int32; operands int8 or uint8, zero points too.

    left_zero: []; right_zero: [] or [N]; None stands for 0.
    """

    left: Prim = None  # type: ignore[assignment]
    right: Prim = None  # type: ignore[assignment]
    left_zero: Prim | None = None
    right_zero: Prim | None = None

    @property
    def args(self) -> tuple[Prim, ...]:
        return tuple(p for p in (self.left, self.right, self.left_zero, self.right_zero) if p is not None)

    def text(self) -> str:
        return f"integer dot {self.left_zero is not None} {self.right_zero is not None}"


@dataclass(frozen=True, eq=False)
class BlockDot(Prim):
    """sum over blocks b of scale(left, b) scales[n, b] sum_k rounded(left)[.., k] (right[n, k] - zeros[n, b]), float32.

    left: [.., K] float32, of which each block of a row is rounded to int8 with the scale max|x| / 127. right: uint8
    [N, blocks, block bits / 8], scales [N, blocks], zeros [N, bytes of a column's zero points]; None: 2^(bits - 1).
    Unless `rounded`, it is the product of float32 rows with the matrix (right - zeros) * scales.
    """

    left: Prim = None  # type: ignore[assignment]
    right: Prim = None  # type: ignore[assignment]
    scales: Prim = None  # type: ignore[assignment]
    zeros: Prim | None = None
    bits: int = 4
    block: int = 32
    rounded: bool = True

    @property
    def args(self) -> tuple[Prim, ...]:
        return tuple(p for p in (self.left, self.right, self.scales, self.zeros) if p is not None)

    def text(self) -> str:
        return f"block dot {self.bits} {self.block} {self.zeros is not None} {self.rounded}"


def lower_matmul_integer(c: NodeContext) -> list[Prim]:
    return [_integer_dot(c, c.arg(0), c.arg(1), _present(c, 2), _present(c, 3))]


def lower_matmul_to_float(c: NodeContext) -> list[Prim]:
    """MatMulIntegerToFloat: A, B, scale of A, scales of B, their zero points, bias."""
    dot = _integer_dot(c, c.arg(0), c.arg(1), _present(c, 4), _present(c, 5))
    made = _scaled(dot, _scales(c, c.arg(2), c.arg(3), dot))
    bias = _present(c, 6)
    return [made if bias is None else point("Add", [made, bias], "float32")]


def lower_qlinear_matmul(c: NodeContext) -> list[Prim]:
    """QLinearMatMul in ONNX Runtime's order of operations: times (scale of A * scale of B) / scale of Y, rounded half
    to even, plus the zero point, saturated."""
    dot = _integer_dot(c, c.arg(0), c.arg(3), c.arg(2), c.arg(5))
    scale, zero = c.arg(6), c.arg(7)
    if any(d != 1 for d in (*scale.shape, *zero.shape)):
        raise c.decline("a scale of the result for each row")
    factor = quotient(_scales(c, c.arg(1), c.arg(4), dot), reshape(scale, ()))
    value = _scaled(dot, factor)
    return [point("QuantizeLinear", [value, scalar(1.0, "float32"), reshape(zero, ())], zero.dtype)]


def integer_product(left: Prim, right: Prim) -> Prim | None:
    """The product of two DequantizeLinear as one of integers, scaled; None where it is none that kernels sum exactly.

    left: [.., K] with one scale; right: [K, N], or a transpose of it, with one or one for each column.
    """
    turned = isinstance(right, View) and right.key == "transpose[1, 0]"
    other = right.source if isinstance(right, View) and turned else right
    parts = [p.operands for p in (left, other) if isinstance(p, Point) and p.key.startswith("DequantizeLinear<")]
    if len(parts) < 2 or len(right.shape) != 2 or not left.shape or left.shape[-1] != right.shape[0]:
        return None
    depth = right.shape[0].as_int()
    (x, scale, *zero), (w, scales, *zeros) = parts
    if depth is None or depth >= _MOST_SUMMED or {x.dtype, w.dtype} - {"int8", "uint8"} or scale.shape:
        return None
    if scale.dtype != "float32" or scales.dtype != "float32":
        return None
    if turned:
        w, scales, zeros = (transpose(w, [1, 0]), *_turned([scales]), _turned(zeros))
    if any(p.shape not in ((), (Dim.of(1), right.shape[1])) for p in (scales, *zeros)):
        return None
    columns = right.shape[1:]
    dot = IntegerDot((*left.shape[:-1], *columns), "int32", left=x, right=w, left_zero=zero[0] if zero else None,
                     right_zero=_row(zeros[0], columns) if zeros else None)
    return _scaled(dot, point("Mul", [scale, _row(scales, columns)], "float32"))


def _turned(prims: list[Prim]) -> list[Prim]:
    return [transpose(p, [1, 0]) if len(p.shape) == 2 else p for p in prims]


def _row(prim: Prim, columns: Shape) -> Prim:
    """[1, N] as [N]."""
    return view(prim, columns, lambda ix: (Ix(), ix[0]), "row") if prim.shape else prim


def _scaled(dot: Prim, scale: Prim) -> Prim:
    return point("Mul", [_to_float(dot), scale], "float32")


def _scales(c: NodeContext, left: Prim, right: Prim, dot: Prim) -> Prim:
    """The product of the scale of the rows and of those of the matrix, [] or [N]."""
    if any(d != 1 for d in left.shape) or any(p.dtype != "float32" for p in (left, right)):
        raise c.decline(f"scales of shape {_shown(left.shape)} for rows, of {left.dtype} and {right.dtype}")
    if all(d == 1 for d in right.shape):
        right = reshape(right, ())
    elif right.shape != dot.shape[-1:]:
        raise c.decline(f"scales of shape {_shown(right.shape)} for {dot.shape[-1]} columns")
    return point("Mul", [reshape(left, ()), right], "float32")


def _integer_dot(c: NodeContext, left: Prim, right: Prim, left_zero: Prim | None,
                 right_zero: Prim | None) -> IntegerDot:
    while len(right.shape) > 2 and right.shape[0] == 1 and len(left.shape) >= len(right.shape):
        right = reshape(right, right.shape[1:])
    if not left.shape or len(right.shape) != 2:
        raise c.decline(f"operands of {len(left.shape)} and {len(right.shape)} dims; kernels take rows and a matrix")
    if left.shape[-1] != right.shape[0]:
        raise c.decline(f"extents {left.shape[-1]} and {right.shape[0]} are not equal for certain")
    if any(p.dtype not in ("int8", "uint8") for p in (left, right)):
        raise c.decline(f"operands of {left.dtype} and {right.dtype}")
    if left_zero is not None:
        if any(d != 1 for d in left_zero.shape):
            raise c.decline("a zero point for each row")
        left_zero = reshape(left_zero, ())
    if right_zero is not None:
        if all(d == 1 for d in right_zero.shape):
            right_zero = reshape(right_zero, ())
        elif right_zero.shape != right.shape[1:]:
            raise c.decline(f"zero points of shape {_shown(right_zero.shape)} for {right.shape[1]} columns")
    return IntegerDot((*left.shape[:-1], right.shape[1]), "int32", left=left, right=right, left_zero=left_zero,
                      right_zero=right_zero)


def lower_matmul_nbits(c: NodeContext) -> list[Prim]:
    """Declines reordered columns (g_idx), other than 4 or 8 bits, zero points that are not packed, and blocks that are
    no power of 2 from 16 to 256."""
    left, right, scales, zeros = c.arg(0), c.arg(1), c.arg(2), _present(c, 3)
    depth, width, block = (int(c.attr(name, 0)) for name in ("K", "N", "block_size"))
    bits = int(c.attr("bits", 4))
    if bits not in (4, 8):
        raise c.decline(f"weights of {bits} bits; kernels take 4 and 8")
    if block < _LEAST_BLOCK or block > _LARGEST_BLOCK or block & (block - 1):
        raise c.decline(f"blocks of {block}")
    if len(c.node.inputs) > 4 and c.node.inputs[4] is not None:
        raise c.decline("its rows are reordered (g_idx)")
    blocks = -(-depth // block)
    if left.dtype != "float32" or scales.dtype != "float32" or right.dtype != "uint8":
        raise c.decline(f"operands of {left.dtype}, {right.dtype} and {scales.dtype}")
    if not left.shape or left.shape[-1] != depth:
        raise c.decline(f"rows of {left.shape[-1] if left.shape else 1} elements, not {depth} for certain")
    right = _shaped(c, right, (width, blocks, block * bits // 8), "weights")
    scales = _shaped(c, scales, (width, blocks), "scales")
    if zeros is not None:
        if zeros.dtype != "uint8":
            raise c.decline(f"zero points of {zeros.dtype}")
        zeros = _shaped(c, zeros, (width, -(-blocks * bits // 8)), "zero points")
    shape = (*left.shape[:-1], Dim.of(width))
    made = BlockDot(shape, "float32", left=left, right=right, scales=scales, zeros=zeros, bits=bits, block=block,
                    rounded=int(c.attr("accuracy_level", 0)) == _INT8_LEVEL)
    bias = _present(c, 5)
    return [made if bias is None else point("Add", [made, bias], "float32")]


def _present(c: NodeContext, k: int) -> Prim | None:
    return c.arg(k) if k < len(c.node.inputs) and c.node.inputs[k] is not None else None


def _shaped(c: NodeContext, prim: Prim, extents: tuple[int, ...], what: str) -> Prim:
    shape = tuple(Dim.of(e) for e in extents)
    if Dim.product(prim.shape) != Dim.product(shape):
        raise c.decline(f"{what} of shape {_shown(prim.shape)} instead of {list(extents)}")
    return reshape(prim, shape)


def _shown(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _to_float(a: Prim) -> Prim:
    return point("Cast", [a], "float32", attrs={"to": 1})


# -- plans ------------------------------------------------------------------------------------------------------------


def plan_integers(dot: IntegerDot, left: Load, pull: Callable[[Prim], Inst]) -> tuple[Integers, int, bool]:
    """How to sum, the input that is the matrix, and whether that is transposed; `pull(zero point)` is its value at the
    product's column."""
    right, turned = dot.right, False
    if isinstance(right, View) and right.key == "transpose[1, 0]":
        right, turned = right.source, True
    if not isinstance(right, Input) or right.stored in NARROW:
        raise Decline("the matrix is computed inside the kernel")
    zero = None if dot.left_zero is None else pull(dot.left_zero)
    if isinstance(zero, Load) and zero.address.vars():
        raise Decline("the zero point of the rows changes with them")
    if zero is not None and not isinstance(zero, (Load, Literal)):
        raise Decline("the zero point of the rows is computed inside the kernel")
    other = None if dot.right_zero is None else pull(dot.right_zero)
    if other is not None and not isinstance(other, (Load, Literal)):
        raise Decline("the zero points of the columns are computed inside the kernel")
    return Integers(left.stored, right.stored, zero, other), right.slot, turned


def plan_blocks(dot: BlockDot) -> tuple[Blocks, int]:
    """How to sum, and the input that is the matrix."""
    slots = []
    for prim in (dot.right, dot.scales, *((dot.zeros,) if dot.zeros is not None else ())):
        if not isinstance(prim, Input) or prim.stored in NARROW:
            raise Decline("the weights are computed inside the kernel")
        slots.append(prim.slot)
    if len(set(slots)) < len(slots):
        raise Decline("weights and scales are the same tensor")
    count = dot.scales.shape[1].as_int() or 0
    zeros = slots[2] if dot.zeros is not None else None
    return Blocks(dot.bits, dot.block, count, slots[1], zeros, dot.rounded), slots[0]
