"""Runs one pass on a model in text form and checks what every pass promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.unit.passes.exact import run_exactly
from tilegraph.io import load
from tilegraph.passes import Pass, PassContext, Pipeline
from tilegraph.rewrites.normalise import LiftConstants, Shapes

Feeds = Mapping[str, np.ndarray[Any, Any]]


def prepared(text: str, opset: int = 17, *, dims: Mapping[str, int] | None = None) -> ir.Model:
    """The loaded model, with constants lifted and shapes inferred, as passes find it. `text` starts at the graph."""
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "my.ops" : 1, "com.microsoft" : 1]> '
    model = load(onnx.parser.parse_model(header + text), dims=dims)
    Pipeline([LiftConstants(), Shapes()]).run(model, PassContext())
    return model


def loaded(text: str, **arrays: np.ndarray[Any, Any]) -> ir.Model:
    """The loaded model with `arrays` as initializers, untouched by any pass."""
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17, "my.ops" : 1]> ' + text)
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return load(proto)


def run(step: Pass, model: ir.Model, *, modified: bool, feeds: Feeds | None = None,
        context: PassContext | None = None) -> ir.Model:
    """Runs `step` and checks: `modified` is exact, a second run changes nothing, the model is consistent, the names of
    inputs and outputs stay, and with `feeds` the outputs are bitwise what they were (onnx's reference)."""
    names = [[v.name for v in vs] for vs in (model.graph.inputs, model.graph.outputs)]
    before = serialized(model)
    assert run_exactly(step, model, context) is modified
    assert [[v.name for v in vs] for vs in (model.graph.inputs, model.graph.outputs)] == names
    if feeds is not None:
        same_answers(before, serialized(model), feeds)
    return model


def serialized(model: ir.Model) -> onnx.ModelProto:
    proto: onnx.ModelProto = ir.to_proto(model)
    return proto


def same_answers(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Feeds) -> None:
    one, two = (ReferenceEvaluator(m).run(None, dict(feeds)) for m in (before, after))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def ops(model: ir.Model) -> list[str]:
    """Every op of the model, subgraphs included, in order."""
    return [n.op_type for n in model.graph.all_nodes()]


def shapes(model: ir.Model) -> dict[str, str]:
    return {o.name: str(o.shape) for n in model.graph.all_nodes() for o in n.outputs if o.name}


SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, -1.5, 3.0e38], dtype=np.float32)
