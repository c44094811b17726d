"""What others have for attention with the masks of `models.attention`: ONNX Runtime's own operators and PyTorch's.

Each gets the queries, keys and values of the original [B, H, S, D] and gives its output; masks that do not depend on
inputs are constants, so they cost nothing when the clock runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.attention import BLOCK, HEADS, SHARED, SIZE, Attention
from tilegraph.bench import Peer
from tilegraph.bench.kinds import Found

Array = npt.NDArray[Any]
HIDDEN = HEADS * SIZE
_MSFT = "com.microsoft"


def references(case: Attention) -> tuple[str, ...]:
    """The peers that the required ratio to the best peer counts: what is made for attention and nothing else. Engines
    that take whole models are timed beside them."""
    return (*_operators(case), "torch-sdpa")


def _operators(case: Attention) -> dict[str, Callable[[Attention], onnx.ModelProto]]:
    """ONNX Runtime's operators that compute the case."""
    if case.mask == "decode":
        return {"Attention": _attention, "GroupQueryAttention": _group_query_past}
    known = {"GroupQueryAttention": _group_query} if case.mask in ("causal", "window") else {}
    return {"MultiHeadAttention": _multi_head, **known}


def special(case: Attention, found: Sequence[Found], folder: Path) -> list[Peer]:
    """The peers of one attention; their files are written into `folder`. PyTorch's only where `found` has it."""
    folder.mkdir(parents=True, exist_ok=True)
    peers: list[Peer] = []
    for name, make in _operators(case).items():
        onnx.save(make(case), folder / f"{name}.onnx")
        peers.append(Peer(name, folder / f"{name}.onnx", create=False))
    for one in found:
        if one.kind.name == "torch-sdpa" and not one.absent:
            visible = _visible(case)
            told: dict[str, Any] = {} if visible is None else {"visible": visible}
            np.savez(folder / "sdpa.npz", causal=np.array(case.mask == "causal"),
                     grouped=np.array(case.mask == "decode"), **told)
            peers.append(Peer(one.kind.name, folder / "sdpa.npz", engine=one.kind.engine, python=one.python,
                              create=False))
    return peers


def _visible(case: Attention) -> Array | None:
    """Which keys each row sees, [S, S] of bool; None where an operator's own option or an input says it."""
    if case.mask in ("full", "causal", "documents", "decode"):
        return None
    if case.mask == "window":
        row, column = np.arange(case.length)[:, None], np.arange(case.length)
        return (column <= row) & (column > row - case.window)
    return np.kron(case.visible(), np.ones((BLOCK, BLOCK), bool))


def _model(case: Attention, nodes: Sequence[onnx.NodeProto], constants: dict[str, Array],
           opset: int = 17) -> onnx.ModelProto:
    shapes = case.shapes()
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()]
    if case.mask == "documents":
        inputs.append(helper.make_tensor_value_info("documents", TensorProto.INT64, [1, case.length]))
    graph = helper.make_graph(list(nodes), case.name, inputs,
                              [helper.make_tensor_value_info("out", TensorProto.FLOAT, shapes["q"])],
                              [numpy_helper.from_array(a, n) for n, a in constants.items()])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset),
                                                                 helper.make_opsetid(_MSFT, 1)])


def _rows(name: str, output: str) -> list[onnx.NodeProto]:
    """[B, H, S, D] to [B, S, H*D]."""
    return [helper.make_node("Transpose", [name], [f"{output}_t"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"{output}_t", "flat"], [output])]


def _heads(name: str, output: str) -> list[onnx.NodeProto]:
    """[B, S, H*D] to [B, H, S, D]."""
    return [helper.make_node("Reshape", [name, "split"], [f"{output}_s"]),
            helper.make_node("Transpose", [f"{output}_s"], [output], perm=[0, 2, 1, 3])]


def _shapes() -> dict[str, Array]:
    return {"flat": np.array([0, 0, HIDDEN]), "split": np.array([0, 0, HEADS, SIZE])}


def _multi_head(case: Attention) -> onnx.ModelProto:
    """com.microsoft's MultiHeadAttention: keys and values as they are, masks other than causal as an added bias."""
    constants, nodes, bias = _shapes(), _rows("q", "rows"), ""
    visible = _visible(case)
    if visible is not None:
        bias = "bias"
        constants[bias] = np.where(visible, 0, -np.inf).astype(np.float32)[None, None]
    elif case.mask == "documents":
        bias = "bias"
        constants |= {"rows_axes": np.array([1, 3]), "columns_axes": np.array([1, 2]),
                      "zero": np.array(0, np.float32), "low": np.array(-np.inf, np.float32)}
        nodes += [helper.make_node("Unsqueeze", ["documents", "rows_axes"], ["row_ids"]),
                  helper.make_node("Unsqueeze", ["documents", "columns_axes"], ["column_ids"]),
                  helper.make_node("Equal", ["row_ids", "column_ids"], ["same"]),
                  helper.make_node("Where", ["same", "zero", "low"], [bias])]
    operands = ["rows", "k", "v", *(["", "", bias] if bias else [])]
    nodes.append(helper.make_node("MultiHeadAttention", operands, ["o"], domain=_MSFT, num_heads=HEADS,
                                  unidirectional=int(case.mask == "causal")))
    return _model(case, [*nodes, *_heads("o", "out")], constants)


def _attention(case: Attention) -> onnx.ModelProto:
    """ONNX's Attention, whose kernel reads keys that heads share where they are."""
    return _model(case, [helper.make_node("Attention", ["q", "k", "v"], ["out"])], {}, opset=23)


def _group_query(case: Attention) -> onnx.ModelProto:
    """com.microsoft's GroupQueryAttention, which knows causal masks and windows and nothing else."""
    constants = _shapes() | {"last": np.array([case.length - 1], np.int32), "total": np.array(case.length, np.int32)}
    nodes = [*_rows("q", "q_rows"), *_rows("k", "k_rows"), *_rows("v", "v_rows")]
    window = {"local_window_size": case.window} if case.mask == "window" else {}
    nodes.append(helper.make_node("GroupQueryAttention", ["q_rows", "k_rows", "v_rows", "", "", "last", "total"],
                                  ["o", "keys", "values"], domain=_MSFT, num_heads=HEADS, kv_num_heads=HEADS, **window))
    return _model(case, [*nodes, *_heads("o", "out")], constants)


def _group_query_past(case: Attention) -> onnx.ModelProto:
    """The same with one query: all keys but the last are its past, in a buffer as long as all."""
    last = case.length - 1
    constants = {"from": np.array([last]), "to": np.array([case.length]), "axis": np.array([2]),
                 "row": np.array([0, 0, HIDDEN // SHARED]), "rows": np.array([0, 0, HIDDEN]),
                 "split": np.array([0, 0, HEADS, SIZE]), "last": np.array([last], np.int32),
                 "total": np.array(case.length, np.int32)}
    nodes = [helper.make_node("Transpose", ["q"], ["q_t"], perm=[0, 2, 1, 3]),
             helper.make_node("Reshape", ["q_t", "rows"], ["q_rows"])]
    for name in ("k", "v"):
        nodes += [helper.make_node("Slice", [name, "from", "to", "axis"], [f"{name}_last"]),
                  helper.make_node("Transpose", [f"{name}_last"], [f"{name}_t"], perm=[0, 2, 1, 3]),
                  helper.make_node("Reshape", [f"{name}_t", "row"], [f"{name}_row"])]
    nodes.append(helper.make_node("GroupQueryAttention", ["q_rows", "k_row", "v_row", "k", "v", "last", "total"],
                                  ["o", "keys", "values"], domain=_MSFT, num_heads=HEADS,
                                  kv_num_heads=HEADS // SHARED))
    return _model(case, [*nodes, *_heads("o", "out")], constants)
