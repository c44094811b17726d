"""Runs one algebra pass on a model in text form, and checks that it is an equality of real arithmetic.

The text uses T for the element type. Structure is checked in float32 and float64; answers in float64, where a rewrite
that is exact in the reals differs by rounding only.
"""

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
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.algebra import CleanUp
from tilegraph.rewrites.normalise import LiftConstants, Shapes

Arrays = Mapping[str, np.ndarray[Any, Any]]
TYPES = {"float16": np.float16, "float": np.float32, "double": np.float64}


def values(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray[Any, Any]:
    """Random numbers of magnitude at least 0.1, so that none is nearly nothing."""
    rng = np.random.default_rng([seed, *shape])
    found = rng.uniform(low, high, shape)
    return np.where(np.abs(found) < 0.1, found + 0.5, found)


def prepared(text: str, kind: str = "float", opset: int = 17, **arrays: np.ndarray[Any, Any]) -> ir.Model:
    """The model as the algebra passes find it; `arrays` are initializers, floats of them in `kind`."""
    header = f'<ir_version: 8, opset_import: ["" : {opset}]> '
    proto = onnx.parser.parse_model(header + text.replace("T[", f"{kind}["))
    for name, array in arrays.items():
        cast = array.astype(TYPES[kind]) if array.dtype.kind == "f" else array
        proto.graph.initializer.append(numpy_helper.from_array(np.array(cast, order="C"), name))
    model = load(proto)
    Pipeline([LiftConstants(), Shapes()]).run(model, PassContext())
    return model


def applied(step: Pass, model: ir.Model, *, modified: bool, context: PassContext | None = None) -> ir.Model:
    """Runs `step` and checks: `modified` is exact, a second run changes nothing, the model is consistent, and its
    inputs and outputs keep their names and types."""
    interface = [[(v.name, v.dtype, str(v.shape)) for v in vs] for vs in (model.graph.inputs, model.graph.outputs)]
    assert run_exactly(step, model, context) is modified
    found = [[(v.name, v.dtype, str(v.shape)) for v in vs] for vs in (model.graph.inputs, model.graph.outputs)]
    assert found == interface
    return model


def rewritten(step: Pass, text: str, *, feeds: Arrays, opset: int = 17, kinds: tuple[str, ...] = ("float", "double"),
              rtol: float = 1e-11, **arrays: np.ndarray[Any, Any]) -> list[str]:
    """The ops after `step` changed the model, the same for all `kinds`; answers of the last kind agree to `rtol` of
    the largest magnitude."""
    found: list[list[str]] = []
    for kind in kinds:
        model = prepared(text, kind, opset, **arrays)
        before = ir.to_proto(model)
        applied(step, model, modified=True)
        CleanUp().run(model, PassContext())
        check_model(model)
        found.append(ops(model))
    cast = {k: v.astype(TYPES[kinds[-1]]) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    same(before, ir.to_proto(model), cast, rtol)
    assert all(f == found[0] for f in found)
    return found[0]


def kept(step: Pass, text: str, *, opset: int = 17, kind: str = "float", context: PassContext | None = None,
         **arrays: np.ndarray[Any, Any]) -> None:
    """Checks that `step` leaves the model alone."""
    applied(step, prepared(text, kind, opset, **arrays), modified=False, context=context)


def same(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Arrays, rtol: float) -> None:
    one, two = (ReferenceEvaluator(m).run(None, dict(feeds)) for m in (before, after))
    for a, b in zip(one, two, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.size > 0
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        finite = np.isfinite(a)
        assert np.ptp(a[finite]) > 0, "the answers are constant: equality would prove nothing"
        np.testing.assert_allclose(b, a, rtol=0, atol=rtol * np.abs(a[finite]).max())


def ops(model: ir.Model) -> list[str]:
    return [n.op_type for n in model.graph.all_nodes()]
