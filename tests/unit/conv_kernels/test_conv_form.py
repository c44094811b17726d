"""The blocked layout in plain ONNX, and what is read back from a body."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from tests.unit.conv_kernels.bodies import Body, body
from tilegraph.ops.conv import (
    ConvSpace,
    algorithm,
    block,
    block_constant,
    blocked_shape,
    lower_conv,
    plan_conv,
    unblock,
)
from tilegraph.ops.prims import Decline
from tilegraph.spec.dims import Dim


def planned(made: Body) -> ConvSpace:
    return plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 16, 2, 2), (2, 24, 7), (1, 40, 3, 1)])
@pytest.mark.parametrize("lanes", [8, 16])
def test_there_and_back(shape: tuple[int, ...], lanes: int) -> None:
    value = ir.Value(name="x", shape=ir.Shape([f"d{k}" if k != 1 else d for k, d in enumerate(shape)]),
                     type=ir.TensorType(ir.DataType.FLOAT))
    there = block(value, lanes)
    back = unblock(there.value, shape[1], "back")
    graph = ir.Graph([value], [there.value, back.value], nodes=[*there.nodes, *back.nodes], opset_imports={"": 20},
                     name="g")
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    blocked, again = ReferenceEvaluator(ir.to_proto(ir.Model(graph, ir_version=10))).run(None, {"x": x})
    assert np.array_equal(again, x)
    padded = np.zeros((shape[0], -(-shape[1] // lanes) * lanes, *shape[2:]), np.float32)
    padded[:, :shape[1]] = x
    want = np.moveaxis(padded.reshape(shape[0], -1, lanes, *shape[2:]), 2, -1)
    assert np.array_equal(blocked, want)
    assert str(blocked_shape(value.shape, lanes)) == str(there.value.shape)


def test_constants_by_channel() -> None:
    made = block_constant(np.arange(1, 6, dtype=np.float32).reshape(1, 5, 1, 1), 8, 2)
    assert made.shape == (1, 1, 1, 8)
    assert made.reshape(-1).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@pytest.mark.parametrize("shape", [(1, None, 2, 2), (1, 4)])
def test_no_blocks_without_channels(shape: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="channels"):
        blocked_shape(ir.Shape(shape), 16)


def test_the_wrong_number_of_channels() -> None:
    value = ir.Value(name="x", shape=ir.Shape([1, 2, 3, 3, 16]), type=ir.TensorType(ir.DataType.FLOAT))
    with pytest.raises(ValueError, match="no blocked form of 16"):
        unblock(value, 16)


def test_a_convolution_and_its_epilogue() -> None:
    space = planned(body("(float[N,24,H,W] x, float[40,24,3,3] w, float[40] b, float[N,40,H,W] r) => "
                         "(float[N,40,H,W] y) { t = Conv<pads=[1,1,1,1]>(x, w, b) u = Relu(t) y = Add(u, r) }",
                         blocked=("x", "r")))
    assert (space.kind, space.blocked, space.depth, space.filters, space.blocks) == ("conv", True, 24, 40, 3)
    assert space.axes[0].before == 1
    assert space.axes[1].size == Dim.symbol("W")
    assert space.source.coef(space.inside[1]) == 16
    assert space.multiplications() == Dim.of("N*H*W") * (40 * 24 * 9)


def test_a_plain_source() -> None:
    space = planned(body("(float[1,3,32,32] x, float[64,3,7,7] w) => (float[1,64,16,16] y) "
                         "{ y = Conv<pads=[3,3,3,3], strides=[2,2]>(x, w) }", blocked=()))
    assert not space.blocked
    assert space.source.coef(space.inside[1]) == 1
    assert space.batch is None


@pytest.mark.parametrize(("text", "kind"), [
    ("(float[2,32,8,8] x, float[32,1,3,3] w) => (float[2,32,8,8] y) { y = Conv<pads=[1,1,1,1], group=32>(x, w) }",
     "depthwise"),
    ("(float[2,32,8,8] x, float[32,4,3,3] w) => (float[2,32,6,6] y) { y = Conv<group=8>(x, w) }", "grouped"),
    ("(float[2,24,8] x, float[48,1,3] w) => (float[2,48,6] y) { y = Conv<group=24>(x, w) }", "grouped"),
    ("(float[2,32,8,8] x) => (float[2,32,4,4] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }", "max"),
    ("(float[2,32,8,8] x) => (float[2,32,1,1] y) { y = GlobalAveragePool(x) }", "average"),
    ("(float[2,32,8] x) => (float[2,32,8] y) "
     "{ y = AveragePool<kernel_shape=[3], pads=[1,1], count_include_pad=1>(x) }", "padded_average"),
])
def test_kinds(text: str, kind: str) -> None:
    assert planned(body(text)).kind == kind


@pytest.mark.parametrize(("text", "blocked", "reason"), [
    ("(float[1,40,4,4] x, float[40,20,3,3] w) => (float[1,40,2,2] y) { y = Conv<group=2>(x, w) }", ("x",),
     "20 to 20 channels are neither whole blocks of 16 nor several in one"),
    ("(float[1,9,4,4] x, float[9,3,3,3] w) => (float[1,9,2,2] y) { y = Conv<group=3>(x, w) }", ("x",), "3 to 3"),
    ("(float[1,32,4,4] x, float[8,4,3,3] w) => (float[1,8,2,2] y) { y = Conv<group=8>(x, w) }", ("x",), "4 to 1"),
    ("(float[1,32,4,4] x, float[32,4,3,3] w) => (float[1,32,2,2] y) { y = Conv<group=8>(x, w) }", (),
     "groups of a source that is not in blocks"),
    ("(float[1,16,4,4] x, float[16,16,1,1] w) => (float[1,16,A,B] y) { y = Conv<pads=[0,0,0,-1]>(x, w) }", ("x",),
     "negative pads"),
    ("(float[1,32,4,4] x) => (float[1,32,3,3] y) { y = MaxPool<kernel_shape=[2,2]>(x) }", (), "not in blocks"),
    ("(float[1,16,4,4,4] x, float[16,16,1,1,1] w) => (float[1,16,4,4,4] y) { y = Conv(x, w) }", ("x",),
     "3 spatial dims"),
    ("(float[1,16,4,4] x, float[16,16,1,1] w) => (float[1,16,4,4] y) { t = Conv(x, w) u = Exp(t) y = Conv(u, w) }",
     ("x",), "computed inside the kernel"),
    ("(float[1,16,4,4] x, float[16,16,1,1] w) => (float[1,16,4,4] y) { t = Conv(x, w) y = Add(t, w) }", ("x",),
     "reads the weights|not equal for certain|contiguous"),
])
def test_what_it_is_not(text: str, blocked: tuple[str, ...], reason: str) -> None:
    with pytest.raises(Decline, match=reason):
        planned(body(text, blocked=blocked))


@pytest.mark.parametrize(("text", "wanted"), [
    ("(float[1,16,8,8] x, float[16,16,3,3] w) => (float[1,16,A,B] y) { y = Conv<pads=[1,1,1,1]>(x, w) }", "winograd"),
    ("(float[1,16,H,W] x, float[16,16,3,3] w) => (float[1,16,A,B] y) { y = Conv<pads=[1,1,1,1]>(x, w) }", "winograd"),
    ("(float[1,512,9,9] x, float[512,512,3,3] w) => (float[1,512,A,B] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
     "winograd"),
    ("(float[1,512,7,7] x, float[512,512,3,3] w) => (float[1,512,A,B] y) { y = Conv<pads=[1,1,1,1]>(x, w) }", "direct"),
    ("(float[1,256,7,7] x, float[256,256,3,3] w) => (float[1,256,A,B] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
     "winograd"),
    ("(float[1,16,6,6] x, float[16,16,3,3] w) => (float[1,16,A,B] y) { y = Conv<pads=[1,1,1,1]>(x, w) }", "direct"),
    ("(float[1,8,8,8] x, float[16,8,3,3] w) => (float[1,16,A,B] y) { y = Conv<pads=[1,1,1,1]>(x, w) }", "direct"),
    ("(float[1,16,9,9] x, float[16,16,3,3] w) => (float[1,16,A,B] y) { y = Conv<strides=[2,1]>(x, w) }", "direct"),
    ("(float[1,16,9,9] x, float[16,16,3,3] w) => (float[1,16,A,B] y) { y = Conv<dilations=[1,2]>(x, w) }", "direct"),
    ("(float[1,16,9,9] x, float[16,16,3,5] w) => (float[1,16,A,B] y) { y = Conv(x, w) }", "direct"),
    ("(float[1,32,9,9] x, float[32,16,3,3] w) => (float[1,32,A,B] y) { y = Conv<group=2>(x, w) }", "direct"),
    ("(float[1,16,99] x, float[16,16,3] w) => (float[1,16,A] y) { y = Conv(x, w) }", "direct"),
    ("(float[1,16,9,9] x, float[16,1,3,3] w) => (float[1,16,A,B] y) { y = Conv<group=16>(x, w) }", "taps"),
    ("(float[1,16,9,9] x, float[16,4,3,3] w) => (float[1,16,A,B] y) { y = Conv<group=4>(x, w) }", "groups"),
])
def test_the_algorithm(text: str, wanted: str) -> None:
    assert algorithm(planned(body(text))) == wanted


@pytest.mark.parametrize(("size", "attributes", "axes"), [
    ("H,W", "", 1), ("9,1", "", 1), ("1,W", "", 1), ("1,1", "", 1), ("H,W", "strides=[2,1]", 2),
    ("H,W", "pads=[0,1,0,1]", 2),
])
def test_spatial_dims_that_are_walked_as_one(size: str, attributes: str, axes: int) -> None:
    space = planned(body(f"(float[2,16,{size}] x, float[32,16,1,1] w) => (float[2,32,A,B] y) "
                         f"{{ t = Conv<{attributes}{', ' if attributes else ''}group=1>(x, w) y = Relu(t) }}"))
    assert len(space.axes) == len(space.at) == len(space.inside) == axes
    assert space.source.coef(space.inside[-1]) == (0 if size == "1,1" else 16)


def test_an_operand_of_rows_keeps_the_spatial_dims_apart() -> None:
    space = planned(body("(float[2,16,H,W] x, float[32,16,1,1] w, float[2,32,H,1] r) => (float[2,32,H,W] y) "
                         "{ t = Conv(x, w) y = Add(t, r) }", blocked=("x", "r")))
    assert len(space.axes) == 2


@pytest.mark.parametrize(("channels", "size", "wanted"), [
    (16, "8,8", "winograd4"), (16, "H,W", "winograd4"), (512, "28,28", "winograd4"),
    (512, "14,14", "winograd"),  # what its weights take to stream is more than the products that it saves
    (16, "5,5", "direct"),
])
def test_the_algorithm_where_larger_errors_are_allowed(channels: int, size: str, wanted: str) -> None:
    space = planned(body(f"(float[1,{channels},{size}] x, float[{channels},{channels},3,3] w) => "
                         f"(float[1,{channels},A,B] y) {{ y = Conv<pads=[1,1,1,1]>(x, w) }}"))
    assert algorithm(replace(space, fast=True)) == wanted
    assert algorithm(space) != "winograd4"
