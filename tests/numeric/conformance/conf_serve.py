"""From a textual model to its answers: in ONNX Runtime without optimizations, and optimized with every legal region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

import tilegraph.runtime as runtime
from tilegraph.compiler import OptimizedModel, optimize
from tilegraph.spec.artifact import EP_NAME
from tilegraph.verify.compare import compare_exact, compare_floats, default_rtol, is_float, largest, wide

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


def parse(text: str, *, opset: int = 18, domains: str = "", **initializers: Array) -> onnx.ModelProto:
    """`text` is a graph in ONNX's textual form; `initializers` are added to it by name."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{domains}]>\n{text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in initializers.items())
    return model


@dataclass
class Served:
    """An optimized model and its session."""

    original: onnx.ModelProto
    model: OptimizedModel
    session: ort.InferenceSession
    plain: ort.InferenceSession

    @property
    def kernels(self) -> int:
        """The number of nodes that our provider runs."""
        return self.model.summary.engines.get(EP_NAME, 0)

    def check(self, **feeds: Array) -> list[Array]:
        """Fails unless both answer the same within the dtype's default bound; returns the answers."""
        wanted, found = self.plain.run(None, dict(feeds)), self.session.run(None, dict(feeds))
        for value, a, b in zip(self.original.graph.output, wanted, found, strict=True):
            outcome = compare_exact(b, a)
            if is_float(a.dtype):
                rtol = default_rtol(a.dtype)
                outcome = compare_floats(b, wide(a), a, rtol, rtol * largest(wide(a)) / 10)
            assert not outcome.problem, f"{value.name}: {outcome.problem}"
        return list(found)


def serve(model: onnx.ModelProto, folder: Path, offload: str = "all", **options: Any) -> Served:
    """`folder` must be empty: it takes the original and the optimized model."""
    path = folder / "original.onnx"
    path.write_bytes(model.SerializeToString())
    optimized = optimize(path, offload=offload, **options)
    saved = optimized.save(folder / "model.tilegraph", force=True)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    plain = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    return Served(model, optimized, runtime.session(saved, threads=2), plain)
