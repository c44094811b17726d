"""Compiles and runs one window kernel on plain numpy values; the reference is ONNX Runtime's on the plain model, in
float64 where it has the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from tests.numeric.codegen.runner import Array, Compiled, loaded
from tests.unit.conv_kernels.bodies import Body, body
from tilegraph.codegen.conv import generate
from tilegraph.codegen.isa import Isa, host
from tilegraph.compiler.filters import pack_filters
from tilegraph.ops.conv import lower_conv, plan_conv


def compiled(made: Body, isa: Isa | None = None) -> Compiled:
    lowered = lower_conv(made.nodes, [made.output], {"": 20})
    isa = isa or host()
    kernel = generate(plan_conv(lowered), "tg_test", isa.vector_bits)
    return Compiled(lowered, None, kernel.kernel, *loaded(kernel, isa))  # type: ignore[arg-type]


def blocks(a: Array, lanes: int, fill: float = 0.0) -> Array:
    """[N, C, *S] -> [N, C/lanes, *S, lanes]; lanes past C hold `fill`."""
    padded = np.full((a.shape[0], -(-a.shape[1] // lanes) * lanes, *a.shape[2:]), fill, a.dtype)
    padded[:, :a.shape[1]] = a
    return np.ascontiguousarray(np.moveaxis(padded.reshape(a.shape[0], -1, lanes, *a.shape[2:]), 2, -1))


def plain(a: Array, channels: int) -> Array:
    back = np.moveaxis(a, -1, 2)
    return back.reshape(a.shape[0], -1, *a.shape[2:-1])[:, :channels]


def packed(made: Compiled, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """`feeds` with constants as the kernel reads them."""
    names = {slot: value.name for slot, value in made.lowered.inputs}
    found = dict(feeds)
    for slot, how in made.kernel.filters:
        array = feeds[names[slot]]
        found[names[slot]] = pack_filters(array, how).reshape(-1, *(1,) * (array.ndim - 1))  # of the runner's rank
    return found


def run(text: str, feeds: Mapping[str, Array], *, lanes: int = 16, blocked: Sequence[str] = ("x",), tasks: int = 2,
        isa: Isa | None = None, fences: bool = False, plain_result: bool = False) -> Array:
    """The kernel's answer as a plain value. Lanes of the source past C hold NaN: nothing of them may leak."""
    made = compiled(body(text, lanes, blocked, plain_result), isa)
    known = {name: blocks(a, lanes, np.nan if name == "x" else 0.0) if name in blocked else a
             for name, a in feeds.items()}
    given = packed(made, known)
    (got,) = made.run(given, tasks, 4)
    if fences:
        made.check_fences(given, tasks)
    if plain_result:
        return got
    channels = body(text, lanes, blocked).plain.graph.outputs[0].shape[1]  # type: ignore[index]
    tail = got.shape[1] * lanes - int(channels)
    if tail:
        assert np.isfinite(got).all(), "lanes that are no channels must stay finite"
    return plain(got, int(channels))


def reference(text: str, feeds: Mapping[str, Array], wide: bool = False) -> Array:
    """ONNX Runtime's answer on the plain model without optimizations; with `wide` ONNX's reference in float64."""
    if wide:
        double = ir.to_proto(body_plain(text.replace("float[", "double[")))
        exact: Array = ReferenceEvaluator(double).run(None, {k: a.astype(np.float64) for k, a in feeds.items()})[0]
        return exact
    model = ir.to_proto(body_plain(text))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    answer: Array = session.run(None, dict(feeds))[0]
    return answer


def body_plain(text: str) -> ir.Model:
    return body(text, blocked=()).plain
