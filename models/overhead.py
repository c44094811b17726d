"""The cost of one plugin node: a model with many tiny partitions against the same model without them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from models.builders.graph import Graph
from models.pipeline import OUT
from tilegraph.bench import Peer, bench
from tilegraph.bench.peers import peer_for
from tilegraph.bench.stats import median_interval
from tilegraph.errors import TilegraphError

LIMIT_S = 1.2e-6
_NODES = 40
_WIDTH = 16


@dataclass(frozen=True)
class Overhead:
    """Seconds a node, kernel included, with its interval; `constants` weights go into every node."""

    constants: int
    nodes: int
    seconds: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        return "pass" if self.seconds <= LIMIT_S else "short"

    def to_json(self) -> dict[str, Any]:
        return {"constants": self.constants, "nodes": self.nodes, "seconds": self.seconds, "low": self.low,
                "high": self.high, "limit": LIMIT_S, "verdict": self.verdict}


def overhead_model(constants: int, nodes: int = _NODES, *, regions: bool = True) -> onnx.ModelProto:
    """`nodes` times a pointwise region on [16] floats with `constants` weights (added and multiplied in turn, so that
    nothing folds), then ScatterElements, which stays with ONNX Runtime. Without `regions` the ScatterElements alone.

    All regions use the same weights: ONNX Runtime itself spends some 15 ns a run on every initializer of a model, which
    the original pays too and which is not the node's."""
    g = Graph("overhead")
    x = g.input("x", [_WIDTH])
    places = g.weight("places", np.arange(_WIDTH, dtype=np.int64)[::-1].copy())
    weights = [g.weight(f"w{i}", g.normal(_WIDTH, std=0.01, mean=float(i % 2))) for i in range(constants)] \
        if regions else []
    for _ in range(nodes):
        if regions:
            x = g.op("Mul", x, x)
            for i, weight in enumerate(weights):
                x = g.op("Mul" if i % 2 else "Add", x, weight)
            x = g.op("Tanh", x)
        x = g.op("ScatterElements", x, places, x)
    g.output(x, "y", [_WIDTH])
    return g.finish()


def measure(constants: int, *, runs: int = 30, out: Path = OUT) -> Overhead:
    """Raises TilegraphError if the compiler did not make one partition of each region: then this measures nothing."""
    from tilegraph.compiler import optimize

    out.mkdir(parents=True, exist_ok=True)
    paths = {}
    for regions in (True, False):
        paths[regions] = out / f"overhead-{constants}-{'with' if regions else 'without'}.onnx"
        onnx.save(overhead_model(constants, regions=regions), paths[regions])
    folder = Path(optimize(paths[True], target="cpu", offload="all").save(out / f"overhead-{constants}.tilegraph",
                                                                          force=True))
    compiled = onnx.load(folder / "model.onnx", load_external_data=False)
    nodes = sum(n.op_type == "EPContext" for n in compiled.graph.node)
    others = sum(n.op_type == "ScatterElements" for n in compiled.graph.node)
    if (nodes, others) != (_NODES, _NODES):
        raise TilegraphError(f"overhead with {constants} constants: {nodes} plugin nodes and {others} ScatterElements "
                             f"where {_NODES} of each are needed, so there is nothing to compare")
    feeds = {"x": np.linspace(-1, 1, _WIDTH, dtype=np.float32)}
    peers = [peer_for(folder), Peer("ScatterElements only", paths[False])]
    with_regions, without = bench(peers, runs=runs, inputs=feeds, create=False).models
    each = [(a - b) / _NODES for a, b in zip(with_regions.samples_s, without.samples_s, strict=True)]
    interval = median_interval(each)
    return Overhead(constants, _NODES, interval.median, interval.low, interval.high)
