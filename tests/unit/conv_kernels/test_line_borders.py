"""The first and last tile of a line of symbolic extent, against which elements each window reads."""

from __future__ import annotations

import pytest

from tilegraph.codegen.conv.tiles import line_borders
from tilegraph.ops.conv import Axis
from tilegraph.spec.dims import Dim


@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (5, 1), (3, 2)])
def test_stride_of_one(before: int, after: int, kernel: int, dilation: int) -> None:
    size, width = Dim.symbol("w"), 14
    out = size + (before + after - (kernel - 1) * dilation)
    borders = line_borders(Axis(size, out, Dim.of(kernel), 1, dilation, before), width)
    assert borders is not None
    assert borders.closed
    count = 60
    results = count + before + after - (kernel - 1) * dilation

    def taps(start: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(i for i in range(width) if 0 <= start + i + k * dilation - before < count)
                     for k in range(kernel))

    every = (tuple(range(width)),) * kernel
    assert (borders.left or every) == taps(0)
    assert (borders.right or every) == taps(results - width)
    assert (borders.left is None) == (before == 0)


def test_only_the_run_knows_the_end_with_strides() -> None:
    size = Dim.symbol("w")
    borders = line_borders(Axis(size, (size - 1) // 2 + 1, Dim.of(3), 2, 1, 1), 4)
    assert borders is not None
    assert (borders.left, borders.right, borders.closed) == (((1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)), None, False)


@pytest.mark.parametrize(("kernel", "before", "more"), [
    (17, 8, 0),  # more taps than are written out
    (3, 15, 14),  # the first tile lies outside
    (3, 0, 13),  # and the last one
    (3, -1, -4),  # elements that no window reads
])
def test_refused(kernel: int, before: int, more: int) -> None:
    size = Dim.symbol("w")
    assert line_borders(Axis(size, size + more, Dim.of(kernel), 1, 1, before), 14) is None
