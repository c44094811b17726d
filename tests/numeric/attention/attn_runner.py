"""Compiles the attention composite of a model and runs it between guard bytes."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from tests.numeric.codegen.runner import Array, Compiled, loaded
from tests.unit.attention.attn_support import fused
from tilegraph.codegen.attention import generate
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.attention import AttentionSpace, lower_attention, plan_attention

_SIZES = frozenset({"Shape", "Gather", "Concat", "Squeeze", "Unsqueeze"})


def _call(graph: ir.Model) -> ir.Node:
    (call,) = [n for n in graph.graph if n.domain == "ai.tilegraph"]
    return call


def compile_attention(model: onnx.ModelProto, isa: Isa | None = None) -> tuple[Compiled, AttentionSpace, ir.Model]:
    """The kernel of a model that is one attention and nothing else after normalisation, sizes apart."""
    graph, decisions = fused(model)
    left = [n.op_type for n in graph.graph if n.op_type not in _SIZES]
    assert [name.partition("_")[0] for name in left] == ["Attention"], [d.reason for d in decisions]
    call = _call(graph)
    function = graph.functions[call.op_identifier()]
    lowered = lower_attention(list(function), list(function.outputs), function.opset_imports)
    space = plan_attention(lowered)
    isa = isa or host()
    made = generate(space, "tg_test", isa.vector_bits)
    return Compiled(lowered, None, made.kernel, *loaded(made, isa)), space, graph  # type: ignore[arg-type]


def run(compiled: Compiled, graph: ir.Model, feeds: dict[str, Array], tasks: int = 1, offset: int = 0) -> Array:
    """The result; `feeds` are the model's inputs, initializers are found in the model."""
    return run_all(compiled, graph, feeds, tasks, offset)[0]


def run_all(compiled: Compiled, graph: ir.Model, feeds: dict[str, Array], tasks: int = 1,
            offset: int = 0) -> list[Array]:
    """The result and the caches that the kernel makes."""
    call = _call(graph)
    function = graph.functions[call.op_identifier()]
    known = dict(feeds)
    for outside, inside in zip(call.inputs, function.inputs, strict=True):
        assert outside is not None
        if outside.const_value is not None:
            known[inside.name or ""] = outside.const_value.numpy()
        elif outside.name in feeds:
            known[inside.name or ""] = feeds[outside.name]
    return compiled.run(known, tasks, offset)
