"""OpenVINO's CPU plugin on the model as it is, in exact float32.

Its defaults for latency are kept but for three: no lower precision for float32 (`INFERENCE_PRECISION_HINT`), no dynamic
quantization of activations (`DYNAMIC_QUANTIZATION_GROUP_SIZE`), and the worker places the threads, as for every peer.
A peer's `provider_options` fix the sizes of inputs: name -> a JSON list.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tilegraph.bench.engines import Array, chosen, contiguous


def load(peer: dict[str, Any]) -> None:
    import openvino  # noqa: F401


def settings(peer: dict[str, Any], threads: int) -> dict[str, Any]:
    """What compile_model gets; the peer's `options` come last and win."""
    return {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False, **peer["options"]}


def create(peer: dict[str, Any], threads: int) -> Request:
    """Raises what OpenVINO raises."""
    import openvino

    core = openvino.Core()
    sizes = {name: json.loads(text) for name, text in peer["provider_options"].items()}
    # Sizes at conversion: parts of some models can be converted at known sizes only.
    model = openvino.convert_model(peer["path"], input=list(sizes.items())) if sizes else core.read_model(peer["path"])
    return Request(core.compile_model(model, "CPU", settings(peer, threads)))


class Request:
    """One inference request that reads the same memory on every run."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._kept: list[Any] = []

    def bind(self, feeds: dict[str, Array]) -> str:
        import openvino

        names = [next((n for n in port.get_names() if n in feeds), port.get_any_name())
                 for port in self._compiled.inputs]
        for port, array in zip(self._compiled.inputs, chosen(names, feeds).values(), strict=True):
            shared = contiguous(array)
            tensor = openvino.Tensor(shared, shared_memory=True) if shared.ndim else openvino.Tensor(shared)
            self._kept += [shared, tensor]
            self._request.set_tensor(port, tensor)
        self.run()
        return "bound"

    def run(self) -> None:
        # Nothing is copied: the inputs are set, the outputs shared (start_async and wait take 4 µs more).
        self._request.infer({}, share_inputs=True, share_outputs=True)

    def outputs(self) -> list[Array]:
        return [np.array(self._request.get_output_tensor(i).data) for i in range(len(self._compiled.outputs))]
