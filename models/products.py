"""How many operations the products of a model's kernels take: matrix products, convolutions, attention.

Those of the definitions: a convolution by Winograd's algorithm does fewer, so that its share of the peak may pass 1.
Scores that a mask hides are not counted, as far as the compiler knows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from tilegraph.compiler import OptimizedModel
from tilegraph.io.freeze import input_dims
from tilegraph.ops.attention import lower_attention, plan_attention
from tilegraph.ops.conv import lower_conv, plan_conv
from tilegraph.ops.gemm import lower_gemm, plan_gemm
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.spec.dims import Dim, parse

_FASTER = {"float32": 1.0, "bfloat16": 2.0}


def product_flop(made: OptimizedModel, feeds: Mapping[str, Any],
                 fixed: Callable[[dict[str, int]], OptimizedModel] | None = None) -> float:
    """Float32 operations' worth of the products in kernels, on `feeds`; bfloat16 counts half.

    Where an extent is not known from the inputs' shapes (behind joins of a feature pyramid), or a mask hides what only
    a run tells, those of the model that `fixed` makes with the sizes of its symbolic dims and `feeds` as its sample;
    NaN without `fixed`.
    """
    model = made.portable
    sizes: dict[str, int] = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if value.shape is not None and name in feeds:
            pairs = zip(value.shape, feeds[name].shape, strict=True)
            sizes |= {str(dim.value): int(size) for dim, size in pairs if isinstance(dim, ir.SymbolicDim)}
    known = input_dims(model)
    asked = {name: size for name, size in sizes.items() if name in known}  # not "past+1": it follows
    taken = made.diagnostics.of("attention", taken=True)
    if any(d.data.get("inputs") and d.data.get("measured") is None for d in taken):  # what is hidden is not known yet
        return product_flop(fixed(asked), feeds) if fixed is not None else math.nan
    shown = {d.subject: float(d.data.get("measured") or d.data.get("density") or 1.0) for d in taken}
    counts: dict[str, tuple[Dim, float]] = {}  # of a composite: multiplications, and how many times as fast they are
    total = 0.0
    for node in model.graph.all_nodes():
        if node.domain != DOMAIN:
            continue
        if node.op_type not in counts:
            counts[node.op_type] = _multiplications(model.functions[node.op_identifier()])
        products, faster = counts[node.op_type]
        for symbol in products.symbols - sizes.keys():  # such as "sequence+64"
            whole = parse(symbol)
            if not whole.symbols <= sizes.keys():
                return product_flop(fixed(asked), feeds) if fixed is not None else math.nan
            sizes[symbol] = whole.evaluate(sizes)
        total += 2.0 * products.evaluate(sizes) / faster * shown.get(node.name or "", 1.0)
    return total


def _multiplications(function: ir.Function) -> tuple[Dim, float]:
    body = list(function), list(function.outputs), function.opset_imports
    match function.name.partition("_")[0]:
        case "Gemm":
            gemm = plan_gemm(lower_gemm(*body))
            return gemm.m * (gemm.columns * gemm.depth), _FASTER.get(gemm.precision, 1.0)
        case "Conv" | "ConvFast":
            conv = plan_conv(lower_conv(*body))
            return conv.multiplications() if conv.weights_slot is not None else Dim.of(0), 1.0
        case "Attention" | "AttentionTrust":
            attention = plan_attention(lower_attention(*body))
            scores = Dim.product(v.extent for v in attention.batch) * attention.i.extent * attention.j.extent
            return scores * (attention.depth + attention.width), 1.0
    return Dim.of(0), 1.0
