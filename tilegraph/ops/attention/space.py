"""What an attention kernel evaluates, at its loops: batch loops, query i, key j, and the two inner dims d and e."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilegraph.ops.index import Ix, Var
from tilegraph.ops.space import Apply, Fold, Inst, Literal, Load, insts
from tilegraph.spec.dims import Dim
from tilegraph.spec.schedule import DEFAULT, Schedule

FEW = 8  # queries; with fewer, keys are read where they are instead of being packed
PARTIAL = 1 << 20  # the slot of what pieces leave, in the kernel that adds them up
PIECE_HEAD = 16  # elements, as are the rows of pieces: whole cache lines
TABLE = PARTIAL + 1  # the slot of what a table says about blocks of masks, in the kernel that reads it
MASKED_BLOCK = (64, 64)  # queries and keys of a block where a mask may hide some
ENOUGH = 16  # tasks that are enough for the threads of most machines
LEAST = 32  # keys that are worth a piece


@dataclass(frozen=True, eq=False)
class Score(Inst):
    """The product of query i and key j, a leaf of the score modifier (float32)."""


@dataclass(frozen=True, eq=False)
class Sunk(Fold):
    """A reduction over the keys and one score more: `extra` is what `operand` is there."""

    extra: Inst

    @property
    def args(self) -> tuple[Inst, ...]:
        return (self.operand, self.extra)


@dataclass(frozen=True)
class Part:
    """Keys (or values) from key `start` on, as many as `var` counts: `inst` at (batch, var, d) or (batch, var, e).

    `behind`: how many keys (int64) a run puts before them besides; such a part lies over the parts before it.
    """

    var: Var
    start: Dim
    inst: Inst
    behind: Inst | None = None


@dataclass(frozen=True, eq=False)
class Cache:
    """Keys or values that are concatenated inside: the kernel writes `parts`, one after the other, to an output of its
    own and reads them there. `load`: element (batch, j, `inner`) of that output."""

    load: Load
    inner: Var
    parts: tuple[Part, ...]

    @property
    def moves(self) -> bool:
        """Whether a run says where a part begins."""
        return any(part.behind is not None for part in self.parts)

    def owners(self, batch: tuple[Var, ...]) -> tuple[Var, ...]:
        """The batch loops along which it is the same."""
        return tuple(v for v in batch if v not in self.load.address.vars())


@dataclass(frozen=True)
class AttentionSpace:
    """out[batch, i, e] = sum_j softmax_j(x)[i, j] * v[batch, j, e], x made of sum_d q[batch, i, d] * k[batch, j, d].

    `q` is evaluated at (batch, i, d), `k` at (batch, j, d), `v` at (batch, j, e), and `x` at (batch, i, j) with a
    `Score` leaf. `depth` and `width` are the extents of d and e. `guarded`: weights that are NaN count as 0.
    `hides`: a term of x; where it is minus infinity for all keys of a row, the row's weights are 0.
    `address`: where element (batch, i, e) of the output lies. `stored`: the output's ONNX dtype; all is float32 inside.
    `caches`: concatenations that the kernel makes on the way, its outputs from 1 on.
    `sink`: a further score of each row, at (batch, i), whose weight goes to no value: exp(sink) is one more term of the
    row's sum (StreamingLLM, Xiao et al. 2023, and gpt-oss have a learned one for each head).
    `length`: how many of the keys there are (int64, at batch), where a run says it; the others are not read.
    `trusts`: keys that few queries do not see, and their values, are taken to be finite.
    `schedule`: what the generator need not decide.
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
    stored: str = "float"
    caches: tuple[Cache, ...] = ()
    sink: Inst | None = None
    length: Inst | None = None
    trusts: bool = False
    schedule: Schedule = DEFAULT

    @property
    def sharing(self) -> tuple[Var, ...]:
        """The innermost batch loops along which keys and values are the same: query heads of one group."""
        moving = set().union(*(one.address.vars() for part in (self.k, self.v) for one in insts(part)
                               if isinstance(one, Load)))
        found: list[Var] = []
        for var in reversed(self.batch):
            if var in moving or var.extent.as_int() is None:
                break
            found.insert(0, var)
        return tuple(found)

    @property
    def streamed(self) -> tuple[Load, float, int] | None:
        """For keys that can be read in place: the operand, what it is multiplied by, and how many elements at a time.

        They must be contiguous, at most scaled by one number, and of a depth that vectors of 4 or more divide.
        """
        load, factor = self.k, 1.0
        if isinstance(load, Apply) and load.point.key.partition("<")[0] == "Mul":
            one, other = load.args
            if isinstance(one, Literal):
                one, other = other, one
            if not isinstance(other, Literal):
                return None
            load, factor = one, float(other.value)
        step = self.depth & -self.depth
        if not isinstance(load, Load) or load.address.coef(self.d) != 1 or step < 4:
            return None
        return load, factor, step

    @property
    def has_few(self) -> bool | None:
        """Whether there are fewer than `FEW` queries; None: a run decides. False where keys are not `streamed`."""
        count = self.i.extent.as_int()
        if self.streamed is None:
            return False
        return None if count is None else count < FEW

    @property
    def caches_apart(self) -> bool:
        """Whether a kernel of its own makes caches before this one reads them: where several tasks read the same, or
        a run says where new keys go. Else the one task that reads them makes them on the way."""
        return any(cache.moves for cache in self.caches) or (bool(self.caches) and self.has_few is not True)

    @property
    def pieces(self) -> int:
        """Into how many pieces tasks may cut the keys of few queries: as many as heads share them, so that a piece is
        as much work as a head would be. 1 where batch and other heads are work enough, and where rows without a key
        need all values at the end."""
        heads = math.prod(v.extent.value for v in self.sharing)
        others = math.prod(v.extent.as_int() or 1 for v in self.batch if v not in self.sharing)
        keys = self.j.extent.as_int()
        enough = others >= ENOUGH or (keys is not None and keys < heads * LEAST)
        alone = self.guarded or self.hides is not None
        return 1 if enough or alone or self.has_few is False else heads

    @property
    def tables(self) -> tuple[Load, ...]:
        """Masks in memory that change along queries and keys, and that several heads or batches share: a kernel of its
        own finds once a run what each block of them holds."""
        if self.has_few is True or self.length is not None:
            return ()
        found = [one for one in insts(self.x) if isinstance(one, Load) and one.dtype in ("bool", "float32")
                 and {self.i, self.j} <= one.address.vars() and one.address.coef(self.j) == 1
                 and not one.args and not one.present]
        used = set().union(*(one.address.vars() for one in found))
        return tuple(found) if any(v.extent != 1 and v not in used for v in self.batch) else ()

    @property
    def table_batch(self) -> tuple[Var, ...]:
        """The batch loops along which one of `tables` changes."""
        used = set().union(*(one.address.vars() for one in self.tables))
        return tuple(v for v in self.batch if v in used)

    @property
    def table(self) -> Dim:
        """How many float32 elements a table takes: [`table_batch`, block of queries, block of keys, mask, 2], the least
        and the greatest element of each; 0 and 1 for bools."""
        blocks = [v.extent.ceildiv(size or usual) for v, size, usual in zip(
            (self.i, self.j), (self.schedule.rows, self.schedule.columns), MASKED_BLOCK, strict=True)]
        return Dim.product([*(v.extent for v in self.table_batch), *blocks]) * (2 * len(self.tables))

    @property
    def piece_pitch(self) -> int:
        """float32 elements that a piece leaves for each row: the row's maximum, its sum, and from `PIECE_HEAD` on the
        weighted values."""
        return PIECE_HEAD + -(-self.width // PIECE_HEAD) * PIECE_HEAD

    @property
    def partial(self) -> Dim:
        """How many float32 elements the pieces leave: [batch and other heads, piece, head and query, `piece_pitch`]."""
        heads = self.pieces
        others = Dim.product(v.extent for v in self.batch if v not in self.sharing)
        return others * (heads * heads * self.piece_pitch) * Dim.min(self.i.extent, FEW - 1)
