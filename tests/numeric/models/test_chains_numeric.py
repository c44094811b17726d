"""Each chain computes the function that its name says: numpy in float64, gradients against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from models.chains import CHAINS, SMALL

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

erf = np.vectorize(math.erf, otypes=[np.float64])


def run(name: str, feeds: Arrays) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(CHAINS[name].model(small=True).SerializeToString(), options,
                                   providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layer_norm(x: Array, w: Array, b: Array) -> Array:
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c**2).mean(-1, keepdims=True) + 1e-5) * w + b


def _rms(x: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def _rope(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos[:, :half] - high * sin[:, :half], high * cos[:, half:] + low * sin[:, half:]], -1)


def _derivative(f: Callable[[Array], Array], x: Array) -> Array:
    h = 1e-5
    return (f(x + h) - f(x - h)) / (2 * h)


def _halves(x: Array) -> tuple[Array, Array]:
    return x[..., :x.shape[-1] // 2], x[..., x.shape[-1] // 2:]


def _swiglu_packed(i: list[Array], w: Arrays) -> list[Array]:
    gate, up = _halves(i[0])
    return [gate * _sigmoid(gate) * up]


def _geglu_packed(i: list[Array], w: Arrays) -> list[Array]:
    gate, up = _halves(i[0])
    return [up * _gelu(gate)]


def _mask_build(i: list[Array], w: Arrays) -> list[Array]:
    n = i[0].shape[1]
    keep = np.tril(np.ones((n, n), bool))[None, None] & (i[0][:, None, None, :] > 0.5)
    return [np.where(keep, 0.0, -3.4e38)]


def _alibi(i: list[Array], w: Arrays) -> list[Array]:
    n = i[0].shape[-1]
    return [_softmax(i[0] / 8 + w["sl"] * (np.arange(n) - (n - 1)))]


def _ln_dx(i: list[Array], w: Arrays) -> list[Array]:
    x, dy, mean, rstd = i
    normal, g = (x - mean) * rstd, dy * w["w"]
    dx = rstd * (g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True))
    return [dx, (dy * normal).sum((0, 1)), dy.sum((0, 1))]


def _adamw(i: list[Array], w: Arrays) -> list[Array]:
    p, g, m, v, rate = i
    m2, v2 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return [p - rate * (m2 / (np.sqrt(v2) + 1e-8) + 0.01 * p), m2, v2]


def _groupnorm(i: list[Array], w: Arrays) -> list[Array]:
    x = i[0].reshape(1, SMALL.groups, -1)
    c = x - x.mean(-1, keepdims=True)
    y = (c / np.sqrt((c**2).mean(-1, keepdims=True) + 1e-5)).reshape(i[0].shape) * w["w"] + w["b"]
    return [y * _sigmoid(y)]


def _bn_silu(i: list[Array], w: Arrays) -> list[Array]:
    y = i[0] * w["w"] + w["b"]
    return [y * _sigmoid(y) + i[1]]


REFERENCE: dict[str, Callable[[list[Array], Arrays], list[Array]]] = {
    "erf_gelu_bias": lambda i, w: [_gelu(i[0] + w["b"])],
    "tanh_gelu_pow": lambda i, w: [_gelu_tanh(i[0])],
    "tanh_gelu_mul": lambda i, w: [_gelu_tanh(i[0])],
    "layernorm_decomp": lambda i, w: [_layer_norm(i[0], w["w"], w["b"])],
    "bias_res_layernorm": lambda i, w: [_layer_norm(i[0] + w["bias"] + i[1], w["w"], w["b"])],
    "rmsnorm_llama": lambda i, w: [w["w"] * _rms(i[0])],
    "rmsnorm_gemma": lambda i, w: [(1 + w["w"]) * _rms(i[0])],
    "res_rmsnorm": lambda i, w: [i[0] + i[1], w["w"] * _rms(i[0] + i[1])],
    "rope_qk": lambda i, w: [_rope(i[0], i[2], i[3]), _rope(i[1], i[2], i[3])],
    "swiglu": lambda i, w: [i[0] * _sigmoid(i[0]) * i[1]],
    "swiglu_packed": _swiglu_packed,
    "geglu_packed": _geglu_packed,
    "softmax_scale_mask": lambda i, w: [_softmax(i[0] / 8 + i[1])],
    "softmax_causal_where": lambda i, w: [_softmax(np.where(np.tril(np.ones(i[0].shape[-2:])) > 0, i[0] / 8, -1e9))],
    "mask_build": _mask_build,
    "alibi_softmax": _alibi,
    "gelu_erf_grad": lambda i, w: [i[1] * _derivative(_gelu, i[0])],
    "gelu_tanh_grad": lambda i, w: [i[1] * _derivative(_gelu_tanh, i[0])],
    "ln_grad": _ln_dx,
    "ln_grad_dx": lambda i, w: _ln_dx(i, w)[:1],
    "softmax_grad": lambda i, w: [(i[0] * i[1] - i[0] * (i[0] * i[1]).sum(-1, keepdims=True)) / 8],
    "adamw": _adamw,
    "ce_grad": lambda i, w: [(_softmax(i[0]) - i[1]) / SMALL.rows],
    "mish": lambda i, w: [i[0] * np.tanh(np.log1p(np.exp(i[0])))],
    "bn_silu_res": _bn_silu,
    "groupnorm_silu": _groupnorm,
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_every_chain_matches_numpy(name: str) -> None:
    feeds = CHAINS[name].inputs(4, small=True)
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64)
               for t in CHAINS[name].model(small=True).graph.initializer}
    expected = REFERENCE[name]([v.astype(np.float64) for v in feeds.values()], weights)
    outputs = run(name, feeds)
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected, strict=True):
        assert got.shape == want.shape
        assert got.astype(np.float64).std() > 0
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_the_layer_norm_gradient_is_the_gradient() -> None:
    """dx against finite differences of the forward function, with its own saved mean and 1/deviation."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 1, SMALL.seq, SMALL.hidden))
    weight = numpy_helper.to_array(CHAINS["ln_grad_dx"].model(small=True).graph.initializer[0]).astype(np.float64)
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    got = run("ln_grad_dx", {f"i{j}": v.astype(np.float32) for j, v in enumerate((x, dy, mean, rstd))})[0]
    for column in range(0, SMALL.hidden, 7):
        step = np.zeros(SMALL.hidden)
        step[column] = 1e-5
        difference = (_layer_norm(x + step, weight, 0 * weight) - _layer_norm(x - step, weight, 0 * weight)) / 2e-5
        np.testing.assert_allclose(got[..., column], (difference * dy).sum(-1), rtol=1e-3, atol=1e-4)
