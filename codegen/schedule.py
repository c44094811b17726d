"""What a kernel evaluates in which pass over the columns, and what it keeps between passes.

A region with k chained reductions makes up to k+1 passes over each row. A value that an earlier pass computed is
recomputed when that is cheap and kept in the row's scratch (in L1 or L2) when it is not; a value that is an output
anyway is read back from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilegraph.ops.index import Var
from tilegraph.ops.space import Apply, Choose, Fold, Inst, Literal, Load, Place, Running, Space, Store

KEEP_COST = 6  # vector instructions: below it, recomputing beats a store and a load


@dataclass
class Passes:
    """`folds[p]` and `stores[p]` are finished in pass p; `kept` are the values that scratch holds, by first pass."""

    count: int
    folds: list[list[Fold]]
    stores: list[list[Store]]
    level: dict[int, int]
    column: dict[int, bool]
    kept: list[Inst] = field(default_factory=list)
    from_output: dict[int, Store] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)  # for values read back from memory: the pass that writes them

    def available(self, inst: Inst, p: int) -> bool:
        """Whether a pass before `p` left `inst` in memory."""
        return self.first.get(id(inst), p) < p


def column_dependent(space: Space) -> dict[int, bool]:
    """Which values change along the columns."""
    cols = set(space.cols)
    found: dict[int, bool] = {}
    for inst in space.insts():
        match inst:
            case Load():
                found[id(inst)] = bool(inst.address.vars() & cols)  # those of computed indices, too
            case Place():
                found[id(inst)] = bool(inst.index.vars() & cols)
            case Running():
                found[id(inst)] = True
            case Fold() | Literal():
                found[id(inst)] = False
            case Choose():
                found[id(inst)] = inst.var in cols or any(found[id(a)] for a in inst.args)
            case _:
                found[id(inst)] = any(found[id(a)] for a in inst.args)
    return found


def divide(space: Space) -> Passes:
    """Assigns reductions and stores to passes and chooses what to keep."""
    column = column_dependent(space)
    level: dict[int, int] = {}
    for inst in space.insts():
        below = max((level[id(a)] for a in inst.args), default=0)
        level[id(inst)] = below + 1 if isinstance(inst, Fold) else below
    folds = [i for i in space.insts() if isinstance(i, Fold)]
    last = max([level[id(f)] - 1 for f in folds] + [level[id(s.inst)] for s in space.stores if not s.per_row],
               default=0)
    passes = Passes(last + 1, [[] for _ in range(last + 1)], [[] for _ in range(last + 1)], level, column)
    for fold in folds:
        passes.folds[level[id(fold)] - 1].append(fold)
    for store in space.stores:
        if not store.per_row:
            passes.stores[level[id(store.inst)]].append(store)
    _keep(passes)
    return passes


def targets(passes: Passes, p: int) -> list[Inst]:
    return [f.operand for f in passes.folds[p]] + [s.inst for s in passes.stores[p]]


def _keep(passes: Passes) -> None:
    written = {id(s.inst): s for stores in passes.stores for s in stores if s.stored in ("float", "double")}
    computed: dict[int, int] = {}
    kept: dict[int, Inst] = {}
    for p in range(passes.count):
        # Below a Choose a value is only computed for some columns or rows, so nothing is kept from there.
        fresh: tuple[set[int], set[int]] = (set(), set())
        stack = [(inst, True) for inst in targets(passes, p)]
        while stack:
            inst, always = stack.pop()
            if id(inst) in fresh[True] or id(inst) in fresh[always] or id(inst) in kept:
                continue
            if not passes.column[id(inst)]:
                continue
            if id(inst) in computed and isinstance(inst, Apply) and inst.dtype != "bool":
                store = written.get(id(inst))
                if store is not None and passes.level[id(inst)] < p:
                    passes.from_output[id(inst)] = store
                    passes.first[id(inst)] = computed[id(inst)]
                    continue
                if _cost(inst, kept, passes) >= KEEP_COST:
                    kept[id(inst)] = inst
                    passes.first[id(inst)] = computed[id(inst)]
                    continue
            fresh[always].add(id(inst))
            stack.extend((a, always and not isinstance(inst, Choose)) for a in inst.args)
        for one in fresh[True]:
            computed.setdefault(one, p)
    passes.kept = list(kept.values())


def _cost(inst: Inst, kept: dict[int, Inst], passes: Passes) -> int:
    """Vector instructions to recompute `inst` from memory and row values."""
    seen: set[int] = set()
    total = 0
    stack = [inst]
    while stack:
        one = stack.pop()
        if id(one) in seen or not passes.column[id(one)] or id(one) in kept:
            continue
        seen.add(id(one))
        if isinstance(one, Apply):
            total += one.point.cost
        elif isinstance(one, Load):
            total += 1
        stack.extend(one.args)
    return total


def column_cost(passes: Passes) -> int:
    """Vector instructions per vector of columns, all passes together, recomputation included."""
    total = 0
    for p in range(passes.count):
        seen: set[int] = set()
        stack = list(targets(passes, p))
        while stack:
            one = stack.pop()
            if id(one) in seen or not passes.column[id(one)]:
                continue
            seen.add(id(one))
            if passes.available(one, p):
                total += 1
                continue
            total += one.point.cost if isinstance(one, Apply) else 1
            stack.extend(one.args)
        total += len(passes.folds[p]) + len(passes.stores[p])
    return total


def loops_of(space: Space) -> tuple[Var, ...]:
    return (*space.rows, *space.cols)
