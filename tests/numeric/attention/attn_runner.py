"""Compiles the attention composite of a model and runs it between guard bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from tests.numeric.codegen.runner import Array, Compiled, loaded
from tests.unit.attention.attn_support import fused
from tilegraph.codegen.attention import caches, generate, pieces, tables
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.attention import PARTIAL, TABLE, AttentionSpace, lower_attention, plan_attention
from tilegraph.ops.prims import Input, Lowered
from tilegraph.spec.dims import Dim

_SIZES = frozenset({"Shape", "Gather", "Concat", "Squeeze", "Unsqueeze"})


@dataclass
class _Several(Compiled):
    """The kernel with those beside it, one after the other: exactly one of the last two writes the result.

    `table`: what says what blocks of masks hold. `first`: what makes the caches. `second`: what adds up pieces.
    """

    table: Compiled | None = None
    first: Compiled | None = None
    second: Compiled | None = None

    def _run(self, feeds: Mapping[str, Array], tasks: int, buffer: Callable[[int, int], Any]) -> list[Array]:
        plain = self.lowered
        if self.table is not None:
            (held,) = self.table._run(feeds, tasks, buffer)
            value = ir.Value(name="table", shape=ir.Shape(held.shape), type=ir.TensorType(ir.DataType.FLOAT))
            self.lowered = replace(plain, inputs=(*plain.inputs, (TABLE, value)))
            feeds = {**feeds, "table": held}
        if self.first is not None:
            made = self.first._run(feeds, tasks, buffer)
            self.before = dict(zip(self.first.kernel.outputs, made, strict=True))
        results = super()._run(feeds, tasks, buffer)
        self.lowered = plain
        if self.second is None:
            return results
        left = results.pop()
        value = ir.Value(name="left", shape=ir.Shape(left.shape), type=ir.TensorType(ir.DataType.FLOAT))
        self.second.lowered = replace(self.lowered, inputs=(*self.lowered.inputs, (PARTIAL, value)))
        (joined,) = self.second._run({**feeds, "left": left}, tasks, buffer)
        untouched = [bool(np.all(one.view(np.uint8) == 0xC3)) for one in (results[0], joined)]
        assert not joined.size or sorted(untouched) == [False, True]
        return [results[0] if untouched[1] else joined, *results[1:]]


def _call(graph: ir.Model) -> ir.Node:
    (call,) = [n for n in graph.graph if n.domain == "ai.tilegraph"]
    return call


def compile_attention(model: onnx.ModelProto, isa: Isa | None = None) -> tuple[Compiled, AttentionSpace, ir.Model]:
    """The kernel of a model that is one attention and nothing else after normalisation, sizes apart."""
    graph, decisions = fused(model)
    found = [n.op_type for n in graph.graph if n.op_type not in _SIZES]
    assert [name.partition("_")[0] for name in found] == ["Attention"], [d.reason for d in decisions]
    call = _call(graph)
    function = graph.functions[call.op_identifier()]
    lowered = lower_attention(list(function), list(function.outputs), function.opset_imports)
    space = plan_attention(lowered)
    isa = isa or host()
    none: Any = None

    def compiled(generator: Callable[..., Generated]) -> tuple[Any, Any, Any]:
        made = generator(space, "tg_test", isa.vector_bits)
        return made.kernel, *loaded(made, isa)

    first = Compiled(lowered, none, *compiled(caches.generate)) if space.caches_apart else None
    second = Compiled(lowered, none, *compiled(pieces.generate)) if space.pieces > 1 else None
    left = lowered if second is None else _leaving(lowered, space.partial)
    table = Compiled(_leaving(left, space.table), none, *compiled(tables.generate)) if space.tables else None
    kernel, entry, library = compiled(generate)
    return _Several(left, none, kernel, entry, library, table=table, first=first, second=second), space, graph


def _leaving(lowered: Lowered, size: Dim) -> Lowered:
    """`lowered` with one more result, which a kernel leaves for another one."""
    return replace(lowered, outputs=(*lowered.outputs, Input((size,), "float32")), stored=(*lowered.stored, "float"))


def run(compiled: Compiled, graph: ir.Model, feeds: dict[str, Array], tasks: int = 1, offset: int = 0) -> Array:
    """The result; `feeds` are the model's inputs, initializers are found in the model."""
    return run_all(compiled, graph, feeds, tasks, offset)[0]


def run_all(compiled: Compiled, graph: ir.Model, feeds: dict[str, Array], tasks: int = 1,
            offset: int = 0) -> list[Array]:
    """The result and the caches that the kernel makes."""
    return compiled.run(_named(graph, feeds), tasks, offset)


def check_fences(compiled: Compiled, graph: ir.Model, feeds: dict[str, Array], tasks: int = 1) -> None:
    """AssertionError if memory beside the operands is touched."""
    compiled.check_fences(_named(graph, feeds), tasks)


def _named(graph: ir.Model, feeds: dict[str, Array]) -> dict[str, Array]:
    """The operands by their names in the composite."""
    call = _call(graph)
    function = graph.functions[call.op_identifier()]
    known = dict(feeds)
    for outside, inside in zip(call.inputs, function.inputs, strict=True):
        assert outside is not None
        if outside.const_value is not None:
            known[inside.name or ""] = outside.const_value.numpy()
        elif outside.name in feeds:
            known[inside.name or ""] = feeds[outside.name]
    return known
