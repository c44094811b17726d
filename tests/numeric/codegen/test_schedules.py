"""Every schedule that `--tune` may choose computes the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.attention import Attention
from tests.numeric.compiler.served import reference, served
from tilegraph.codegen.isa import host
from tilegraph.codegen.schedules import candidates
from tilegraph.compiler import optimize
from tilegraph.compiler.program import lowered_of
from tilegraph.spec.schedule import Schedule

RNG = np.random.default_rng(0)


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes: list[onnx.NodeProto], shape: list[int | str], **weights: npt.NDArray[np.float32]) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def product() -> onnx.ModelProto:
    return model([helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Tanh", ["t"], ["y"])], [270, 400],
                 w=normal(400, 72) * np.float32(0.05))


def convolution(size: int) -> onnx.ModelProto:
    """From 32 to 48 channels, three vectors: a `size` below 8 makes too few tiles for Winograd's algorithm."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])
    return model([node], [2, 32, size, size], w=normal(48, 32, 3, 3) * np.float32(0.06), b=normal(48))


CAUSAL = Attention("causal", 200, "causal")
GEMM = {"vectors=1", "vectors=2", "rows=128", "rows=256"}
BLOCKS = {"rows=32, columns=64", "rows=32, columns=128", "rows=64, columns=128", "rows=128, columns=64"}


@pytest.mark.parametrize(("made", "feeds", "kind", "expected"), [
    (product(), {"x": normal(270, 400)}, "Gemm", GEMM),
    (convolution(12), {"x": normal(2, 32, 12, 12)}, "Conv", {"algorithm=direct", "vectors=2"}),
    (convolution(5), {"x": normal(2, 32, 5, 5)}, "Conv", {"algorithm=winograd", "vectors=2"}),
    (CAUSAL.model(), CAUSAL.inputs(), "Attention", BLOCKS),
], ids=["product", "convolution", "small convolution", "attention"])
@pytest.mark.skipif(host().vector_bits < 512, reason="the sizes are those of AVX-512")
def test_all_give_the_same(made: onnx.ModelProto, feeds: dict[str, npt.NDArray[np.float32]], kind: str,
                           expected: set[str]) -> None:
    usual = optimize(made, offload="all")
    (function,) = (f for f in usual.portable.functions.values() if f.name.startswith(f"{kind}_"))
    found = candidates(*lowered_of(function), host())
    assert {str(schedule) for schedule in found} == expected
    (want,) = reference(made, feeds)
    symbols = set()
    for schedule in (Schedule(), *found):
        one = optimize(made, offload="all", schedules={function.name: schedule})
        assert one.manifest is not None
        symbols |= {call.symbol for p in one.manifest.programs.values() for call in p.calls}
        (got,) = served(one, feeds)
        assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max(), schedule
    assert len(symbols) >= 1 + len(found), "a kernel for each"
