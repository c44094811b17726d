"""What a pointwise operation costs: its definition evaluated by a `Math` that only counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

LIBM = 200  # a call for every lane
_COST = {"div": 4, "sqrt": 5, "idiv": 40, "irem": 40, "maximum": 3, "minimum": 3, "const": 0, "dtype": 0, "share": 0,
         "bitcast": 0}


@dataclass(frozen=True)
class _Counted:
    dtype: str


class CountingMath:
    """Sums vector instructions; values carry only their dtype."""

    def __init__(self) -> None:
        self.total = 0
        self.required = False

    def dtype(self, v: _Counted) -> str:
        return v.dtype

    def const(self, value: Any, dtype: str) -> _Counted:
        return _Counted(dtype)

    def require(self, holds: _Counted, reason: str) -> None:
        self.total += 2
        self.required = True

    def libm(self, name: str, *args: _Counted) -> _Counted:
        self.total += LIBM
        return args[0]

    def cast(self, a: _Counted, dtype: str) -> _Counted:
        self.total += 1
        return _Counted(dtype)

    def bitcast(self, a: _Counted, dtype: str) -> _Counted:
        return _Counted(dtype)

    def select(self, c: _Counted, a: _Counted, b: _Counted) -> _Counted:
        self.total += 1
        return a

    def __getattr__(self, name: str) -> Callable[..., _Counted]:
        compares = name in ("eq", "ne", "lt", "le", "land", "lor", "lnot")

        def count(*args: _Counted) -> _Counted:
            self.total += _COST.get(name, 1)
            return _Counted("bool") if compares else args[0]

        return count


def requires(fn: Callable[..., Any], dtypes: Sequence[str]) -> bool:
    """Whether `fn(math, values)` may end a run with an error, see `Math.require`."""
    math = CountingMath()
    fn(math, [_Counted(d) for d in dtypes])
    return math.required


def cost_of(fn: Callable[..., Any], dtypes: Sequence[str]) -> int:
    """Vector instructions of `fn(math, values)` for operands of `dtypes`."""
    math = CountingMath()
    fn(math, [_Counted(d) for d in dtypes])
    return max(math.total, 1)
