"""Matrices of a served model: packed ones replace the original, which stays only where an embedding reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.numeric.compiler.served import Array, normal, reference, same, served
from tilegraph.compiler import optimize


def tied() -> onnx.ModelProto:
    """Embeddings, SwiGLU, and logits by the transposed table of the embeddings."""
    weights = {"table": normal(300, 256), "gate": normal(256, 96, seed=4) / 16, "up": normal(256, 96, seed=5) / 16,
               "down": normal(96, 256, seed=6) / 10}
    nodes = [helper.make_node(*one) for one in (
        ("Gather", ["table", "ids"], ["x"]), ("MatMul", ["x", "gate"], ["g"]), ("Sigmoid", ["g"], ["s"]),
        ("Mul", ["g", "s"], ["a"]), ("MatMul", ["x", "up"], ["u"]), ("Mul", ["a", "u"], ["m"]),
        ("MatMul", ["m", "down"], ["d"]), ("Add", ["d", "x"], ["h"]))]
    nodes += [helper.make_node("Transpose", ["table"], ["columns"], perm=[1, 0]),
              helper.make_node("MatMul", ["h", "columns"], ["y"])]
    graph = helper.make_graph(nodes, "tied", [helper.make_tensor_value_info("ids", TensorProto.INT64, [24])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [24, 300])],
                              [numpy_helper.from_array(array, name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_what_stays_of_the_matrices(tmp_path: Path) -> None:
    model = tied()
    made = optimize(model, cache_dir=tmp_path)
    sizes: dict[int, int] = {}
    for value in made.model.graph.initializers.values():
        assert value.const_value is not None
        sizes[value.const_value.size] = sizes.get(value.const_value.size, 0) + 1
    assert "table" in made.model.graph.initializers
    assert not {"gate", "up", "down"} & set(made.model.graph.initializers)
    assert sizes[256 * 96] == 3
    assert made.manifest is not None
    calls = [call for program in made.manifest.programs.values() for call in program.calls]
    assert len(calls) == 4, "embeddings, gate and up, down with its residual sum, and the logits"
    feeds: dict[str, Array] = {"ids": np.arange(24) * 7 % 300}
    same(served(made, feeds, threads=2), reference(model, feeds))


def test_results_of_their_own(tmp_path: Path) -> None:
    """Queries, keys and values of grouped heads: one call with one packed initializer, from the cache, too."""
    weights = {"q": normal(96, 128) / 10, "k": normal(96, 32, seed=4) / 10, "v": normal(96, 32, seed=5) / 10,
               "b": normal(128, seed=6)}
    nodes = [helper.make_node(*one) for one in (
        ("MatMul", ["x", "q"], ["a"]), ("Add", ["a", "b"], ["y"]), ("MatMul", ["x", "k"], ["c"]),
        ("Tanh", ["c"], ["z"]), ("MatMul", ["x", "v"], ["w"]))]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["S", n]) for name, n in zip(
        "yzw", (128, 32, 32), strict=True)]
    graph = helper.make_graph(nodes, "heads", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["S", 96])],
                              results, [numpy_helper.from_array(array, name) for name, array in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    feeds = {"x": normal(19, 96, seed=7)}
    for _ in range(2):
        made = optimize(model, cache_dir=tmp_path)
        assert made.manifest is not None
        assert [len(p.calls) for p in made.manifest.programs.values()] == [1]
        sizes = sorted(v.const_value.size for v in made.model.graph.initializers.values() if v.const_value is not None)
        assert len(sizes) == 2, "the bias, and the matrices filled up to whole panels"
        assert 96 * (128 + 32 + 32) <= sizes[1] < 96 * 256
        same(served(made, feeds, threads=2), reference(model, feeds))
