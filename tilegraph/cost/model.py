"""A first cost model for regions on a CPU: what ONNX Runtime would need for the nodes, and what one kernel needs.

Constants are round figures from runs of the fused chains on AVX-512 machines; they only need to rank. Times in µs for
one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilegraph.spec.dims import Dim

ASSUMED_EXTENT = 64  # what a symbolic extent is taken to be

_ORT_NODE_US = 1.2  # dispatch, output allocation and shape work of one node
_EP_NODE_US = 0.7  # an EP node, and what each input that is not constant adds
_EP_INPUT_US = 0.1
_BYTES_PER_US = 12_000.0  # sustained by one core through L2 and L3
_VECTOR_NS = 0.35  # one vector instruction, kernel overheads included
_MIN_GAIN_US = 0.8
_MIN_RATIO = 1.08

# ORT's time for one element beyond moving the bytes, in ns. What is not listed takes _ORT_ELEMENT.
_ORT_ELEMENT = 0.06
_ORT_OPS = {
    "Erf": 0.9, "Tanh": 0.5, "Exp": 0.35, "Log": 0.6, "Sigmoid": 0.5, "Softmax": 0.5, "LogSoftmax": 0.7, "Pow": 1.5,
    "Sqrt": 0.25, "Div": 0.12, "Where": 0.5, "Cast": 0.15, "Gelu": 1.0, "FastGelu": 0.6, "BiasGelu": 1.0,
    "LayerNormalization": 0.3, "RMSNormalization": 0.3, "SkipLayerNormalization": 0.4, "Softplus": 3.0,
    "Sin": 3.0, "Cos": 3.0, "Mod": 1.0, "Not": 0.3, "And": 0.5, "Or": 0.5, "Equal": 0.5, "Less": 0.4,
    "LessOrEqual": 0.5, "Greater": 0.4, "GreaterOrEqual": 0.5, "Transpose": 0.35, "Expand": 0.4, "Concat": 0.12,
    "Slice": 0.2, "Split": 0.12, "Trilu": 0.5, "Range": 0.5, "Tile": 0.4, "ReduceMean": 0.15, "ReduceSum": 0.15,
    "ReduceMax": 0.15, "ReduceL2": 0.3, "HardSigmoid": 0.1, "HardSwish": 0.15, "Round": 0.3, "Mish": 3.5,
    "InstanceNormalization": 0.4, "GroupNormalization": 0.5,
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


def estimate(dim: Dim) -> int:
    """A number for a dim: symbols count ASSUMED_EXTENT."""
    return max(dim.evaluate(dict.fromkeys(dim.symbols, ASSUMED_EXTENT)), 0)


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


