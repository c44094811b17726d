"""com.microsoft's GroupQueryAttention with past keys, against ONNX Runtime's own kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import tilegraph
from tilegraph.compiler import optimize

Array = np.ndarray[Any, Any]
Pair = tuple[ort.InferenceSession, ort.InferenceSession]
N, G, D, ROWS = 4, 2, 32, 40
_TYPES = {"float32": 1, "int32": 6, "int64": 7, "float16": 10}
_SHAPES: dict[str, list[Any]] = {
    "q": ["b", "s", N * D], "k": ["b", "s", G * D], "v": ["b", "s", G * D], "qkv": ["b", "s", (N + 2 * G) * D],
    "pk": ["b", G, "p", D], "pv": ["b", G, "p", D], "last": ["b"], "total": [], "a": [1, 1, "s", "t"],
    "ids": ["b", "s"], "sink": [N],
}


def feeds_of(past: int, new: int, *, batch: int = 1, packed: bool = False, half: int = 0,
             bias: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(past + new)
    sizes = {"b": batch, "s": new, "p": past, "t": past + new}
    names = (["qkv"] if packed else ["q", "k", "v"]) + ["pk", "pv"] + ["a"] * bias
    feeds: dict[str, Array] = {
        n: rng.standard_normal([sizes.get(d, d) for d in _SHAPES[n]]).astype(np.float32) for n in names}
    if half:
        angles = rng.standard_normal((ROWS, half)).astype(np.float32)
        feeds |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    return feeds | {"last": np.full(batch, past + new - 1, np.int32), "total": np.array(past + new, np.int32)}


def model(feeds: dict[str, Array], *, present: str = "t", **attributes: Any) -> bytes:
    wanted = ["qkv" if "qkv" in feeds else "q", "k", "v", "pk", "pv", "last", "total", "cos", "sin", "ids", "a", "sink"]
    node = helper.make_node("GroupQueryAttention", [n if n in feeds else "" for n in wanted], ["o", "nk", "nv"],
                            name="gqa", domain="com.microsoft", num_heads=N, kv_num_heads=G,
                            do_rotary=int("cos" in feeds), **attributes)
    inputs = [helper.make_tensor_value_info(n, _TYPES[str(v.dtype)], _SHAPES.get(n, v.shape)) for n, v in feeds.items()]
    kind = _TYPES[str(feeds["pk"].dtype)]
    outputs = [helper.make_tensor_value_info("o", kind, ["b", "s", N * D]),
               *(helper.make_tensor_value_info(n, kind, ["b", G, present, D]) for n in ("nk", "nv"))]
    made: onnx.ModelProto = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), ir_version=10,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)])
    written: bytes = made.SerializeToString()
    return written


def reason_of(made: Any) -> str | None:
    """Why the operator stays whole; None where all that a run decides between are kernels."""
    reasons = [str(found["reason"]) for found in made.summary.attentions if not found["taken"]]
    return reasons[0] if reasons else None


def sessions(original: bytes, folder: Path, **options: Any) -> Pair:
    """ONNX Runtime on the original, and what is made of it, which must be taken."""
    made = optimize(original, offload="all", **options)
    assert reason_of(made) is None
    made.save(folder / "m")
    tilegraph.register()
    return ort.InferenceSession(original, providers=["CPUExecutionProvider"]), ort.InferenceSession(
        str(folder / "m" / "model.onnx"), providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return sessions(model(feeds_of(5, 1, half=D // 2)), tmp_path_factory.mktemp("turned"))


def compare(pair: Pair, feeds: dict[str, Array]) -> bool:
    """Compares results within rounding and present bit by bit. Returns whether the results too are the same bits."""
    (want, *caches), (got, *made) = (session.run(None, feeds) for session in pair)
    for one, other in zip(caches, made, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.std(want) > 0
    assert np.abs(got - want).max() <= 4e-6 * max(1.0, float(np.abs(want).max()))
    return bool(np.array_equal(want, got))


@pytest.mark.parametrize(("form", "attributes"), [
    ({}, {"local_window_size": 3}),
    ({"half": D // 2}, {"softcap": 2.0, "scale": 0.7}),
    ({"packed": True, "half": D // 4}, {"rotary_interleaved": 1}),
    ({"bias": True}, {}),
])
def test_prompts_and_steps(form: dict[str, Any], attributes: dict[str, Any], tmp_path: Path) -> None:
    pair = sessions(model(feeds_of(5, 1, **form), **attributes), tmp_path)
    same = [compare(pair, feeds_of(past, new, **form)) for past, new in ((0, 9), (9, 1), (21, 1), (7, 12))]
    assert not all(same)  # the kernel ran, whose sums are in another order


def test_several_sequences_of_one_length(turned: Pair) -> None:
    same = [compare(turned, feeds_of(past, new, batch=3, half=D // 2)) for past, new in ((0, 8), (30, 1))]
    assert not all(same)


def test_what_no_way_fits_is_the_operators(turned: Pair) -> None:
    """Longer than the past's rows, but not behind all of them."""
    ragged = feeds_of(20, 1, batch=2, half=D // 2) | {"last": np.array([20, 13], np.int32)}
    assert compare(turned, ragged)


def test_more_tokens_than_the_tables_hold_is_the_operators_error(turned: Pair) -> None:
    assert not compare(turned, feeds_of(ROWS - 1, 1, half=D // 2))
    for session in turned:
        with pytest.raises(Exception, match="cos_cache dimension 0"):
            session.run(None, feeds_of(ROWS, 1, half=D // 2))


@pytest.mark.parametrize(("changes", "attributes", "reason"), [
    ({"present": "p"}, {"bias": True}, "one buffer for past and present, and a bias"),
    ({}, {"causal": 0}, "without a causal mask"),
])
def test_what_stays_whole(changes: dict[str, str], attributes: dict[str, Any], reason: str) -> None:
    form = {"bias": attributes.pop("bias")} if "bias" in attributes else {}
    found = reason_of(optimize(model(feeds_of(5, 1, **form), **changes, **attributes), offload="all"))
    assert found is not None
    assert reason in found
