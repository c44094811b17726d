"""Keys and values that are put together from a cache and new ones: one kernel attends and makes the new cache."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.numeric.attention.attn_runner import check_fences, compile_attention, run_all
from tests.numeric.codegen.runner import Array
from tilegraph.codegen.isa import Isa

B = 2
_KINDS = {"float": (1, np.float32), "float16": (10, np.float16), "bfloat16": (16, ml_dtypes.bfloat16)}


_UNKNOWN = ("b", "s", "p", "p + s")


def model(heads: int, groups: int, depth: int, width: int, sizes: tuple[Any, Any, Any, Any] = _UNKNOWN, *,
          kind: str = "float", causal: bool = False, rows_first: bool = False) -> onnx.ModelProto:
    """[B, heads, S, D] on past [B, groups, P, D] and new [B, S, groups * D]; present is a result as exporters write it.

    `rows_first`: the cache is [B, P, groups, D]. `causal`: by a bias of the scores in memory.
    """
    made = helper.make_node
    code, dtype = _KINDS[kind]
    b, s, p, t = sizes
    each = heads // groups
    infos = {"q": [b, heads, s, depth]}
    constants: dict[str, Any] = {"ax": np.array([2]), "times": np.array([1, 1, each, 1, 1]),
                                 "factor": np.asarray(depth ** -0.5, dtype)}
    nodes = []
    for name, size in (("k", depth), ("v", width)):
        infos[f"new_{name}"] = [b, s, groups * size]
        infos[f"past_{name}"] = [b, p, groups, size] if rows_first else [b, groups, p, size]
        constants |= {f"{name}_split": np.array([0, -1, groups, size]), f"{name}_all": np.array([0, heads, -1, size])}
        nodes.append(made("Reshape", [f"new_{name}", f"{name}_split"], [f"{name}0"]))
        turn = made("Transpose", [f"{name}c" if rows_first else f"{name}0"], [f"{name}1"], perm=[0, 2, 1, 3])
        if rows_first:
            nodes += [made("Concat", [f"past_{name}", f"{name}0"], [f"{name}c"], axis=1), turn]
        else:
            nodes += [turn, made("Concat", [f"past_{name}", f"{name}1"], [f"{name}c"], axis=2)]
        nodes += [made("Unsqueeze", [f"{name}1" if rows_first else f"{name}c", "ax"], [f"{name}2"]),
                  made("Expand", [f"{name}2", "times"], [f"{name}3"]),
                  made("Reshape", [f"{name}3", f"{name}_all"], [f"{name}4"])]
    nodes += [made("Transpose", ["k4"], ["kt"], perm=[0, 1, 3, 2]), made("MatMul", ["q", "kt"], ["x0"]),
              made("Mul", ["x0", "factor"], ["x1"])]
    if causal:
        infos["m"] = [b, 1, s, t]
        nodes.append(made("Add", ["x1", "m"], ["x2"]))
    nodes += [made("Softmax", ["x2" if causal else "x1"], ["w"], axis=-1), made("MatMul", ["w", "v4"], ["o"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, code, d) for n, d in infos.items()],
                              [helper.make_tensor_value_info(n, code, None) for n in ("o", "kc", "vc")],
                              [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def inputs(heads: int, groups: int, depth: int, width: int, new: int, past: int, *, kind: str = "float",
           causal: bool = False, rows_first: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(new + past)
    shapes = {"q": (B, heads, new, depth)}
    for name, size in (("k", depth), ("v", width)):
        shapes[f"new_{name}"] = (B, new, groups * size)
        shapes[f"past_{name}"] = (B, past, groups, size) if rows_first else (B, groups, past, size)
    feeds: dict[str, Array] = {n: rng.standard_normal(s).astype(_KINDS[kind][1]) for n, s in shapes.items()}
    if causal:
        hidden = np.arange(new)[:, None] + past < np.arange(new + past)[None]
        feeds["m"] = np.broadcast_to(np.where(hidden, -np.inf, 0), (B, 1, new, new + past)).astype(_KINDS[kind][1])
    return feeds


def answer(feeds: dict[str, Array], groups: int, rows_first: bool = False) -> tuple[Array, Array, Array]:
    """The result in float64, and the two caches."""
    caches, read = [], []
    for name in "kv":
        past, new = feeds[f"past_{name}"], feeds[f"new_{name}"]
        new = new.reshape(*new.shape[:2], groups, past.shape[-1])
        if rows_first:
            caches.append(np.concatenate([past, new], 1))
            read.append(caches[-1].swapaxes(1, 2).astype(np.float64))
        else:
            caches.append(np.concatenate([past, new.swapaxes(1, 2)], 2))
            read.append(caches[-1].astype(np.float64))
    q = feeds["q"].astype(np.float64)
    k, v = (np.repeat(x, q.shape[1] // groups, 1) for x in read)
    x = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    if "m" in feeds:
        x = x + feeds["m"].astype(np.float64)
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v, caches[0], caches[1]


def check(heads: int, groups: int, depth: int, width: int, new: int, past: int, *, tasks: int = 3,
          isa: Isa | None = None, symbolic: bool = True, **how: Any) -> None:
    sizes = _UNKNOWN if symbolic else (B, new, past, past + new)
    compiled, space, graph = compile_attention(model(heads, groups, depth, width, sizes, **how), isa)
    assert len(space.caches) == 2
    feeds = inputs(heads, groups, depth, width, new, past, **how)
    got = run_all(compiled, graph, feeds, tasks, 4)
    rows_first = bool(how.get("rows_first"))
    want = answer(feeds, groups, rows_first)
    order = [value.name for value in next(n for n in graph.graph if n.domain == "ai.tilegraph").outputs]
    for name, one in zip(("o", "kc", "vc"), want, strict=True):
        found = got[order.index(name)]
        if name == "o":
            bound = {"float": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[str(how.get("kind", "float"))]
            assert not one.size or np.std(one) > 1e-3
            assert not one.size or np.abs(found - one).max() <= bound * max(1.0, float(np.abs(one).max()))
        else:
            assert found.tobytes() == np.ascontiguousarray(one).tobytes()


@pytest.mark.parametrize(("new", "past"), [(1, 1), (1, 300), (3, 65), (7, 128), (8, 200), (70, 1), (40, 90), (1, 0),
                                           (5, 0), (70, 0)])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (3, 1)])
def test_a_run_decides(new: int, past: int, heads: int, groups: int) -> None:
    """A prompt, steps after it, and a first run without a past."""
    check(heads, groups, 32, 24, new, past)


@pytest.mark.parametrize(("new", "past"), [(1, 511), (2, 70), (64, 70)])
@pytest.mark.parametrize("rows_first", [False, True])
def test_layouts_and_known_sizes(new: int, past: int, rows_first: bool) -> None:
    check(4, 2, 16, 36, new, past, rows_first=rows_first, symbolic=False, causal=True)
    check(4, 2, 16, 36, new, past, rows_first=rows_first, causal=True)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_caches_of_sixteen_bits_keep_every_bit(kind: str) -> None:
    check(4, 2, 32, 32, 1, 140, kind=kind)
    check(4, 2, 32, 32, 60, 140, kind=kind)


def test_more_heads_share_keys_than_a_block_has_rows() -> None:
    check(48, 1, 16, 16, 3, 100)


def test_without_queries_the_cache_is_still_made() -> None:
    check(4, 2, 16, 16, 0, 33)


def test_instruction_sets() -> None:
    for base in ("x86-64-v3", "x86-64-v2"):
        check(4, 2, 24, 20, 2, 70, isa=Isa(base))


def test_no_memory_beside_the_operands_is_touched() -> None:
    compiled, _, graph = compile_attention(model(4, 2, 16, 20))
    for new, past in ((1, 37), (33, 5)):
        check_fences(compiled, graph, inputs(4, 2, 16, 20, new, past), 2)
    compiled, _, graph = compile_attention(model(4, 2, 16, 20, causal=True))
    for new, past in ((1, 37), (0, 21)):  # a mask without rows
        check_fences(compiled, graph, inputs(4, 2, 16, 20, new, past, causal=True), 2)
