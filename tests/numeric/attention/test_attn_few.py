"""Few queries on many keys, as in a decoder's step: keys are read in place, grouped heads together."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.numeric.attention.attn_runner import check_fences, compile_attention, run
from tests.numeric.codegen.runner import Array
from tilegraph.codegen.isa import Isa

B = 2


def decoder(heads: int, groups: int, queries: int, keys: int, depth: int, width: int, *, symbolic: bool = False,
            mask: str = "none", scaled: bool = True, transposed: bool = False) -> onnx.ModelProto:
    """[B, heads, S, D] on [B, groups, T, D]: heads of a group share keys by Expand."""
    made, extents = helper.make_node, ["b", "s", "t"] if symbolic else [B, queries, keys]
    batch, rows, columns = extents
    infos = {"q": [batch, heads, rows, depth], "v": [batch, groups, columns, width],
             "k": [batch, groups, depth, columns] if transposed else [batch, groups, columns, depth]}
    each = heads // groups
    constants: dict[str, Any] = {"ax": np.array([2]), "times": np.array([1, 1, each, 1, 1]),
                                 "factor": np.float32(depth ** -0.25), "low": np.float32(-np.inf)}
    nodes = []
    for name, size in (("k", depth), ("v", width)):
        constants[f"{name}_shape"] = np.array([0, heads, depth, -1] if name == "k" and transposed else
                                              [0, heads, -1, size])
        nodes += [made("Unsqueeze", [name, "ax"], [f"{name}1"]), made("Expand", [f"{name}1", "times"], [f"{name}2"]),
                  made("Reshape", [f"{name}2", f"{name}_shape"], [f"{name}3"])]
    turned = "k3" if transposed else "kt"
    if not transposed:
        nodes.append(made("Transpose", ["k3"], ["kt"], perm=[0, 1, 3, 2]))
    if scaled:
        nodes += [made("Mul", ["q", "factor"], ["qs"]), made("Mul", [turned, "factor"], ["ks"])]
    nodes.append(made("MatMul", ["qs", "ks"] if scaled else ["q", turned], ["x0"]))
    if mask == "bias":
        infos["m"] = [batch, 1, rows, columns]
        nodes.append(made("Add", ["x0", "m"], ["x"]))
    elif mask == "padding":
        infos["m"] = [batch, 1, 1, columns]
        nodes.append(made("Where", ["m", "x0", "low"], ["x"]))
    elif mask == "sink":  # a score more for each row
        infos["m"] = [batch, heads, rows, 1]
        constants |= {"zero": np.array([0]), "before": np.array([-1]), "last": np.array([3])}
        nodes += [made("Concat", ["x0", "m"], ["x"], axis=3), made("Slice", ["all", "zero", "before", "last"], ["p"])]
    nodes.insert(len(nodes) - (mask == "sink"), made("Softmax", ["x0" if mask == "none" else "x"],
                                                     ["all" if mask == "sink" else "p"], axis=-1))
    nodes.append(made("MatMul", ["p", "v3"], ["o"]))
    kinds = {"m": onnx.TensorProto.BOOL if mask == "padding" else 1}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, kinds.get(n, 1), s)
                                           for n, s in infos.items()],
                              [helper.make_tensor_value_info("o", 1, None)],
                              [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def inputs(heads: int, groups: int, queries: int, keys: int, depth: int, width: int, mask: str = "none",
           seed: int = 0, transposed: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"q": (B, heads, queries, depth), "k": (B, groups, keys, depth), "v": (B, groups, keys, width)}
    made: dict[str, Array] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if transposed:
        made["k"] = np.ascontiguousarray(np.swapaxes(made["k"], 2, 3))
    if mask == "bias":
        made["m"] = rng.standard_normal((B, 1, queries, keys)).astype(np.float32)
    elif mask == "padding":
        made["m"] = rng.random((B, 1, 1, keys)) < 0.7
        made["m"][..., 0] = True
    elif mask == "sink":
        made["m"] = rng.standard_normal((B, heads, queries, 1)).astype(np.float32) + 3
    return made


def answer(feeds: dict[str, Array], transposed: bool = False) -> Array:
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    if not transposed:
        k = np.swapaxes(k, 2, 3)
    each = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, each, 1), np.repeat(v, each, 1)
    x = q @ k * q.shape[-1] ** -0.5
    if "m" in feeds and feeds["m"].shape[-1] == 1 < x.shape[-1]:
        x, v = np.concatenate([x, feeds["m"]], -1), np.concatenate([v, np.zeros_like(v[:, :, :1])], 2)
    elif "m" in feeds:
        x = x + feeds["m"] if feeds["m"].dtype != bool else np.where(feeds["m"], x, -np.inf)
    weights = np.exp(x - x.max(-1, keepdims=True))
    result: Array = weights / weights.sum(-1, keepdims=True) @ v
    return result


def check(model: onnx.ModelProto, feeds: dict[str, Array], *, few: bool | None, tasks: int = 2,
          isa: Isa | None = None, transposed: bool = False) -> None:
    compiled, space, graph = compile_attention(model, isa)
    assert space.has_few is few
    want = answer(feeds, transposed)
    got = run(compiled, graph, feeds, tasks, 4)
    assert np.std(want) > 1e-3
    assert np.abs(got - want).max() <= 2e-6 * max(1.0, float(np.abs(want).max()))


@pytest.mark.parametrize(("queries", "keys", "depth", "width"), [
    (1, 1, 64, 64), (1, 300, 64, 64), (2, 129, 128, 33), (3, 65, 40, 5), (7, 200, 80, 80), (1, 4100, 4, 1),
    (5, 31, 256, 256), (1, 17, 12, 20)])
@pytest.mark.parametrize("groups", [4, 2])
def test_sizes(queries: int, keys: int, depth: int, width: int, groups: int) -> None:
    check(decoder(4, groups, queries, keys, depth, width), inputs(4, groups, queries, keys, depth, width), few=True)


@pytest.mark.parametrize("queries", [1, 3, 7, 8, 70])
@pytest.mark.parametrize("mask", ["none", "bias", "padding"])
def test_a_run_decides(queries: int, mask: str) -> None:
    """One kernel for a prompt and for the steps after it."""
    model = decoder(8, 2, 1, 1, 32, 24, symbolic=True, mask=mask)
    check(model, inputs(8, 2, queries, 150, 32, 24, mask), few=None, tasks=3)


@pytest.mark.parametrize("heads", [32, 21])
def test_more_heads_share_keys_than_a_block_has_rows(heads: int) -> None:
    check(decoder(heads, 1, 5, 40, 16, 16), inputs(heads, 1, 5, 40, 16, 16), few=True)
    check(decoder(heads, 1, 1, 1, 16, 16, symbolic=True), inputs(heads, 1, 4, 90, 16, 16), few=None)


def test_keys_that_cannot_be_read_in_place() -> None:
    check(decoder(4, 2, 3, 50, 6, 8), inputs(4, 2, 3, 50, 6, 8), few=False)
    check(decoder(4, 2, 3, 50, 8, 8, transposed=True), inputs(4, 2, 3, 50, 8, 8, transposed=True), few=False,
          transposed=True)


def test_instruction_sets() -> None:
    for base in ("x86-64-v3", "x86-64-v2"):
        check(decoder(4, 2, 3, 70, 24, 20, mask="bias"), inputs(4, 2, 3, 70, 24, 20, "bias"), few=True, isa=Isa(base))


@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values(which: str, value: float) -> None:
    compiled, space, graph = compile_attention(decoder(4, 2, 2, 140, 16, 16))
    assert space.has_few
    feeds = inputs(4, 2, 2, 140, 16, 16)
    feeds[which][0, 1, 1, 3] = value
    got = run(compiled, graph, feeds)
    with np.errstate(all="ignore"):
        want = answer(feeds)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    assert finite.any()
    assert np.array_equal(got[~finite], want[~finite].astype(np.float32), equal_nan=True)
    assert np.abs(got[finite] - want[finite]).max() <= 2e-6 * 8


def test_no_memory_beside_the_operands_is_touched() -> None:
    compiled, _, graph = compile_attention(decoder(4, 2, 1, 37, 16, 20))
    check_fences(compiled, graph, inputs(4, 2, 1, 37, 16, 20), 2)
