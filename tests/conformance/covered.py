"""The table of ONNX's operators: which our kernels run, at which opsets and in which types, from a sweep's results.

    python -m tests.conformance.covered [build/conformance/sweep.json]

Every node test with a single node counts for its operator: as it is, with constants and with symbolic extents.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from tests.conformance.sweep_cases import ROOT, Case, open_case

OURS = ("kernel", "alone")
SHORT = {"FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "BOOL": "bool"}


@dataclass
class Operator:
    """`tests`: how many ended how. `opsets` and `dtypes` (of the first input): those of tests that our kernels run."""

    tests: Counter[str] = field(default_factory=Counter)
    opsets: set[int] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def ours(self) -> int:
        return sum(self.tests[s] for s in OURS)


def operators(results: Iterable[Mapping[str, Any]]) -> dict[str, Operator]:
    """By name, with the domain in front where there is one."""
    found: dict[str, Operator] = {}
    for result in results:
        if result["group"] != "node":
            continue
        model = onnx.load(open_case(Case("node", result["name"]))[0])
        nodes = [n for n in model.graph.node if n.op_type != "Constant"]
        if len(nodes) != 1:
            continue
        node = nodes[0]
        one = found.setdefault(f"{node.domain}.{node.op_type}" if node.domain else node.op_type, Operator())
        one.tests[result["status"]] += 1
        if result["status"] in OURS:
            version = next(o.version for o in model.opset_import if o.domain in (node.domain, node.domain or "ai.onnx"))
            one.opsets.add(_since(node, version))
            one.dtypes.add(_dtype(model, node))
        else:
            one.reasons.update(dict(result["refusals"]))
    return found


def table(found: Mapping[str, Operator]) -> str:
    """Markdown: first what our kernels run, then what stays with ONNX Runtime and why, most frequent reason first."""
    lines = ["| operator | since opset | first input | kernels | ONNX Runtime | it cannot |",
             "|---|---|---|---|---|---|"]
    left = ["", "| operator | tests | stays with ONNX Runtime because |", "|---|---|---|"]
    for name, one in sorted(found.items()):
        other = one.tests["unrunnable"] + one.tests["refused"]
        if one.ours:
            lines.append(f"| {name} | {_list(sorted(one.opsets))} | {_list(sorted(one.dtypes))} | {one.ours} "
                         f"| {one.tests['ort']} | {other} |")
        else:
            reason = one.reasons.most_common(1)[0][0] if one.reasons else "ONNX Runtime cannot run it either"
            left.append(f"| {name} | {sum(one.tests.values())} | {reason} |")
    return "\n".join([*lines, *left])


def _list(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items))


def _since(node: onnx.NodeProto, version: int) -> int:
    return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)


def _dtype(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    types = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    types.update((t.name, t.data_type) for t in model.graph.initializer)
    name = next((n for n in (*node.input, *node.output) if n in types), "")
    word = str(onnx.TensorProto.DataType.Name(types.get(name, 0)))
    return SHORT.get(word, word.lower())


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "conformance" / "sweep.json"
    print(table(operators(json.loads(path.read_text(encoding="utf-8")))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
