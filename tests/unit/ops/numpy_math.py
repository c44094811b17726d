"""`tilegraph.ops.math.Math` evaluated with numpy arrays.

`fma` rounds twice by default. `NumpyMath(fused=True)` evaluates float32 fma in float64, where the product is exact,
so that only the last rounding differs from a fused one (and then by a double rounding at most).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

A = NDArray[Any]

_LIBM = {name: np.vectorize(getattr(math, name), otypes=[np.float64]) for name in ("erf",)}
_NUMPY = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "pow": np.power, "fmod": np.fmod,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


class NumpyMath:
    """Raises AssertionError when a caller breaks the protocol: mixed dtypes, a shift out of range, division by 0."""

    def __init__(self, fused: bool = False) -> None:
        self.fused = fused

    def dtype(self, v: A) -> str:
        return str(v.dtype)

    def const(self, value: Any, dtype: str) -> A:
        return np.array(value).astype(dtype)

    def require(self, holds: A, reason: str) -> None:
        if not np.all(holds):
            raise ArithmeticError(reason)

    def _two(self, a: A, b: A) -> None:
        assert a.dtype == b.dtype, f"mixed dtypes {a.dtype} and {b.dtype}"

    def _number(self, a: A, b: A) -> None:
        self._two(a, b)
        assert a.dtype != np.bool_

    def add(self, a: A, b: A) -> A:
        self._number(a, b)
        with np.errstate(all="ignore"):
            return a + b

    def sub(self, a: A, b: A) -> A:
        self._number(a, b)
        with np.errstate(all="ignore"):
            return a - b

    def mul(self, a: A, b: A) -> A:
        self._number(a, b)
        with np.errstate(all="ignore"):
            return a * b

    def div(self, a: A, b: A) -> A:
        self._number(a, b)
        assert a.dtype.kind == "f"
        with np.errstate(all="ignore"):
            return a / b

    def _integers(self, a: A, b: A) -> None:
        self._number(a, b)
        assert a.dtype.kind in "iu"

    def _divisible(self, a: A, b: A) -> None:
        self._integers(a, b)
        assert np.all(b != 0), "division by zero is undefined"
        if a.dtype.kind == "i":
            overflow = (a == np.iinfo(a.dtype).min) & (b == -1)
            assert not np.any(overflow), "INT_MIN / -1 is undefined"

    def idiv(self, a: A, b: A) -> A:
        self._divisible(a, b)
        if a.dtype.kind == "u":
            return a // b
        q = np.abs(a) // np.abs(b)  # abs(INT_MIN) wraps; corrected by going through the exact remainder
        q = a // b
        return np.where((a - q * b != 0) & ((a < 0) != (b < 0)), q + q.dtype.type(1), q)

    def irem(self, a: A, b: A) -> A:
        with np.errstate(all="ignore"):
            return a - self.idiv(a, b) * b

    def fma(self, a: A, b: A, c: A) -> A:
        self._two(a, b)
        self._two(a, c)
        with np.errstate(all="ignore"):
            if self.fused and a.dtype == np.float32:
                return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
            return a * b + c

    def neg(self, a: A) -> A:
        with np.errstate(all="ignore"):
            return -a

    def abs(self, a: A) -> A:
        with np.errstate(all="ignore"):
            return np.abs(a)

    def minimum(self, a: A, b: A) -> A:
        self._number(a, b)
        r = np.minimum(a, b)
        return np.where((a == b) & np.signbit(a), a, r) if a.dtype.kind == "f" else r

    def maximum(self, a: A, b: A) -> A:
        self._number(a, b)
        r = np.maximum(a, b)
        return np.where((a == b) & ~np.signbit(a), a, r) if a.dtype.kind == "f" else r

    def floor(self, a: A) -> A:
        with np.errstate(all="ignore"):
            return np.floor(a)

    def ceil(self, a: A) -> A:
        return np.ceil(a)

    def trunc(self, a: A) -> A:
        return np.trunc(a)

    def round_even(self, a: A) -> A:
        return np.rint(a)

    def sqrt(self, a: A) -> A:
        with np.errstate(all="ignore"):
            return np.sqrt(a)

    def eq(self, a: A, b: A) -> A:
        self._two(a, b)
        return np.equal(a, b)

    def ne(self, a: A, b: A) -> A:
        self._two(a, b)
        return np.not_equal(a, b)

    def lt(self, a: A, b: A) -> A:
        self._two(a, b)
        return np.less(a, b)

    def le(self, a: A, b: A) -> A:
        self._two(a, b)
        return np.less_equal(a, b)

    def _bools(self, *values: A) -> None:
        assert all(v.dtype == np.bool_ for v in values)

    def land(self, a: A, b: A) -> A:
        self._bools(a, b)
        return a & b

    def lor(self, a: A, b: A) -> A:
        self._bools(a, b)
        return a | b

    def lnot(self, a: A) -> A:
        self._bools(a)
        return ~a

    def select(self, c: A, a: A, b: A) -> A:
        self._bools(c)
        self._two(a, b)
        return np.where(c, a, b)

    def band(self, a: A, b: A) -> A:
        self._integers(a, b)
        return a & b

    def bor(self, a: A, b: A) -> A:
        self._integers(a, b)
        return a | b

    def bxor(self, a: A, b: A) -> A:
        self._integers(a, b)
        return a ^ b

    def _shift(self, a: A, b: A) -> None:
        self._integers(a, b)
        assert np.all((b >= 0) & (b < a.dtype.itemsize * 8)), "shift amount out of range"

    def shl(self, a: A, b: A) -> A:
        self._shift(a, b)
        return np.left_shift(a, b)

    def shr(self, a: A, b: A) -> A:
        self._shift(a, b)
        return np.right_shift(a, b)

    def bitcast(self, a: A, dtype: str) -> A:
        assert np.dtype(dtype).itemsize == a.dtype.itemsize
        return np.asarray(a).view(dtype)

    def cast(self, a: A, dtype: str) -> A:
        target = np.dtype(dtype)
        if a.dtype.kind == "f" and target.kind in "iu":
            info = np.iinfo(target)
            t = np.trunc(a.astype(np.float64))
            assert np.all((t >= info.min) & (t < 2.0 ** (info.bits - (target.kind == "i")))), (
                f"{a.dtype} to {dtype} out of range is undefined"
            )
        if target == np.bool_:
            return a != 0
        with np.errstate(all="ignore"):
            return a.astype(target)

    def libm(self, name: str, *args: A) -> A:
        assert all(a.dtype.kind == "f" and a.dtype == args[0].dtype for a in args)
        with np.errstate(all="ignore"):
            if name in _LIBM:
                return _LIBM[name](args[0].astype(np.float64)).astype(args[0].dtype)
            # float64 throughout: numpy's own float32 functions are not those of the C library.
            wide = _NUMPY[name](*(a.astype(np.float64) for a in args))
            return np.asarray(wide).astype(args[0].dtype)

    def share(self, a: A) -> A:
        return a
