"""A first cost model for regions on a CPU: what ONNX Runtime would need for the nodes, and what one kernel needs.

Constants are round figures measured on a Zen 5 core; they only need to rank. Times in µs for one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilegraph.spec.dims import Dim

ASSUMED_EXTENT = 64  # what a symbolic extent is taken to be

Extents = tuple[tuple[str, int], ...]  # symbol -> what it is taken to be instead

_ORT_NODE_US = 1.2  # dispatch, output allocation and shape work of one node
_EP_NODE_US = 0.4  # an EP node, and what each input that is not constant adds
_EP_INPUT_US = 0.08
_BYTES_PER_US = 60_000.0  # moved by one core out of L2 and L3, and now and then out of memory
_VECTOR_NS = 0.11  # one vector instruction in a loop that keeps the pipes busy
_MIN_GAIN_US = 0.8
_MIN_RATIO = 1.08

# ORT's time for one element beyond moving the bytes, in ns: one operator on [1, 512, 3072], less Relu.
_ORT_ELEMENT = 0.02
_ORT_OPS = {
    "Abs": 0.0, "Add": 0.0, "And": 0.03, "Cast": 0.05, "Clip": 0.02, "Concat": 0.04, "Cos": 1.1, "Div": 0.05,
    "Equal": 0.1, "Erf": 0.24, "Exp": 0.05, "Expand": 0.03, "Floor": 0.18, "Gelu": 0.33, "BiasGelu": 0.4,
    "FastGelu": 0.4,
    "Greater": 0.1, "GreaterOrEqual": 0.1, "HardSigmoid": 0.03, "HardSwish": 0.16, "LayerNormalization": 0.28,
    "RMSNormalization": 0.2, "SkipLayerNormalization": 0.3, "GroupNormalization": 0.35, "InstanceNormalization": 0.3,
    "Less": 0.1, "LessOrEqual": 0.1, "Log": 1.3, "LogSoftmax": 0.3, "LRN": 20.0, "Max": 0.05, "Min": 0.05,
    "Mish": 15.0, "Mod": 1.0,
    "Mul": 0.0, "Neg": 0.02, "Not": 0.1, "Or": 0.1, "Pow": 0.2, "Reciprocal": 0.09, "ReduceL2": 0.1, "ReduceMax": 0.04,
    "ReduceMean": 0.04, "ReduceSum": 0.04, "Relu": 0.0, "Round": 0.1, "Sigmoid": 0.16, "Sin": 1.1, "Slice": 0.03,
    "Softmax": 0.11, "Softplus": 9.5, "Split": 0.03, "Sqrt": 0.2, "Sub": 0.0, "Tanh": 0.14, "Tile": 0.1,
    "Transpose": 0.06, "Trilu": 0.2, "Where": 1.0,
}
_FREE = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


@dataclass(frozen=True)
class RegionCost:
    """Estimated µs, with ONNX Runtime and as one kernel."""

    runtime_us: float
    kernel_us: float
    nodes: int

    @property
    def wins(self) -> bool:
        return self.runtime_us - self.kernel_us >= _MIN_GAIN_US and self.runtime_us >= _MIN_RATIO * self.kernel_us

    def __str__(self) -> str:
        return f"estimated {self.kernel_us:.1f} µs against {self.runtime_us:.1f} µs in ONNX Runtime"


def estimate(dim: Dim, known: Extents = ()) -> int:
    """A number for a dim: symbols count what `known` says or ASSUMED_EXTENT, and those that name an expression count
    its value."""
    return max(dim.evaluate({symbol: _assumed(symbol, known) for symbol in dim.symbols}), 0)


@lru_cache(maxsize=16384)
def _assumed(symbol: str, known: Extents) -> int:
    """A kernel's extents are symbols named after the model's: "((h-1)//2)+1" is half of h, not ASSUMED_EXTENT."""
    named = Dim.of(symbol)
    if named.bare_symbol is None:
        return estimate(named, known)
    return dict(known).get(symbol, ASSUMED_EXTENT)


class CostModel:
    """Prices one node in ONNX Runtime and one kernel of ours."""

    def node_us(self, op_type: str, elements: int, bytes_moved: int) -> float:
        if op_type in _FREE:
            return _ORT_NODE_US
        return _ORT_NODE_US + bytes_moved / _BYTES_PER_US + elements * _ORT_OPS.get(op_type, _ORT_ELEMENT) / 1e3

    def kernel_us(self, *, vectors: float, bytes_moved: int, inputs: int) -> float:
        """`vectors`: vector instructions in all; `inputs`: those that are not constant."""
        busy = max(vectors * _VECTOR_NS / 1e3, bytes_moved / _BYTES_PER_US)
        return _EP_NODE_US + _EP_INPUT_US * inputs + busy

    def reorder_us(self, bytes_moved: int) -> float:
        """What ONNX Runtime pays to bring a blocked convolution value into plain layout, or back."""
        return 2 * bytes_moved / _BYTES_PER_US + _ORT_NODE_US


