"""Layers that are alike have one set of kernels, however many there are."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from tests.conformance.large import image, nodes, transformer


@pytest.mark.parametrize("build", [transformer, image])
def test_layers_that_are_alike_compile_once(build: Callable[[int], onnx.ModelProto]) -> None:
    few, more = nodes(build(3)), nodes(build(5))
    assert more["calls"] - few["calls"] >= 2 * 6
    assert more["kernels"] == few["kernels"] < few["calls"]
    assert few["partitions"] == more["partitions"] == 1
