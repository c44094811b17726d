"""A small writer of ONNX graphs that names values the way PyTorch's TorchScript exporter does."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
DimSize = int | str  # an extent, or the name of a symbolic one
# A scalar known when the graph is written (int) or computed by the graph (the value's name).
Size = int | str

# The exporter writes the newest IR version its opset allowed; ORT's oldest supported release reads 9.
_IR_VERSION = {23: 11, 20: 10}


class Graph:
    """Collects nodes, initializers, inputs and outputs. Values are their names.

    Weights are drawn from `rng` (seeded), so the same calls give the same model.
    """

    def __init__(self, name: str, *, opset: int = 17, seed: int = 0) -> None:
        self.name = name
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._scope: list[str] = []
        self._counts: Counter[str] = Counter()
        self.metadata: dict[str, str] = {}

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Values and weights made inside are named after this module, as in "/layer.0/attention/…"."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def _fresh(self, op_type: str) -> str:
        stem = "/" + "/".join([*self._scope, op_type])
        count = self._counts[stem]
        self._counts[stem] += 1
        return stem if count == 0 else f"{stem}_{count}"

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name."""
        return self.ops(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def ops(self, op_type: str, count: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        """Adds a node with `count` outputs and returns their names."""
        name = self._fresh(op_type)
        outputs = [f"{name}_output_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(op_type, list(inputs), outputs, name=name, domain=domain, **attributes))
        return outputs

    def const(self, value: float | int | Sequence[Any] | Array, dtype: Any = None) -> str:
        """A Constant node; float32 or int64 unless `dtype` or the array says otherwise."""
        if isinstance(value, np.ndarray) and dtype is None:
            array = value
        else:
            if dtype is None:
                dtype = np.float32 if np.asarray(value).dtype.kind == "f" else np.int64
            array = np.asarray(value, dtype)
        return self.op("Constant", value=numpy_helper.from_array(np.ascontiguousarray(array)
                                                                 if array.ndim else array))

    def weight(self, name: str, array: Array) -> str:
        """An initializer named "scope.name", as PyTorch names parameters."""
        full = ".".join([*self._scope, name]).replace("/", ".")
        self._counts[full] += 1
        if self._counts[full] > 1:
            raise ValueError(f"weight {full} is defined twice")
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), full))
        return full

    def normal(self, *shape: int, std: float = 1.0, mean: float = 0.0) -> npt.NDArray[np.float32]:
        """Seeded normal float32 values."""
        values = self.rng.standard_normal(shape, dtype=np.float32)
        return (values * np.float32(std) + np.float32(mean)).astype(np.float32)

    def input(self, name: str, shape: Sequence[DimSize], dtype: Any = np.float32) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, _tensor_type(dtype), list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[DimSize], dtype: Any = np.float32) -> None:
        """Makes `value` a graph output called `name` by renaming it, as the exporter does."""
        taken = {o.name for o in self._outputs} | {i.name for i in self._inputs}
        if value in taken:
            value = self.op("Identity", value)
        for node in self._nodes:
            for fields in (node.input, node.output):
                for i, used in enumerate(fields):
                    if used == value:
                        fields[i] = name
        self._outputs.append(helper.make_tensor_value_info(name, _tensor_type(dtype), list(shape)))

    def finish(self) -> onnx.ModelProto:
        """The checked model. Raises onnx.checker.ValidationError if what was written is not valid."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._initializers)
        others = sorted({node.domain for node in self._nodes} - {""})
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in others)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="tilegraph-models")
        model.ir_version = next((v for opset, v in _IR_VERSION.items() if self.opset >= opset), 8)
        helper.set_model_props(model, self.metadata)
        if model.ByteSize() < 2**31 - 1:
            onnx.checker.check_model(model)
        return model


def _tensor_type(dtype: Any) -> int:
    kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    if kind == TensorProto.UNDEFINED:
        raise ValueError(f"no ONNX type for {dtype}")
    return kind
