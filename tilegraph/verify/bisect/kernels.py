"""Which compiled kernel answers otherwise than its definition.

The rewritten model's composites have standard ONNX bodies. Each is made a model of its own, with the inputs that it
has in the whole model, and compiled by itself: the same kernel, because kernels are compiled one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from tilegraph import io
from tilegraph.compiler import list_passes
from tilegraph.emit.context import is_ours
from tilegraph.errors import TilegraphError
from tilegraph.spec.artifact import MODEL_FILE
from tilegraph.verify.bisect.cut import Array, cut
from tilegraph.verify.bisect.oracle import Options, Oracle
from tilegraph.verify.ladder import expose
from tilegraph.verify.run import Feeds
from tilegraph.verify.source import read_model
from tilegraph.verify.winograd import as_computed

DOMAIN = "ai.tilegraph"
PASS_OF = {"Region": "fuse-regions", "Small": "absorb-leftovers", "Attention": "fuse-attention",
           "AttentionTrust": "fuse-attention", "Gemm": "fuse-gemm", "Conv": "plan-layouts", "ConvFast": "plan-layouts",
           "Pool": "plan-layouts", "Join": "plan-layouts"}


@dataclass(frozen=True)
class Wrong:
    """`names` are composites that answer wrongly together (most often one); the files show it."""

    names: list[str]
    symbols: list[str]
    original: Path
    candidate: Path
    piece: ir.Model
    feeds: Feeds


def composites(model: ir.Model) -> list[ir.Node]:
    """The calls that become kernels, of the main graph."""
    return [n for n in model.graph if n.domain == DOMAIN]


def kind_of(node: ir.Node) -> str:
    """Region, Attention, Gemm, ...: the beginning of the function's name."""
    return node.op_type.partition("_")[0]


def first_bad_outputs(portable: ir.Model, optimized: Path, oracle: Oracle, feeds: Feeds) -> list[str]:
    """The values that the folder's partitions make and that differ from the rewritten model's, in order.

    Partitions inside bodies of control flow are not seen. Raises InputError as `verify` does.
    """
    served = optimized / MODEL_FILE if optimized.is_dir() else optimized
    model = read_model(served)
    made = [v.name or "" for n in model.graph if is_ours(n) for v in n.outputs if v.name]
    known = {v.name for n in portable.graph for v in n.outputs}
    shared = tuple(name for name in made if name in known)
    reference = portable.clone()
    as_computed(reference)
    expose(reference, shared)
    expose(model, shared)
    folder = oracle.place("exposed")
    folder.mkdir()
    if optimized.is_dir():
        for file in optimized.iterdir():
            if file.suffix in (".so", ".json"):
                (folder / file.name).symlink_to(file.resolve())
    io.save(model, folder / MODEL_FILE)
    result = oracle.compare(oracle.save(reference, "exposed-reference"), folder / MODEL_FILE, feeds)
    bad = {o.name for o in result.outputs if not o.same}
    return [name for name in shared if name in bad]


def wrong_kernels(portable: ir.Model, calls: Sequence[ir.Node], values: dict[str, Array], options: Options,
                  oracle: Oracle, seen: set[str]) -> Iterator[Wrong]:
    """Those of `calls` that differ from their definitions on `values`. Equal kernels on other data are tried too, but
    not the same call twice (`seen`)."""
    for call in calls:
        if (call.name or "") not in seen:
            seen.add(call.name or "")
            found = check([call], portable, values, options, oracle)
            if found is not None:
                yield found


def check(calls: Sequence[ir.Node], portable: ir.Model, values: dict[str, Array], options: Options,
          oracle: Oracle) -> Wrong | None:
    """Whether `calls`, compiled as they stand, differ from their definitions; None if not, or if they cannot be cut
    out of the model."""
    inner = set(calls)
    outputs = [v.name or "" for n in calls for v in n.outputs if v.name and (
        v.is_graph_output() or any(use.node not in inner for use in v.uses()))]
    made = cut(portable, {n.name or "" for n in calls}, outputs, values)
    if made is None:
        return None
    piece, feeds = made
    definition = piece.clone()
    as_computed(definition)
    original = oracle.save(definition, "kernel")
    candidate = oracle.place("kernel.tilegraph")
    everything = [p for p in list_passes(options.target) if p != "shapes"]
    try:
        same = Options(options.target, "none", tuple(everything), {}, options.mcpu, schedules=options.schedules)
        compiled = same.optimize(piece)
        compiled.save(candidate)
    except TilegraphError:
        return None
    if not oracle.differs(original, candidate, feeds):
        return None
    programs = compiled.manifest.programs.values() if compiled.manifest is not None else ()
    symbols = [c.symbol for p in programs for c in p.calls]
    return Wrong([n.name or "" for n in calls], symbols, original, candidate, piece, feeds)
