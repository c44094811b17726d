"""One symbolic extent, such as the batch, as a number.

A proof is made twice, with two primes for the symbol, and holds if both give the same tables. Whatever would depend on
the number of lanes cannot be the same for both; what is cut or put together along a symbolic axis is refused before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilegraph.spec.dims import Dim

PRIMES = (1009, 1013)
_current: ContextVar[tuple[str, int] | None] = ContextVar("stand_in", default=None)


class Untraceable(Exception):
    """Why a tensor cannot be written as a table of elements, or what its tables are not."""


@contextmanager
def standing_in(symbol: str, prime: int) -> Iterator[None]:
    """`size_of` takes `prime` for `symbol` inside."""
    token = _current.set((symbol, prime))
    try:
        yield
    finally:
        _current.reset(token)


def size_of(dim: Dim) -> int:
    """The extent; `Untraceable` for 0, and for symbols other than the one that a prime stands for."""
    size, current = dim.as_int(), _current.get()
    if size is None:
        factor = None if current is None else dim.exact_div(Dim.symbol(current[0]))
        count = None if factor is None else factor.as_int()
        if count is None or current is None:
            raise Untraceable(f"only a run knows the extent {dim}")
        return count * current[1]
    if size < 1 or varies(size):
        raise Untraceable(f"an extent of {size}")
    return size


def varies(extent: int) -> bool:
    """Whether an extent depends on the symbol."""
    current = _current.get()
    return current is not None and extent % current[1] == 0


def per_symbol(extent: int) -> int:
    """An extent that depends on the symbol divided by it; others as they are."""
    current = _current.get()
    return extent // current[1] if current is not None and extent % current[1] == 0 else extent
