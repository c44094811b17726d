"""What can be proved about extents: bounds, order, broadcasting, the integer arithmetic of shape computations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilegraph.spec.dims import Dim, Opaque

MaybeDim = Dim | None
_HUGE = 10**9  # slice ends from here on mean "to the end": exporters write 1e9, 2^31-1 and 2^63-1; no axis is that long

Bound = tuple[int | None, int | None]  # lowest and highest value; None: no bound


@lru_cache(maxsize=16384)
def bounds(dim: Dim) -> Bound:
    """The range of `dim` over all non-negative bindings of its symbols (never narrower than the true one)."""
    low: int | None = 0
    high: int | None = 0
    for mono, coef in dim.terms:
        mono_low, mono_high = _monomial_bounds(mono)
        ends = (mono_low, mono_high) if coef > 0 else (mono_high, mono_low)
        low = None if low is None or ends[0] is None else low + coef * ends[0]
        high = None if high is None or ends[1] is None else high + coef * ends[1]
    return low, high


def _monomial_bounds(mono: tuple[str | Opaque, ...]) -> Bound:
    low: int | None = 1
    high: int | None = 1
    for atom in mono:
        atom_low, atom_high = (0, None) if isinstance(atom, str) else _opaque_bounds(atom)
        if atom_low is None or atom_low < 0:
            return (None, None) if len(mono) > 1 else (atom_low, atom_high)
        low = None if low is None else low * atom_low
        high = None if high is None or atom_high is None else high * atom_high
    return low, high


def _opaque_bounds(atom: Opaque) -> Bound:
    inner = [bounds(a) for a in atom.args]
    if atom.op == "min":
        lows, highs = [b[0] for b in inner], [b[1] for b in inner if b[1] is not None]
        return (None if None in lows else min(x for x in lows if x is not None), min(highs) if highs else None)
    if atom.op == "max":
        highs_all, lows_some = [b[1] for b in inner], [b[0] for b in inner if b[0] is not None]
        return (max(lows_some) if lows_some else None,
                None if None in highs_all else max(x for x in highs_all if x is not None))
    (left_low, left_high), (right_low, right_high) = inner
    if right_low is None or right_low < 0:
        return None, None
    if atom.op == "%":
        return 0, None if right_high is None else max(right_high - 1, 0)
    if left_low is None or left_low < 0:
        return None, None
    return 0, None if left_high is None else left_high // max(right_low, 1)


def is_nonnegative(dim: Dim) -> bool:
    low = bounds(dim)[0]
    return low is not None and low >= 0


@lru_cache(maxsize=16384)
def at_most(small: Dim, large: Dim) -> bool:
    """Whether `small <= large` for every binding; False also means "not proved"."""
    if small == large or is_nonnegative(large - small):
        return True
    for dim, holds in ((small, {"min": any, "max": all}), (large, {"min": all, "max": any})):
        atom = _lone_opaque(dim)
        if atom is not None and atom.op in holds:
            pairs = ((a, large) if dim is small else (small, a) for a in atom.args)
            if holds[atom.op](at_most(x, y) for x, y in pairs):
                return True
    return False


def _lone_opaque(dim: Dim) -> Opaque | None:
    if len(dim.terms) == 1:
        mono, coef = dim.terms[0]
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Opaque):
            return mono[0]
    return None


def equal(left: MaybeDim, right: MaybeDim) -> bool | None:
    """True or False when proved, None otherwise."""
    if left is None or right is None:
        return None
    if left == right:
        return True
    low, high = bounds(left - right)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    return None


def less(left: MaybeDim, right: MaybeDim) -> bool | None:
    """Whether `left < right`: True or False when proved, None otherwise."""
    if left is None or right is None:
        return None
    low, high = bounds(right - left)
    if low is not None and low > 0:
        return True
    if (high is not None and high <= 0) or at_most(right, left):
        return False
    return None


def smallest(*dims: Dim) -> Dim:
    """The minimum, without the arguments that another one is proved not to exceed."""
    kept: list[Dim] = []
    for dim in dict.fromkeys(dims):
        if any(at_most(k, dim) for k in kept):
            continue
        kept = [k for k in kept if not at_most(dim, k)]
        kept.append(dim)
    return kept[0] if len(kept) == 1 else Dim.min(*kept)


def largest(*dims: Dim) -> Dim:
    """The maximum, without the arguments that are proved not to exceed another one."""
    kept: list[Dim] = []
    for dim in dict.fromkeys(dims):
        if any(at_most(dim, k) for k in kept):
            continue
        kept = [k for k in kept if not at_most(k, dim)]
        kept.append(dim)
    return kept[0] if len(kept) == 1 else Dim.max(*kept)


def truncating_div(left: MaybeDim, right: MaybeDim) -> MaybeDim:
    """ONNX's integer division, which rounds towards zero."""
    if left is None or right is None or right == 0:
        return None
    a, b = left.as_int(), right.as_int()
    if a is not None and b is not None:
        quotient = abs(a) // abs(b)
        return Dim.of(quotient if (a < 0) == (b < 0) else -quotient)
    exact = left.exact_div(right)
    if exact is not None:
        return exact
    return left // right if is_nonnegative(left) and is_nonnegative(right) else None


def remainder(left: MaybeDim, right: MaybeDim) -> MaybeDim:
    """ONNX's Mod for integers with fmod=0: the sign of the divisor, as in Python."""
    if left is None or right is None or right == 0:
        return None
    return left % right if right.is_static or is_nonnegative(right) else None


def broadcast_dim(left: MaybeDim, right: MaybeDim) -> MaybeDim:
    """The extent of a broadcast of two; None when the runs in which it is valid do not agree on one.

    An integer other than 1 wins over anything unknown, and everything over 1. Of two different expressions one wins
    only if it is proved to be the larger (a clipped slice against the length it was meant to have), and not 1 where the
    other one is 0, which would win.
    """
    if left is not None and right is not None:
        if left == right:
            return left
        if left == 1:
            return right
        if right == 1:
            return left
        if left.is_static:
            return left if not right.is_static else None
        if right.is_static:
            return right
        for small, large in ((left, right), (right, left)):
            if at_most(small, large) and at_most(smallest(large, Dim.of(1)), small):
                return large
        return None
    known = left if left is not None else right
    return known if known is not None and known.is_static and known != 1 else None


def broadcast(*shapes: Sequence[MaybeDim] | None) -> tuple[MaybeDim, ...] | None:
    """Numpy's rule over any number of shapes; None when a rank is unknown."""
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    rank = max((len(s) for s in known), default=0)
    result: list[MaybeDim] = [Dim.of(1)] * rank
    for shape in known:
        for i, dim in enumerate(shape, rank - len(shape)):
            result[i] = broadcast_dim(result[i], dim)
    # Unknown is sticky: a later integer may decide what an earlier pair did not.
    for i in range(rank):
        if result[i] is None:
            column = [s[i - rank + len(s)] for s in known if i - rank + len(s) >= 0]
            fixed = {d.value for d in column if d is not None and d.is_static and d != 1}
            result[i] = Dim.of(fixed.pop()) if len(fixed) == 1 else None
    slacks = _slacks([s for s in known if len(s) == rank])
    return tuple(d if d is None or not slacks else _one_of_valid_runs(d, slacks) for d in result)


def _slacks(shapes: Sequence[Sequence[MaybeDim]]) -> list[Dim]:
    """What is not negative where a broadcast of `shapes` is valid: n - d of an axis with extents min(n, d) and d."""
    found = []
    for column in zip(*shapes, strict=True):
        for dim in column:
            atom = None if dim is None else _atom_of(dim)
            if isinstance(atom, Opaque) and atom.op == "min" and len(atom.args) == 2:
                number, other = sorted(atom.args, key=lambda d: not d.is_static)
                if number.is_static and number.value > 1 and other in column:  # min(1, d) may be 1 beside any d
                    found.append(number - other)
    return found


def _one_of_valid_runs(dim: Dim, slacks: Sequence[Dim]) -> Dim:
    """1 for an extent that is 1 where no slack is negative: max(0, min(1024-past, 1)), the rows of a mask of 1024
    positions that has past+1 columns beside as many keys."""
    known: dict[str | Opaque, Dim] = {}
    for atom in dim.atoms():
        if isinstance(atom, Opaque) and atom.op == "min" and len(atom.args) == 2:
            for small, large in (atom.args, atom.args[::-1]):
                if any(at_most(small + slack, large) for slack in slacks):
                    known[atom] = small
    return Dim.of(1) if dim.substitute(known) == 1 else dim


def _atom_of(dim: Dim) -> str | Opaque | None:
    """The atom that is all of `dim`."""
    if len(dim.terms) != 1:
        return None
    (atoms, count), = dim.terms
    return atoms[0] if count == 1 and len(atoms) == 1 else None


def slice_length(dim: MaybeDim, start: MaybeDim, end: MaybeDim, step: int) -> MaybeDim:
    """The extent that ONNX's Slice leaves of `dim`, with its clamping of out-of-range starts and ends."""
    if step == 0 or start is None or end is None:
        return None
    if dim is None:
        return None
    if dim.is_static and start.is_static and end.is_static:
        return Dim.of(len(slice_indices(dim.value, start.value, end.value, step)))
    zero = Dim.of(0)
    if step < 0:
        whole = (start == -1 or _beyond(start)) and end.is_static and end.value <= -_HUGE
        return dim.ceildiv(-step) if whole else None
    first, last = _from_start(start, dim), _from_start(end, dim)
    if first is None or last is None:
        return None
    from_back = bounds(start)[1]
    if last == dim and from_back is not None and from_back < 0:
        length = smallest(-start, dim)
    elif last == dim:
        length = dim - first
    else:
        length = smallest(last - first, dim - first)
    length = length if is_nonnegative(length) else largest(length, zero)
    return length if step == 1 else length.ceildiv(step)


def slice_indices(size: int, start: int, end: int, step: int) -> range:
    """The elements that Slice takes of an axis: negative ends count from the back, then both are clamped."""
    first, last = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return range(min(max(first, 0), size), min(max(last, 0), size), step)
    return range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step)


def _beyond(index: Dim) -> bool:
    return index.is_static and index.value >= _HUGE


def _from_start(index: Dim, dim: Dim) -> Dim | None:
    """`index` counted from the start, at least 0; not yet limited to `dim` unless that is certain."""
    if _beyond(index):
        return dim
    low, high = bounds(index)
    if at_most(dim, -index) and is_nonnegative(-index):
        return Dim.of(0)  # right even for an empty axis, where -0 does not count from the end
    if low is not None and low >= 0:
        return dim if at_most(dim, index) else index
    if high is not None and high < 0:
        if index.is_static and index.value <= -_HUGE:
            return Dim.of(0)
        shifted = dim + index
        return shifted if is_nonnegative(shifted) else largest(shifted, Dim.of(0))
    return None
