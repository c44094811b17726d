"""Attention as the exported dense graph computes it: 12 heads of 64, float32, with the masks that sparse models use.

Each is one graph with queries, keys and values as inputs: products, scale, mask, softmax. Masks of positions are
computed in the graph as exporters do; masks of blocks are constants. They are the cases for which a kernel that passes
over hidden blocks must beat ONNX Runtime by a stated ratio (`must_hold`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.builders.registry import CACHE

Array = npt.NDArray[Any]
HEADS, SIZE, BLOCK, SHARED = 12, 64, 64, 4


@dataclass(frozen=True)
class Attention:
    """`mask`: "full", "causal", "window" (of `window` keys), "bigbird", "blocks" (a share `density`) or "documents".

    "decode": one query on `length` keys; four query heads share a key head, which the graph repeats by Expand.
    """

    name: str
    length: int
    mask: str
    must_hold: float | None = None
    window: int = 0
    density: float = 1.0

    def path(self, cache: Path = CACHE) -> Path:
        """The model as a file; rewritten where it is not this one."""
        target = cache / f"attention-{self.name}" / f"{self.name}.onnx"
        target.parent.mkdir(parents=True, exist_ok=True)
        model = self.model().SerializeToString()
        if not target.exists() or target.read_bytes() != model:
            target.write_bytes(model)
        return target

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {name: rng.standard_normal(shape, dtype=np.float32)
                                  for name, shape in self.shapes().items()}
        if self.mask == "documents":
            made["documents"] = np.sort(rng.integers(0, 8, (1, self.length)))
        return made

    def shapes(self) -> dict[str, list[int]]:
        decode = self.mask == "decode"
        keys = [1, HEADS // SHARED if decode else HEADS, self.length, SIZE]
        return {"q": [1, HEADS, 1 if decode else self.length, SIZE], "k": keys, "v": keys}

    def visible(self) -> Array:
        """Which blocks a constant mask shows: [blocks, blocks] of bool. The diagonal is always there."""
        rng, count = np.random.default_rng(7), self.length // BLOCK
        shown = np.eye(count, dtype=bool)
        if self.mask == "blocks":
            return shown | (rng.random((count, count)) < self.density)
        for row in range(count):  # BigBird: neighbours, first and last block, three random ones
            shown[row, max(row - 1, 0):row + 2] = True
            shown[row, rng.choice(count, 3, replace=False)] = True
        shown[:, [0, -1]] = True
        shown[[0, -1]] = True
        return shown

    def model(self) -> onnx.ModelProto:
        nodes: list[onnx.NodeProto] = []
        consts: dict[str, Array] = {"scale": np.array(SIZE ** -0.5, np.float32)}
        shapes = self.shapes()
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]

        def add(op: str, operands: list[str], name: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(op, operands, [name], name=f"{op}_{name}", **attributes))
            return name

        keys, values = "k", "v"
        if self.mask == "decode":
            consts |= {"group_axis": np.array([2]), "group": np.array([1, 1, SHARED, 1, 1]),
                       "every_head": np.array([1, HEADS, self.length, SIZE])}
            keys, values = (add("Reshape", [add("Expand", [add("Unsqueeze", [n, "group_axis"], f"{n}_one"), "group"],
                                                f"{n}_group"), "every_head"], f"{n}_all") for n in ("k", "v"))
        add("Transpose", [keys], "transposed", perm=[0, 1, 3, 2])
        x = add("Mul", [add("MatMul", ["q", "transposed"], "scores"), "scale"], "scaled")
        if self.mask == "documents":
            inputs.append(helper.make_tensor_value_info("documents", TensorProto.INT64, [1, self.length]))
            consts |= {"rows_axes": np.array([1, 3]), "columns_axes": np.array([1, 2])}
            add("Unsqueeze", ["documents", "rows_axes"], "row_ids")
            add("Unsqueeze", ["documents", "columns_axes"], "column_ids")
            add("Equal", ["row_ids", "column_ids"], "visible")
        elif self.mask in ("causal", "window"):
            consts |= {"start": np.array(0), "limit": np.array(self.length), "step": np.array(1),
                       "axis": np.array([1]), "window": np.array(self.window)}
            add("Unsqueeze", [add("Range", ["start", "limit", "step"], "positions"), "axis"], "column")
            add("LessOrEqual", ["positions", "column"], "visible")
            if self.mask == "window":
                add("Sub", ["column", "window"], "oldest")
                add("And", ["visible", add("Greater", ["positions", "oldest"], "recent")], "near")
        elif self.mask not in ("full", "decode"):
            consts["visible"] = np.kron(self.visible(), np.ones((BLOCK, BLOCK), bool))
        if self.mask not in ("full", "decode"):
            consts["low"] = np.array(-np.inf, np.float32)
            x = add("Where", ["near" if self.mask == "window" else "visible", x, "low"], "masked")
        add("MatMul", [add("Softmax", [x], "weights", axis=-1), values], "out")
        graph = helper.make_graph(nodes, self.name, inputs, [helper.make_tensor_value_info("out", 1, shapes["q"])],
                                  [numpy_helper.from_array(a, n) for n, a in consts.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


ATTENTIONS = (
    Attention("full_512", 512, "full", 1.05),
    Attention("full_2048", 2048, "full", 1.10),
    Attention("causal_512", 512, "causal", 1.8),
    Attention("causal_2048", 2048, "causal", 2.15),
    Attention("window_4096", 4096, "window", 14.0, window=256),
    Attention("window_8192", 8192, "window", 26.0, window=256),
    Attention("bigbird_4096", 4096, "bigbird", 8.2),
    Attention("blocks_12_2048", 2048, "blocks", 8.2, density=0.10),
    Attention("blocks_30_2048", 2048, "blocks", 3.4, density=0.28),
    Attention("blocks_53_2048", 2048, "blocks", 2.05, density=0.52),
    Attention("documents_4096", 4096, "documents", 6.0),
    Attention("decode_4096", 4096, "decode", 1.3),
)
