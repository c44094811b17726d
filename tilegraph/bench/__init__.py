"""Times models side by side in one run; see docs/bench.md."""

from tilegraph.bench.measure import bench
from tilegraph.bench.peers import Peer, peer_for
from tilegraph.bench.process import WorkerDied, WorkerRefused
from tilegraph.bench.result import BenchResult, ModelTiming
from tilegraph.bench.table import table

__all__ = ["BenchResult", "ModelTiming", "Peer", "WorkerDied", "WorkerRefused", "bench", "peer_for", "table"]
