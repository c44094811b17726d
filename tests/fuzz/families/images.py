"""Convolutions, windows and changes of size, and the blocks that image networks are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz.families.products import SOFTENING
from tests.fuzz.families.reductions import reduced

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

KINDS = ("conv", "conv", "conv", "transposed", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool",
         "GlobalMaxPool", "batch", "resize", "depth", "instance", "group", "local")


def pick_image(g: Graph) -> str | None:
    x = g.pick("f", 3)
    return None if x is None or g.values[x].ndim > 4 else x


def image(g: Graph) -> None:
    """One operator on something of rank 3 or 4."""
    x = pick_image(g)
    if x is None:
        return
    value, kind = g.values[x], str(g.rng.choice(KINDS))
    spatial, channels = value.ndim - 2, value.shape[1]
    if kind in ("conv", "transposed"):
        convolution(g, x, kind == "transposed")
    elif kind.endswith("Pool") and not kind.startswith("Global"):
        window(g, x, kind)
    elif kind.startswith("Global"):
        g.put(kind, [x])
    elif kind == "resize":
        resize(g, x)
    elif kind == "depth" and spatial == 2:
        more: dict[str, Any] = {"mode": "CRD"} if g.opset >= 11 and g.rng.random() < 0.4 else {}
        apart = g.rng.random() < 0.5
        g.put("SpaceToDepth" if apart else "DepthToSpace", [x], blocksize=2, **({} if apart else more))
    elif kind == "instance":
        g.put("InstanceNormalization", [x, *(g.const(g.rng.standard_normal(channels), value.dtype) for _ in range(2))],
              **_epsilon(g))
    elif kind == "group" and channels % 2 == 0 and channels:
        groups = int(g.rng.choice([n for n in (1, 2, 4, channels) if channels % n == 0]))
        four = [g.const(g.rng.standard_normal(channels if g.opset >= 21 else groups), value.dtype) for _ in range(2)]
        g.put("GroupNormalization", [x, *four], num_groups=groups, **_epsilon(g))
    elif kind == "batch":
        batch(g, x)
    elif kind == "local":
        g.put("LRN", [x], size=int(g.rng.choice([1, 3, 5])))


def _epsilon(g: Graph) -> dict[str, Any]:
    return {"epsilon": float(g.rng.choice([1e-3, 1e-6]))} if g.rng.random() < 0.4 else {}


def convolution(g: Graph, x: str, transposed: bool = False, wide: int = 0, same: bool = False) -> str | None:
    """`same`: the result has the operand's extents; `wide`: how many channels it has."""
    value = g.values[x]
    spatial, channels = value.ndim - 2, value.shape[1]
    kernel = [int(k) for k in g.rng.choice([1, 3, 3, 5] if same else [1, 2, 3, 5], size=spatial)]
    strides = [1 if same else int(s) for s in g.rng.choice([1, 1, 2, 3], size=spatial)]
    pads = [k // 2 for k in kernel * 2] if same else [int(p) for p in g.rng.integers(0, 3, size=2 * spatial)]
    group = int(g.rng.choice([1, 1, channels])) if channels else 1
    if channels % 4 == 0 and channels > 4 and g.rng.random() < 0.15:
        group = 4
    wide = wide or int(g.rng.choice([1, 2, 8, 16])) * (group if group > 1 else 1)
    group = group if wide % group == 0 else 1
    op, shape = "Conv", (wide, channels // max(group, 1), *kernel)
    if transposed:
        op, shape = "ConvTranspose", (channels, max(1, wide // group), *kernel)
        pads = [min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True)]
    weight = g.rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:]))))
    inputs = [x, g.const(weight, value.dtype)]
    if g.rng.random() < 0.6:
        inputs.append(g.const(g.rng.standard_normal(wide), value.dtype))
    more: dict[str, Any] = {"strides": strides, "pads": pads,
                            "dilations": [1 if same else int(d) for d in g.rng.choice([1, 1, 1, 2], size=spatial)]}
    if not same and g.rng.random() < 0.1:
        del more["pads"]
        more["auto_pad"] = str(g.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if g.rng.random() < 0.5:
        more["kernel_shape"] = kernel
    if transposed and g.rng.random() < 0.2:
        more["output_padding"] = [int(g.rng.integers(0, s)) for s in strides]
    made = g.put(op, inputs, group=group, **more)
    if made is not None and g.rng.random() < 0.6:
        made = g.put(str(g.rng.choice(SOFTENING)), [made])
    if made is not None and g.values[made].shape == value.shape and g.rng.random() < 0.6:
        made = g.put("Add", [made, x])
    return made


def window(g: Graph, x: str, kind: str) -> None:
    spatial = g.values[x].ndim - 2
    kernel = [int(k) for k in g.rng.choice([1, 2, 3, 5], size=spatial)]
    strides = [int(s) for s in g.rng.choice([1, 1, 2, 3], size=spatial)]
    pads = [min(int(p), k - 1) for p, k in zip(g.rng.integers(0, 3, size=2 * spatial), kernel * 2, strict=True)]
    more: dict[str, Any] = {"count_include_pad": 1} if kind == "AveragePool" and g.rng.random() < 0.5 else {}
    if kind == "MaxPool" and g.opset >= 10 and g.rng.random() < 0.15:
        more["dilations"] = [2] * spatial
    if g.opset >= 10 and kind != "LpPool":
        more["ceil_mode"] = int(g.rng.random() < 0.3)
    second = kind == "MaxPool" and g.rng.random() < 0.15  # the places of the largest
    g.put(kind, [x], 2 if second else 1, kernel_shape=kernel, strides=strides, pads=pads, **more)


def resize(g: Graph, x: str) -> None:
    """By scales or to sizes, in the modes that exporters use."""
    value = g.values[x]
    spatial = value.ndim - 2
    if g.opset < 10:
        scales = [1.0, 1.0, *(float(s) for s in g.rng.choice([1.0, 2.0, 3.0], size=spatial))]
        if g.opset == 9:
            g.put("Upsample", [x, g.const(scales, np.float32)], mode=str(g.rng.choice(["nearest", "linear"])))
        return
    if g.opset < 11:
        scales = [1.0, 1.0, *(float(s) for s in g.rng.choice([1.0, 2.0, 0.5], size=spatial))]
        g.put("Resize", [x, g.const(scales, np.float32)], mode=str(g.rng.choice(["nearest", "linear"])))
        return
    mode = str(g.rng.choice(["nearest", "nearest", "linear", "cubic"]))
    where = str(g.rng.choice(["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"]))
    near = str(g.rng.choice(["floor", "round_prefer_floor", "ceil", "round_prefer_ceil"]))
    more: dict[str, Any] = {"nearest_mode": near} if mode == "nearest" else {}
    if mode == "cubic" and g.rng.random() < 0.5:
        more["cubic_coeff_a"] = -0.5
    if mode != "nearest" and g.rng.random() < 0.2:
        more["exclude_outside"] = int(mode == "cubic")
    if mode != "nearest" and g.opset >= 18 and g.rng.random() < 0.2:
        more["antialias"] = 1
    none = "" if g.opset >= 13 else g.const(np.zeros(0, np.float32))
    if g.rng.random() < 0.4:
        sizes = [*value.shape[:2], *(max(1, d + int(g.rng.integers(-2, 9))) for d in value.shape[2:])]
        g.put("Resize", [x, none, none, g.const(sizes, np.int64)], mode=mode, coordinate_transformation_mode=where,
              **more)
        return
    factors = [1.0, 2.0, 3.0, 0.5] if g.rng.random() < 0.3 else [1.0, 2.0, 3.0]
    scales = [1.0, 1.0, *(float(s) for s in g.rng.choice(factors, size=spatial))]
    g.put("Resize", [x, none, g.const(scales, np.float32)], mode=mode, coordinate_transformation_mode=where, **more)


def batch(g: Graph, x: str) -> str | None:
    channels, dtype = g.values[x].shape[1], g.values[x].dtype
    four = [g.rng.standard_normal(channels) for _ in range(3)] + [g.rng.random(channels) + 0.5]
    return g.put("BatchNormalization", [x, *(g.const(v, dtype) for v in four)], **_epsilon(g))


# -- what networks are made of ------------------------------------------------------------------------------------
def residual(g: Graph) -> None:
    """Two convolutions that keep the extents, a normalisation or none, and the operand again."""
    x = pick_image(g)
    if x is None or 0 in g.values[x].shape:
        return
    channels = g.values[x].shape[1]
    inner = convolution(g, x, wide=int(g.rng.choice([8, 16, 24])), same=True)
    inner = inner and (batch(g, inner) if g.rng.random() < 0.4 else inner)
    inner = inner and g.put(str(g.rng.choice(["Relu", "Sigmoid", "HardSwish" if g.opset >= 14 else "Relu"])), [inner])
    made = inner and convolution(g, inner, wide=channels, same=True)
    if made and g.values[made].shape == g.values[x].shape:
        made = g.put("Add", [made, x])
        if made and g.rng.random() < 0.5:
            g.put("Relu", [made])


def shifted(g: Graph) -> None:
    """Numbers of each channel times the image, or added to it, and a convolution that may read beside it."""
    x = pick_image(g)
    if x is None or 0 in g.values[x].shape:
        return
    value = g.values[x]
    shape = (value.shape[1], *([1] * (value.ndim - 2))) if g.rng.random() < 0.7 else (1,)
    made: str | None = x
    for op in g.rng.permutation(["Mul", "Add"])[:int(g.rng.integers(1, 3))]:
        made = made and g.put(str(op), [made, g.const(g.rng.standard_normal(shape), value.dtype)])
    made = made and convolution(g, made, same=bool(g.rng.random() < 0.3))
    if made and g.rng.random() < 0.4:
        g.put("Mul", [made, g.const(g.rng.standard_normal((g.values[made].shape[1], *shape[1:])), value.dtype)])


def excited(g: Graph) -> None:
    """A scale of each channel that comes from the means of all of them."""
    x = pick_image(g)
    if x is None or 0 in g.values[x].shape:
        return
    value = g.values[x]
    spatial = list(range(2, value.ndim))
    mean = g.put("GlobalAveragePool", [x]) if g.rng.random() < 0.6 else reduced(g, "ReduceMean", x, spatial, 1)
    few = mean and convolution(g, mean, wide=4, same=True)
    few = few and g.put("Relu", [few])
    many = few and convolution(g, few, wide=value.shape[1], same=True)
    scale = many and g.put("HardSigmoid" if g.rng.random() < 0.5 else "Sigmoid", [many])
    if scale:
        g.put("Mul", [x, scale] if g.rng.random() < 0.7 else [scale, x])


def parted(g: Graph) -> None:
    """Channels apart, one part convolved, both joined again: and shuffled now and then."""
    x = pick_image(g)
    if x is None or g.values[x].shape[1] % 2 or 0 in g.values[x].shape:
        return
    value = g.values[x]
    half = value.shape[1] // 2
    split = (g.put("Split", [x, g.const([half, half], np.int64)], 2, axis=1) if g.opset >= 13 else
             g.put("Split", [x], 2, axis=1, split=[half, half]))
    other = split and g.outs[1]
    left = split and convolution(g, split, wide=half, same=True)
    joined = left and other and g.put("Concat", [other, left] if g.rng.random() < 0.5 else [left, other], axis=1)
    if joined and value.ndim == 4 and g.rng.random() < 0.4:
        shape = g.values[joined].shape
        five = g.put("Reshape", [joined, g.const([shape[0], 2, half, *shape[2:]], np.int64)])
        five = five and g.put("Transpose", [five], perm=[0, 2, 1, 3, 4])
        if five:
            g.put("Reshape", [five, g.const([0, -1, *shape[2:]], np.int64)])


def pyramid(g: Graph) -> None:
    """Half the size, convolved, and back to the other's size: joined with what it came from."""
    x = pick_image(g)
    if x is None or min(g.values[x].shape[2:]) < 2 or any(d % 2 for d in g.values[x].shape[2:]) or g.opset < 13:
        return
    value = g.values[x]
    spatial = value.ndim - 2
    small = g.put("MaxPool", [x], kernel_shape=[2] * spatial, strides=[2] * spatial)
    small = small and convolution(g, small, wide=int(g.rng.choice([8, 16])), same=True)
    if small is None:
        return
    kind = int(g.rng.integers(3))
    if kind == 0:
        scales = g.const([1.0, 1.0, *([2.0] * spatial)], np.float32)
        large = g.put("Resize", [small, "", scales], mode="nearest", nearest_mode="floor",
                      coordinate_transformation_mode="asymmetric")
    elif kind == 1:
        dims = g.put("Shape", [x])
        sizes = dims and g.put("Slice", [dims, *(g.const([n], np.int64) for n in (2, 2 + spatial, 0))])
        sizes = sizes and g.put("Concat", [g.const(g.values[small].shape[:2], np.int64), sizes], axis=0)
        large = sizes and g.put("Resize", [small, "", "", sizes], mode="linear")
    else:
        channels = g.values[small].shape[1]
        weight = g.rng.standard_normal((channels, 8, *([2] * spatial))) / np.sqrt(channels)
        large = g.put("ConvTranspose", [small, g.const(weight, value.dtype)], strides=[2] * spatial)
    if large:
        if g.values[large].shape == value.shape and g.rng.random() < 0.5:
            g.put("Add", [large, x])
        else:
            g.put("Concat", [large, x], axis=1)


STEPS = (image, image, image, image, residual, shifted, excited, parted, pyramid)
