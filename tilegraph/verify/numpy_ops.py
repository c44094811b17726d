"""Ops for onnx.reference: some that it gets wrong, and convolutions and pools that are quick on real networks.

They multiply matrices where onnx.reference loops over positions, in the dtype of their inputs. The definitions are
ONNX's: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


def _pads(auto_pad: str | None, pads: Any, spatial: tuple[int, ...], kernel: tuple[int, ...], strides: list[int],
          dilations: list[int]) -> list[tuple[int, int]]:
    """(before, after) for each spatial axis."""
    n = len(spatial)
    if auto_pad in (None, "", "NOTSET"):
        flat = list(pads) if pads is not None else [0] * (2 * n)
        return [(flat[i], flat[i + n]) for i in range(n)]
    if auto_pad == "VALID":
        return [(0, 0)] * n
    found: list[tuple[int, int]] = []
    for size, k, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        found.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return found


def _windows(x: Array, kernel: tuple[int, ...], strides: list[int], dilations: list[int]) -> Array:
    """A view of [N, C, *spatial] as [N, C, *out, *kernel]."""
    n = len(kernel)
    axes = tuple(range(2, 2 + n))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    steps = tuple(slice(None, None, s) for s in strides)
    holes = tuple(slice(None, None, d) for d in dilations)
    result: Array = view[(slice(None), slice(None), *steps, *holes)]
    return result


class Conv(OpRun):  # type: ignore[misc,unused-ignore]
    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, auto_pad: str | None = None, dilations: Any = None,
             group: int | None = None, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
             ) -> tuple[Array]:
        kernel = tuple(w.shape[2:])
        n, groups = len(kernel), group or 1
        strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
        around = _pads(auto_pad, pads, x.shape[2:], kernel, strides, dilations)
        view = _windows(np.pad(x, [(0, 0), (0, 0), *around]), kernel, strides, dilations)
        batch, out = x.shape[0], view.shape[2:2 + n]
        per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
        y = np.zeros((batch, w.shape[0], *out), x.dtype)
        # One tap of the kernel at a time: memory stays at a few images.
        for tap in np.ndindex(*kernel):
            seen, weight = view[(..., *tap)], w[(..., *tap)]
            if per_in == 1 and per_out == 1:
                y += seen * weight[:, 0].reshape(1, -1, *[1] * n)
                continue
            for item, g in np.ndindex(batch, groups):
                rows = slice(g * per_out, (g + 1) * per_out)
                y[item, rows] += np.tensordot(weight[rows], seen[item, g * per_in:(g + 1) * per_in], 1)
        if b is not None:
            y += b.reshape(1, -1, *[1] * n)
        return (y,)


class GlobalAveragePool(OpRun):  # type: ignore[misc,unused-ignore]
    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x.mean(axis=tuple(range(2, x.ndim)), keepdims=True), x.dtype),)


class GlobalMaxPool(OpRun):  # type: ignore[misc,unused-ignore]
    # onnx.reference's drops the spatial axes.
    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True)),)


class BatchNormalization(OpRun):  # type: ignore[misc,unused-ignore]
    # onnx.reference's takes the statistics of the batch below opset 14.
    op_domain = ""

    def _run(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float | None = None,
             momentum: float | None = None, training_mode: int | None = None, spatial: int | None = None,
             is_test: int | None = None) -> tuple[Array, ...]:
        outputs = len(self.onnx_node.output)
        if spatial == 0 or (outputs > 1 and not training_mode):
            raise NotImplementedError("BatchNormalization of an old form has no numpy form here")
        eps = 1e-5 if epsilon is None else epsilon
        wide = [1, -1] + [1] * (x.ndim - 2)
        running: tuple[Array, ...] = ()
        if training_mode:
            axes = (0, *range(2, x.ndim))
            keep = 0.9 if momentum is None else momentum
            now_mean, now_var = x.mean(axis=axes), x.var(axis=axes)
            running = (mean * keep + now_mean * (1 - keep), var * keep + now_var * (1 - keep))
            mean, var = now_mean, now_var
        factor = scale / np.sqrt(var + eps)
        y = (x - mean.reshape(wide)) * factor.reshape(wide) + bias.reshape(wide)
        return (np.asarray(y, x.dtype), *running)[:outputs]


class MaxPool(OpRun):  # type: ignore[misc,unused-ignore]
    op_domain = ""

    def _run(self, x: Array, auto_pad: str | None = None, ceil_mode: int | None = None, dilations: Any = None,
             kernel_shape: Any = None, pads: Any = None, storage_order: int | None = None, strides: Any = None,
             ) -> tuple[Array]:
        if len(self.onnx_node.output) > 1:
            raise NotImplementedError("MaxPool with indices has no numpy form here")
        kernel = tuple(kernel_shape)
        n = len(kernel)
        strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
        around = _pads(auto_pad, pads, x.shape[2:], kernel, strides, dilations)
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        around = _room_for_ceil(ceil_mode, around, x.shape[2:], kernel, strides, dilations)
        padded = np.pad(x, [(0, 0), (0, 0), *around], constant_values=lowest)
        view = _windows(padded, kernel, strides, dilations)
        y = np.full(view.shape[:2 + n], lowest, x.dtype)
        for tap in np.ndindex(*kernel):
            np.maximum(y, view[(..., *tap)], out=y)
        return (y,)


class LRN(OpRun):
    """onnx.reference fails where a window reaches beyond the channels, and knows four axes only."""

    def _run(self, x: Array, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        before = (size - 1) // 2
        padded = np.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
        squares = np.sum(np.lib.stride_tricks.sliding_window_view(padded, size, axis=1), axis=-1)
        return ((x / (float(bias) + float(alpha) / size * squares) ** float(beta)).astype(x.dtype),)


def _room_for_ceil(ceil_mode: int | None, around: list[tuple[int, int]], spatial: tuple[int, ...],
                   kernel: tuple[int, ...], strides: list[int], dilations: list[int]) -> list[tuple[int, int]]:
    """More padding after, so that flooring gives ONNX's ceil_mode size (a window must start inside the input or
    its leading padding)."""
    if not ceil_mode:
        return around
    found: list[tuple[int, int]] = []
    for (before, after), size, k, stride, dilation in zip(around, spatial, kernel, strides, dilations, strict=True):
        reach = (k - 1) * dilation + 1
        count = -(-(size + before + after - reach) // stride) + 1
        if (count - 1) * stride >= size + before:
            count -= 1
        found.append((before, max(after, (count - 1) * stride + reach - size - before)))
    return found


class Pad(OpRun):  # type: ignore[misc,unused-ignore]
    """Negative pads, too, which take elements away."""

    op_domain = ""

    def _run(self, x: Array, given: Array | None = None, constant: Any = None, axes: Array | None = None,
             mode: str | None = None, pads: Any = None, value: float | None = None) -> tuple[Array]:
        """Inputs from opset 11 on, attributes before."""
        flat = [int(n) for n in (pads if given is None else given)]
        names = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
        around = [(0, 0)] * x.ndim
        for k, axis in enumerate(names):
            around[axis] = flat[k], flat[k + len(names)]
        if mode not in (None, "constant"):
            if min(flat, default=0) < 0:
                raise NotImplementedError(f"negative pads of mode {mode}")
            return (np.pad(x, around, mode=mode),)  # type: ignore[call-overload]
        # One end may take away what the other one adds, so padding comes first.
        wide = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in around],
                      constant_values=x.dtype.type(0) if (fill := value if constant is None else constant) is None
                      else np.asarray(fill, x.dtype).reshape(()))
        return (wide[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(wide.shape, around, strict=True))],)


_erf = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):  # type: ignore[misc,unused-ignore]
    """In float64: onnx.reference rounds every result to float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (_erf(x).astype(x.dtype),)


OPS = (BatchNormalization, Conv, Erf, GlobalAveragePool, GlobalMaxPool, LRN, MaxPool, Pad)
