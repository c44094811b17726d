"""com.microsoft's attention operators, whole, against ONNX Runtime's own kernels on the original."""

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
B, S, N, D = 2, 9, 4, 16
RNG = np.random.default_rng(0)
_TYPES = {"float32": 1, "int32": 6, "int64": 7}


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def padding(length: int) -> Array:
    """The first sequence ends early, the second is nothing but padding."""
    mask = np.ones((B, length), np.int32)
    mask[0, length - 3:] = 0
    mask[1] = 0
    return mask


def holes(length: int) -> Array:
    return (RNG.random((B, S, length)) > 0.4).astype(np.int32)


def check(node: onnx.NodeProto, feeds: dict[str, Array], folder: Path, *, symbolic: bool = False, taken: bool = True,
          rows: int | None = None) -> list[str]:
    """`rows`: only so many rows of the first sequence's outputs are specified. Returns the reasons for refusals."""
    def shape(array: Array) -> list[Any]:
        if not symbolic or array.ndim != 3:
            return list(array.shape)
        return ["b", "s", array.shape[2]]

    inputs = [helper.make_tensor_value_info(k, _TYPES[str(v.dtype)], shape(v)) for k, v in feeds.items()]
    outputs = [helper.make_tensor_value_info(o, 1, None) for o in node.output]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), ir_version=10, opset_imports=[
        helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    made = optimize(model.SerializeToString(), offload="all")
    assert [a["taken"] for a in made.summary.attentions] == [taken], made.summary.attentions
    folder.mkdir(exist_ok=True)
    made.save(folder / "m")
    tilegraph.register()
    session = ort.InferenceSession(str(folder / "m" / "model.onnx"),
                                   providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])
    for want, got in zip(wanted, session.run(None, feeds), strict=True):
        if rows is not None:
            want, got = (np.concatenate([a[0:1, ..., :rows, :].ravel(), a[1:].ravel()]) for a in (want, got))
        assert np.std(want) > 0
        assert np.abs(got - want).max() <= 4e-6 * max(1.0, float(np.abs(want).max()))
    return [a["reason"] for a in made.summary.attentions]


# -- MultiHeadAttention ----------------------------------------------------------------------------------------------


def mha(*inputs: str, outputs: tuple[str, ...] = ("o",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("MultiHeadAttention", inputs, outputs, domain="com.microsoft", num_heads=N, **attributes)


def qkv(keys: int = S) -> dict[str, Array]:
    return {"q": normal(B, S, N * D), "k": normal(B, keys, N * D), "v": normal(B, keys, N * D)}


@pytest.mark.parametrize(("keys", "causal"), [(13, 0), (S, 1)])
@pytest.mark.parametrize("form", ["plain", "scale", "bias", "padding", "holes", "scores", "padding+scores"])
def test_multi_head_attention(keys: int, causal: int, form: str, tmp_path: Path) -> None:
    feeds = qkv(keys)
    names, attributes = ["q", "k", "v", "", "", ""], {"unidirectional": causal}
    if form == "scale":
        attributes["scale"] = 0.2  # type: ignore[assignment]
    if form == "bias":
        names[3], feeds["b"] = "b", normal(3 * N * D)
    if "padding" in form:
        names[4], feeds["m"] = "m", padding(keys)
    if form == "holes":
        names[4], feeds["m"] = "m", holes(keys)
    if "scores" in form:
        names[5], feeds["a"] = "a", normal(1, N, S, keys)
        attributes["mask_filter_value"] = -3.0  # type: ignore[assignment]
    check(mha(*names, **attributes), feeds, tmp_path)


@pytest.mark.parametrize("causal", [0, 1])
def test_past_and_present(causal: int, tmp_path: Path) -> None:
    feeds = qkv() | {"pk": normal(B, N, 5, D), "pv": normal(B, N, 5, D)}
    node = mha("q", "k", "v", "", "", "", "pk", "pv", outputs=("o", "nk", "nv"), unidirectional=causal)
    check(node, feeds, tmp_path)


def test_symbolic_sizes_and_keys_in_heads(tmp_path: Path) -> None:
    check(mha("q", "k", "v", unidirectional=1), qkv(), tmp_path / "a", symbolic=True)
    feeds = {"q": normal(B, S, N * D), "k": normal(B, N, 13, D), "v": normal(B, N, 13, D)}
    check(mha("q", "k", "v"), feeds, tmp_path / "b")


def test_causal_with_other_keys_stays(tmp_path: Path) -> None:
    (reason,) = check(mha("q", "k", "v", unidirectional=1), qkv(13), tmp_path, taken=False)
    assert "another number than queries" in reason


# -- GroupQueryAttention ---------------------------------------------------------------------------------------------


def gqa(groups: int, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("GroupQueryAttention", inputs, ["o", "nk", "nv"], domain="com.microsoft", num_heads=N,
                            kv_num_heads=groups, **attributes)


def prompt(groups: int, lengths: list[int] | None = None) -> dict[str, Array]:
    return {"q": normal(B, S, N * D), "k": normal(B, S, groups * D), "v": normal(B, S, groups * D),
            "last": np.array(lengths or [S - 1] * B, np.int32), "total": np.array(S, np.int32)}


@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("attributes", [{}, {"local_window_size": 3}, {"softcap": 2.0, "scale": 0.7}])
def test_group_query_attention(groups: int, attributes: dict[str, Any], tmp_path: Path) -> None:
    check(gqa(groups, "q", "k", "v", "", "", "last", "total", **attributes), prompt(groups), tmp_path)


def test_padding_at_the_right_end(tmp_path: Path) -> None:
    """The rows of padding are unspecified; no other row may see their keys."""
    feeds = prompt(2, [S - 4, S - 1])
    node = gqa(2, "q", "k", "v", "", "", "last", "total")
    node.output[1:] = []
    check(node, feeds, tmp_path, rows=S - 3)


def test_rotary_and_packed_and_biased(tmp_path: Path) -> None:
    tables = {"c": np.cos(normal(32, D // 2)), "s": np.sin(normal(32, D // 2))}
    feeds = {k: v for k, v in prompt(2).items() if k not in "qkv"}
    packed = {"qkv": normal(B, S, (N + 4) * D)} | feeds | tables
    check(gqa(2, "qkv", "", "", "", "", "last", "total", "c", "s", do_rotary=1), packed, tmp_path / "a")
    feeds = prompt(2) | {"a": normal(1, 1, S, S)}
    check(gqa(2, "q", "k", "v", "", "", "last", "total", "", "", "", "a", softcap=2.0), feeds, tmp_path / "b")


def test_what_run_time_lengths_decide_stays(tmp_path: Path) -> None:
    (reason,) = check(gqa(2, "q", "k", "v", "", "", "last", "total", causal=0), prompt(2), tmp_path, taken=False)
    assert "seqlens_k" in reason


# -- Attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("form", ["plain", "padding", "holes", "scores", "sizes"])
def test_packed_projection(causal: int, form: str, tmp_path: Path) -> None:
    sizes = [64, 64, 32] if form == "sizes" else [64, 64, 64]
    feeds = {"x": normal(B, S, 24), "w": normal(24, sum(sizes)) * np.float32(0.3), "b": normal(sum(sizes))}
    names = ["x", "w", "b", "", "", ""]
    if form in ("padding", "holes"):
        names[3], feeds["m"] = "m", padding(S) if form == "padding" else holes(S)
    if form == "scores":
        names[5], feeds["a"] = "a", normal(B, N, S, S)
    node = helper.make_node("Attention", names, ["o"], domain="com.microsoft", num_heads=N, unidirectional=causal,
                            qkv_hidden_sizes=sizes)
    check(node, feeds, tmp_path, symbolic=form == "plain")
