"""GridSample, AffineGrid, OneHot, cubic Resize and looked-up rotary caches against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numeric.codegen.test_special_values import ort_run, ours_run
from tests.unit.fusion.parse import lowered
from tilegraph.ops.prims import Decline

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(4)


def close(text: str, feeds: dict[str, Array], opset: int, eps: float = 16.0) -> None:
    (ours,), (theirs,) = ours_run(text, feeds, opset), ort_run(text, feeds, opset)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert np.abs(ours - theirs).max() <= eps * 1.2e-7 * np.abs(theirs).max()


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_inside_and_far_outside(mode: str, padding: str, corners: int) -> None:
    text = (f'(float[2,3,5,7] x, float[2,4,9,2] g) => (float[2,3,4,9] y) {{ y = GridSample<mode="{mode}", '
            f'padding_mode="{padding}", align_corners={corners}>(x, g) }}')
    x = RNG.normal(size=(2, 3, 5, 7)).astype(np.float32)
    grid = RNG.uniform(-1.5, 1.5, (2, 4, 9, 2)).astype(np.float32)
    grid[0, 0] *= 4  # reflected several times
    grid[1, 1, :4] = np.array([[-1, -1], [1, 1], [0, 1], [-1, 0.5]])  # on the border
    if mode == "nearest":  # not halfway between two pixels, where one rounding decides
        grid[1, 1, :4] *= 0.95
    close(text, {"x": x, "g": grid}, 20, 64.0)


def test_grid_sample_of_no_place() -> None:
    text = "(float[1,1,5,7] x, float[1,1,20,2] g) => (float[1,1,1,20] y) { y = GridSample(x, g) }"
    grid = np.zeros((1, 1, 20, 2), np.float32)
    grid[0, 0, :6, 0] = np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10
    (ours,) = ours_run(text, {"x": np.ones((1, 1, 5, 7), np.float32), "g": grid}, 20)
    assert not ours[..., :6].any()
    assert np.all(ours[..., 6:] == 1)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 6), (2, 3, 4, 5, 6)])
def test_affine_grid(size: tuple[int, ...], corners: int) -> None:
    rank = len(size) - 2
    text = (f"(float[2,{rank},{rank + 1}] t) => (float[{size[0]},{','.join(map(str, size[2:]))},{rank}] y) {{ "
            f"s = Constant<value = int64[{len(size)}] {{{','.join(map(str, size))}}}>() "
            f"y = AffineGrid<align_corners={corners}>(t, s) }}")
    close(text, {"t": RNG.normal(size=(2, rank, rank + 1)).astype(np.float32)}, 20)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_of_negative_and_outside_indices(axis: int) -> None:
    shape = {-1: "3,4,6", 0: "6,3,4", 1: "3,6,4"}[axis]
    text = (f"(int64[3,4] i, float[2] v) => (float[{shape}] y) {{ d = Constant<value = int64 {{6}}>() "
            f"y = OneHot<axis={axis}>(i, d, v) }}")
    index = np.array([[0, 5, 6, -1], [-6, -7, 3, 2], [99, -99, 1, 4]])
    close(text, {"i": index, "v": np.array([0.25, 4], np.float32)}, 11)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize(("h", "w"), [(9, 13), (3, 4)])
def test_cubic_resize(h: int, w: int, transform: str, exclude: int) -> None:
    text = (f'(float[1,2,5,7] x) => (float[1,2,{h},{w}] y) {{ s = Constant<value = int64[4] {{1,2,{h},{w}}}>() '
            f'y = Resize<mode="cubic", coordinate_transformation_mode="{transform}", exclude_outside={exclude}, '
            "cubic_coeff_a=-0.5>(x, , , s) }")
    close(text, {"x": RNG.normal(size=(1, 2, 5, 7)).astype(np.float32)}, 18, 64.0)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_caches_looked_up_at_position_ids(interleaved: int) -> None:
    text = ("(float[2,3,4,8] x, float[50,4] c, float[50,4] s, int64[2,4] p) => (float[2,3,4,8] y) { "
            f"y = RotaryEmbedding<interleaved={interleaved}>(x, c, s, p) }}")
    angles = RNG.normal(size=(50, 4))
    close(text, {"x": RNG.normal(size=(2, 3, 4, 8)).astype(np.float32), "c": np.cos(angles).astype(np.float32),
                 "s": np.sin(angles).astype(np.float32), "p": RNG.integers(0, 50, (2, 4))}, 23)


@pytest.mark.parametrize(("text", "opset", "reason"), [
    ('(float[1,1,5,7] x, float[1,4,9,2] g) => (float[1,1,4,9] y) { y = GridSample<mode="cubic">(x, g) }', 20,
     "GridSample in mode cubic"),
    ("(float[1,1,H,7] x, float[1,4,9,2] g) => (float[1,1,4,9] y) { y = GridSample(x, g) }", 20, "symbolic extents"),
    ("(float[2,2,3] t, int64[4] s) => (float[2,H,W,2] y) { y = AffineGrid(t, s) }", 20, "is not constant"),
    ("(int64[3] i, int64 d, float[2] v) => (float[3,D] y) { y = OneHot(i, d, v) }", 11, "depth that is not constant"),
])
def test_what_is_declined(text: str, opset: int, reason: str) -> None:
    with pytest.raises(Decline, match=reason):
        lowered(text, opset)
