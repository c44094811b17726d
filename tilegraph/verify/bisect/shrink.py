"""The smallest piece of a model that still shows a fault.

After delta debugging (Zeller, Hildebrandt: Simplifying and Isolating Failure-Inducing Input, 2002), with two halving
searches first, because graphs are ordered: the shortest prefix, then the shortest suffix of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilegraph.verify.bisect.cut import Array, ancestors, constant_nodes, cut
from tilegraph.verify.run import Feeds


@dataclass(frozen=True)
class Piece:
    """A model that shows the fault with `feeds`; `nodes` are its nodes that are not constants."""

    model: ir.Model
    feeds: Feeds
    nodes: list[str]
    outputs: list[str]


class Shrinker:
    """`faulty` runs a piece and says whether it shows the fault; `limit` is in seconds."""

    def __init__(self, model: ir.Model, values: dict[str, Array], faulty: Callable[[ir.Model, Feeds], bool],
                 limit: float) -> None:
        self.model = model
        self.values = values
        self.faulty = faulty
        self.until = time.monotonic() + limit
        self.tried = 0
        fixed = constant_nodes(model.graph)
        self.fixed = {n.name or "" for n in fixed}
        self.nodes = [n for n in model.graph if n not in fixed]
        self._made = {v.name: v for n in model.graph for v in n.outputs if v.name}

    def run(self, suspects: list[str]) -> Piece | None:
        """The smallest piece found, starting from the graph outputs `suspects`; None if none of them alone shows the
        fault in this way, or if a value that is needed cannot be an input."""
        best = next((p for name in suspects if (p := self._try(self._before(name), [name])) is not None), None)
        if best is None:
            best = self._try([n.name or "" for n in self.nodes], suspects)
        if best is None:
            return None
        best = self._shorten_end(best)
        best = self._shorten_start(best)
        return self._drop_some(best)

    @property
    def time_is_up(self) -> bool:
        return time.monotonic() > self.until

    def _before(self, name: str) -> list[str]:
        needed = ancestors([self._made[name]]) if name in self._made else set()
        return [n.name or "" for n in self.nodes if n in needed]

    def _try(self, names: list[str], outputs: list[str]) -> Piece | None:
        if not names or self.time_is_up:
            return None
        made = cut(self.model, {*names, *self.fixed}, outputs, self.values)
        if made is None:
            return None
        self.tried += 1
        return Piece(*made, names, outputs) if self.faulty(*made) else None

    def _shorten_end(self, best: Piece) -> Piece:
        """An earlier value of the piece as its only output."""
        low, high = 0, len(best.nodes) - 1
        while low < high and not self.time_is_up:
            middle = (low + high) // 2
            name = self._main_output(best.nodes[middle])
            found = self._try([n for n in self._before(name) if n in best.nodes], [name]) if name else None
            if found is not None:
                best = found
                low, high = 0, min(middle, len(best.nodes) - 1)
            else:
                low = middle + 1
        return best

    def _shorten_start(self, best: Piece) -> Piece:
        """A later start, with recorded values in the place of what came before."""
        low, high = 0, len(best.nodes) - 1
        whole = best.nodes
        while low < high and not self.time_is_up:
            middle = (low + high + 1) // 2
            found = self._try(whole[middle:], best.outputs)
            if found is not None:
                best, low = found, middle
            else:
                high = middle - 1
        return best

    def _drop_some(self, best: Piece) -> Piece:
        """Every node whose absence does not matter becomes an input, larger groups first."""
        size = max(1, len(best.nodes) // 2)
        while not self.time_is_up:
            at, dropped = 0, False
            while at < len(best.nodes) and not self.time_is_up:
                rest = best.nodes[:at] + best.nodes[at + size:]
                found = self._try(rest, best.outputs) if self._still_made(rest, best.outputs) else None
                if found is not None:
                    best, dropped = found, True
                else:
                    at += size
            if size == 1 and not dropped:
                break
            size = max(1, size // 2)
        return best

    def _still_made(self, names: list[str], outputs: list[str]) -> bool:
        kept = {*names, *self.fixed}
        return all((p := self._made[o].producer()) is not None and p.name in kept for o in outputs)

    def _main_output(self, node: str) -> str:
        for value in (v for n in self.nodes if n.name == node for v in n.outputs):
            array = self.values.get(value.name or "")
            if array is not None and array.size and np.unique(array).size > 1:
                return value.name or ""
        return ""
