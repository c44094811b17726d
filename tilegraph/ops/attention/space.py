"""What an attention kernel evaluates, at its loops: batch loops, query i, key j, and the two inner dims d and e."""

from __future__ import annotations

from dataclasses import dataclass

from tilegraph.ops.index import Ix, Var
from tilegraph.ops.space import Inst


@dataclass(frozen=True, eq=False)
class Score(Inst):
    """The product of query i and key j, a leaf of the score modifier (float32)."""


@dataclass(frozen=True)
class AttentionSpace:
    """out[batch, i, e] = sum_j softmax_j(x)[i, j] * v[batch, j, e], x made of sum_d q[batch, i, d] * k[batch, j, d].

    `q` is evaluated at (batch, i, d), `k` at (batch, j, d), `v` at (batch, j, e), and `x` at (batch, i, j) with a
    `Score` leaf. `depth` and `width` are the extents of d and e. `guarded`: weights that are NaN count as 0.
    `hides`: a term of x; where it is minus infinity for all keys of a row, the row's weights are 0.
    `address`: where element (batch, i, e) of the output lies.
    """

    batch: tuple[Var, ...]
    i: Var
    j: Var
    d: Var
    e: Var
    q: Inst
    k: Inst
    v: Inst
    x: Inst
    depth: int
    width: int
    guarded: bool
    address: Ix
    hides: Inst | None = None
