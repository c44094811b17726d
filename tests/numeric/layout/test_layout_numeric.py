"""Blocked graphs give the original's answers in plain ONNX Runtime: the bodies of composites are standard ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models import builders
from models.builders.graph import Graph
from models.inputs import inputs_for
from tilegraph.compiler.program import lowered_of
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.algebra import ALGEBRA
from tilegraph.rewrites.layout.extents import NameExtents
from tilegraph.rewrites.layout.groups import WholeGroups
from tilegraph.rewrites.layout.plan import LayoutPlanning
from tilegraph.rewrites.normalise import NORMALISE

Array = npt.NDArray[Any]


def _run(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def blocked(model: onnx.ModelProto, lanes: int, offload: str = "all") -> tuple[ir.Model, PassContext]:
    """Normalised, and every window that has a blocked form in it."""
    rewritten = load(model)
    context = PassContext()
    passes = *NORMALISE, *ALGEBRA, NameExtents(), WholeGroups(offload, lanes), LayoutPlanning(offload, lanes)
    Pipeline(passes).run(rewritten, context)
    return rewritten, context


def check(model: onnx.ModelProto, lanes: int = 16, dims: dict[str, int] | None = None, windows: int = 1) -> ir.Model:
    """Same answers as float32 reassociation allows, and at least `windows` composites."""
    rewritten, _ = blocked(model, lanes)
    assert sum(n.op_type.startswith(("Conv_", "Pool_")) for n in rewritten.graph) >= windows
    assert not any(n.op_type in ("Conv", "ConvTranspose", "MaxPool") and n.domain == "" for n in rewritten.graph)
    for function in rewritten.functions.values():
        lowered_of(function)  # what kernels are made of
    proto = ir.to_proto(rewritten)
    onnx.checker.check_model(proto, full_check=True)
    for seed in (0, 1):
        feeds = inputs_for(model, dims=dims, seed=seed)
        for ours, theirs in zip(_run(proto, feeds), _run(model, feeds), strict=True):
            assert ours.shape == theirs.shape
            assert theirs.std() > 1e-3
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(np.abs(theirs).max()))
    return rewritten


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2", "vgg19", "yolo_n"])
def test_built_networks(name: str, dynamic: bool, lanes: int) -> None:
    dims = dict(builders.builder(name).example) if dynamic else None
    check(builders.build(name, size="small", dynamic=dynamic), lanes, dims, windows=8)


def _weights(g: Graph, out: int, depth: int, *kernel: int) -> str:
    return g.weight(f"w{len(g._initializers)}", g.normal(out, depth, *kernel, std=(depth * np.prod(kernel)) ** -0.5))


def _net(write: Callable[[Graph, str], str], shape: list[Any], opset: int = 18) -> onnx.ModelProto:
    """x -> a convolution to 17 channels -> `write` -> y, so that lanes are left over on both sides."""
    g = Graph("net", opset=opset)
    x = g.input("x", shape)
    spatial = len(shape) - 2
    bias = g.weight("bias", g.normal(17))
    x = g.op("Conv", x, _weights(g, 17, shape[1], *[3] * spatial), bias, pads=[1] * 2 * spatial)
    y = write(g, x)
    g.output(y, "y", ["a", "b", "c", "d"][:len(shape)])
    return g.finish()


def _conv(out: int, groups: int = 1, kernel: int = 3, **attributes: Any) -> Callable[[Graph, str], str]:
    def write(g: Graph, x: str) -> str:
        return g.op("Conv", x, _weights(g, out, 17 // groups, kernel, kernel), group=groups, **attributes)

    return write


CONVS: dict[str, Callable[[Graph, str], str]] = {
    "one_filter": _conv(1, kernel=1),
    "strided": _conv(24, strides=[2, 3], pads=[1, 0, 2, 1]),
    "dilated": _conv(33, dilations=[2, 3], pads=[2, 3, 2, 3]),
    "same_upper": _conv(8, auto_pad="SAME_UPPER", strides=[2, 2]),
    "same_lower": _conv(8, auto_pad="SAME_LOWER", kernel=4),
    "depthwise": _conv(17, groups=17, pads=[1] * 4),
    "large": _conv(5, kernel=5, pads=[4, 0, 0, 4]),
}


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_with_channels_that_fill_no_blocks(name: str, lanes: int) -> None:
    check(_net(CONVS[name], [2, 20, 9, 14]), lanes, windows=2)
    check(_net(CONVS[name], [2, 3, 9, 14]), lanes, windows=2)


@pytest.mark.parametrize("name", ["one_filter", "dilated", "depthwise"])
def test_symbolic_batch_height_and_width(name: str) -> None:
    check(_net(CONVS[name], ["n", 20, "h", "w"]), dims={"n": 3, "h": 11, "w": 7}, windows=2)


def _in_groups(groups: int, out: int) -> Callable[[Graph, str], str]:
    """A bottleneck in groups, as ResNeXt has it; `out` filters from 40 channels."""
    def write(g: Graph, x: str) -> str:
        y = g.op("Relu", g.op("Conv", x, _weights(g, 40, 17, 1, 1)))
        y = g.op("Relu", g.op("Conv", y, _weights(g, out, 40 // groups, 3, 3), group=groups, pads=[1] * 4))
        return g.op("Add", x, g.op("Conv", y, _weights(g, 17, out, 1, 1)))

    return write


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("groups", "out"), [(10, 40), (20, 40), (40, 80)])
def test_groups_smaller_than_a_block(groups: int, out: int, lanes: int) -> None:
    check(_net(_in_groups(groups, out), ["n", 3, "h", "w"]), lanes, dims={"n": 2, "h": 9, "w": 12}, windows=4)


def _odd_groups(groups: int, depth: int, filters: int) -> onnx.ModelProto:
    def write(g: Graph, x: str) -> str:
        y = g.op("Conv", x, _weights(g, groups * depth, 17, 1, 1))
        bias = g.weight("gb", g.normal(groups * filters))
        kernels = _weights(g, groups * filters, depth, 3, 3)
        y = g.op("Conv", y, kernels, bias, group=groups, strides=[2, 2], pads=[1] * 4)
        return g.op("Conv", g.op("Mul", y, g.op("Sigmoid", y)), _weights(g, 8, groups * filters, 1, 1))

    return _net(write, ["n", 20, 18, 20])


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("groups", "depth", "filters"), [(6, 3, 3), (3, 20, 24), (2, 1, 3), (2, 5, 5)])
def test_groups_that_do_not_divide_a_block(groups: int, depth: int, filters: int, lanes: int) -> None:
    check(_odd_groups(groups, depth, filters), lanes, {"n": 2}, windows=4)


def test_infinities_of_channels_that_stand_twice() -> None:
    g = Graph("net", opset=18)
    x = g.input("x", [1, 15, 64, 64])
    g.output(g.op("Conv", x, _weights(g, 15, 5, 3, 3), group=3), "y", [1, 15, 62, 62])
    model = g.finish()
    rewritten, context = load(model), PassContext()
    assert WholeGroups("all", 16).run(rewritten, context).modified
    feeds = inputs_for(model)
    feeds["x"][0, [1, 7, 14], [3, 20, 40], [5, 30, 50]] = [np.inf, -np.inf, np.nan]
    (ours,), (theirs,) = _run(ir.to_proto(rewritten), feeds), _run(model, feeds)
    assert np.isposinf(theirs).sum() > 9 < np.isneginf(theirs).sum()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def _gate(g: Graph, x: str) -> str:
    """Squeeze and excite."""
    s = g.op("GlobalAveragePool", x)
    s = g.op("Relu", g.op("Conv", s, _weights(g, 5, 17, 1, 1), g.weight("b1", g.normal(5))))
    s = g.op("HardSigmoid", g.op("Conv", s, _weights(g, 17, 5, 1, 1), g.weight("b2", g.normal(17))), alpha=0.2)
    return g.op("Mul", x, s)


def _norm(g: Graph, x: str) -> str:
    """Not folded, because something else reads the convolution too."""
    vectors = [g.weight(n, abs(g.normal(17)) + 0.5) for n in ("scale", "shift", "mean", "var")]
    y = g.op("Relu", g.op("BatchNormalization", g.op("Relu", x), *vectors, epsilon=1e-3))
    return g.op("Add", g.op("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4), x)


def _branches(g: Graph, x: str) -> str:
    y = g.op("Conv", x, _weights(g, 48, 17, 1, 1))
    parts = g.ops("Split", 2, y, g.const([16, 32]), axis=1)
    z = g.op("Conv", g.op("Sigmoid", parts[1]), _weights(g, 9, 32, 1, 1))
    return g.op("Concat", parts[0], g.op("Tanh", parts[1]), z, axis=1)


def _moved(g: Graph, x: str) -> str:
    """Halves that fill no blocks, shuffled again and again, as ShuffleNet does it; the last ones are chosen singly."""
    y = g.op("Conv", x, _weights(g, 34, 17, 1, 1))
    for _ in range(3):
        first, second = g.ops("Split", 2, y, axis=1, num_outputs=2)
        y = g.op("Concat", first, g.op("Relu", g.op("Conv", second, _weights(g, 17, 17, 1, 1))), axis=1)
        y = g.op("Transpose", g.op("Reshape", y, g.const([2, 2, 17, 8, 12])), perm=[0, 2, 1, 3, 4])
        y = g.op("Reshape", y, g.const([2, 34, 8, 12]))
    z = g.op("Slice", y, g.const([33]), g.const([-40]), g.const([1]), g.const([-3]))
    twice = g.op("MaxPool", g.op("Gather", y, g.const([5, -1, 5]), axis=1), kernel_shape=[1, 1])
    return g.op("Concat", z, twice, axis=1)


def _pieces(g: Graph, x: str) -> str:
    """Each part joins the one before, as in Res2Net; whole blocks of one value are read by a kernel and by a graph."""
    parts = g.ops("Split", 3, g.op("Conv", x, _weights(g, 42, 17, 1, 1)), axis=1, num_outputs=3)
    y = g.op("Conv", parts[0], _weights(g, 14, 14, 3, 3), pads=[1] * 4)
    z = g.op("Conv", g.op("Add", y, parts[1]), _weights(g, 14, 14, 3, 3), pads=[1] * 4)
    wide = g.op("Conv", g.op("Concat", y, z, parts[2], axis=1), _weights(g, 48, 42, 1, 1))
    low, high = (g.op("Slice", wide, g.const([a]), g.const([b]), g.const([1])) for a, b in ((0, 16), (16, 99)))
    return g.op("Concat", g.op("Sigmoid", low), g.op("Softmax", high, axis=1), g.op("Relu", high), axis=1)


def _by_channel(g: Graph, x: str) -> str:
    y = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = g.op("Mul", y, g.weight("scale", g.normal(17, 1, 1)))
    y = g.op("Clip", g.op("Sub", g.weight("shift", g.normal(1, 17, 1, 1)), y), g.const(-1.0), g.const(2.5))
    return g.op("Conv", g.op("AveragePool", y, kernel_shape=[2, 2]), _weights(g, 20, 17, 1, 1))


def _double(g: Graph, x: str) -> str:
    y = g.op("Resize", x, "", g.const([1.0, 1.0, 2.0, 3.0]), mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric")
    return g.op("Conv", y, _weights(g, 8, 17, 3, 3))


def _double_half_pixel(g: Graph, x: str) -> str:
    y = g.op("Resize", x, "", g.const([1.0, 1.0, 2.0, 3.0]), mode="nearest")
    return g.op("Conv", y, _weights(g, 8, 17, 3, 3))


def _apart(g: Graph, x: str) -> str:
    """ConvTranspose without overlap, twice, and a gate in front of the convolution behind it."""
    y = g.op("Relu", g.op("ConvTranspose", x, _weights(g, 17, 24, 2, 2), g.weight("b3", g.normal(24)), strides=[2, 2]))
    z = g.op("Sigmoid", g.op("Conv", g.op("GlobalAveragePool", y), _weights(g, 24, 24, 1, 1)))
    y = g.op("ConvTranspose", g.op("Add", y, g.op("Mul", y, z)), _weights(g, 24, 40, 1, 3), strides=[1, 3])
    return g.op("Conv", g.op("Mul", y, g.op("GlobalMaxPool", y)), _weights(g, 17, 40, 3, 3), pads=[1] * 4)


def _few(g: Graph, x: str) -> str:
    """Plain results: of a window behind a gate, and of one that plain and blocked readers share."""
    y = g.op("Mul", x, g.op("Sigmoid", g.op("GlobalAveragePool", x)))
    y = g.op("Softmax", g.op("Relu", g.op("Conv", y, _weights(g, 3, 17, 3, 3), g.weight("b4", g.normal(3)))), axis=1)
    z = g.op("Conv", x, _weights(g, 2, 17, 1, 1))
    z = g.op("Concat", g.op("Softmax", z, axis=1), z, axis=1)
    return g.op("Concat", y, g.op("MaxPool", z, kernel_shape=[3, 3]), axis=1)


PIECES = {"gate": _gate, "few": _few, "apart": _apart, "norm": _norm,
          "branches": _branches, "moved": _moved, "pieces": _pieces, "by_channel": _by_channel, "double": _double,
          "double_half_pixel": _double_half_pixel}


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("name", PIECES)
def test_what_stands_between_convolutions(name: str, lanes: int) -> None:
    check(_net(PIECES[name], [2, 20, 8, 12]), lanes)


def test_one_spatial_dim() -> None:
    def write(g: Graph, x: str) -> str:
        y = g.op("Conv", g.op("Relu", x), _weights(g, 30, 17, 5), strides=[2])
        return g.op("Add", g.op("MaxPool", y, kernel_shape=[3], pads=[1, 1]), y)

    check(_net(write, ["n", 6, "t"]), dims={"n": 2, "t": 50}, windows=2)


def test_values_that_are_read_on_both_sides_and_graph_outputs() -> None:
    g = Graph("net", opset=18)
    x = g.op("Relu", g.op("Conv", g.input("x", [1, 20, 6, 10]), _weights(g, 17, 20, 3, 3)))
    y = g.op("Conv", x, _weights(g, 17, 17, 1, 1))
    z = g.op("Softmax", g.op("Add", y, x), axis=3)
    g.output(y, "kept", [1, 17, 4, 8])
    g.output(z, "last", [1, 17, 4, 8])
    rewritten = check(g.finish(), windows=2)
    assert [v.name for v in rewritten.graph.outputs] == ["kept", "last"]


@pytest.mark.parametrize("lanes", [8, 16])
def test_a_pyramid_whose_extents_meet_only_when_it_runs(lanes: int) -> None:
    def write(g: Graph, x: str) -> str:
        half = g.op("Conv", x, _weights(g, 17, 17, 3, 3), strides=[2, 2], pads=[1] * 4)
        quarter = g.op("Conv", half, _weights(g, 17, 17, 3, 3), strides=[2, 2], pads=[1] * 4)
        roi = "" if g.opset >= 13 else g.const(np.zeros(0, np.float32))
        up = g.op("Resize", quarter, roi, g.const([1.0, 1.0, 2.0, 2.0]), mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric")
        return g.op("Conv", g.op("Add", up, half), _weights(g, 8, 17, 3, 3), pads=[1] * 4)

    for opset in (11, 18):
        model = _net(write, ["n", 20, "h", "w"], opset)
        rewritten = check(model, lanes, {"n": 1, "h": 16, "w": 24}, windows=4)
        assert not any(n.op_type == "Resize" for n in rewritten.graph)


def test_parameters_that_were_attributes_before_opset_13() -> None:
    def write(g: Graph, x: str) -> str:
        y = g.op("Conv", x, _weights(g, 48, 17, 1, 1))
        parts = g.ops("Split", 2, y, axis=1, split=[16, 32])
        return g.op("Concat", g.op("Relu", parts[1]), g.op("Sigmoid", parts[0]), axis=1)

    check(_net(write, [1, 20, 8, 9], 11))
    check(_net(write, [1, 20, 8, 9], 12))


@pytest.mark.parametrize("opset", [7, 10])
def test_opsets_whose_views_have_other_parameters_are_raised(opset: int) -> None:
    assert check(_net(_conv(8), [1, 20, 8, 9], opset)).graph.opset_imports[""] == 11


def test_opsets_whose_views_have_other_parameters_are_left_alone_where_they_cannot_be_raised() -> None:
    def write(g: Graph, x: str) -> str:
        return g.op("Resize", _conv(8)(g, x), g.op("Abs", g.input("scales", [4])))  # it may shrink

    rewritten, context = blocked(_net(write, [1, 20, 8, 9], 10), 16)
    assert any(n.op_type == "Conv" for n in rewritten.graph)
    assert "opset 10 has attributes" in context.diagnostics.of("layout", taken=False)[0].reason
