"""Small models whose partitions are chosen by hand, with programs that describe them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from tilegraph.codegen.library import LibraryInfo
from tilegraph.emit import EmitPartition
from tilegraph.spec.artifact import KernelCall, Library, Manifest, Program, Slot, TensorSpec
from tilegraph.spec.dims import Dim

LIBRARY = b"\x7fELF: stands for a linked library"


def spec(value: ir.Value, constant: bool | None = None) -> TensorSpec:
    assert value.dtype is not None
    assert value.shape is not None
    fixed = value.is_initializer() and not value.is_graph_input()
    shape = tuple(Dim.of(d if isinstance(d, int) else str(d.value)) for d in value.shape)
    return TensorSpec(value.name or "", value.dtype.name.lower(), shape, fixed if constant is None else constant)


def partition(name: str, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value],
              program: Program | None = None) -> EmitPartition:
    if program is None:
        call = KernelCall(f"tg_{name}", (*(Slot("input", Dim.of(i)) for i in range(len(inputs))),
                                         *(Slot("output", Dim.of(i)) for i in range(len(outputs)))),
                          (), Dim.of("N"), Dim.of(1))
        program = Program(tuple(map(spec, inputs)), tuple(map(spec, outputs)), Dim.of(0), (call,))
    return EmitPartition(name, tuple(nodes), tuple(inputs), tuple(outputs), program)


def manifest(partitions: Sequence[EmitPartition], library: bytes | LibraryInfo = LIBRARY) -> Manifest:
    info = library if isinstance(library, LibraryInfo) else LibraryInfo(hashlib.sha256(library).hexdigest(),
                                                                        len(library))
    return Manifest("cpu", Library("kernels.cpu.so", info.sha256, info.bytes, "x86-64-v4", ("avx512bf16",)),
                    {p.name: p.program for p in partitions}, "0" * 64, {"tilegraph": "0.1.0"})


def library_file(folder: Path) -> Path:
    path = folder / "built.so"
    path.write_bytes(LIBRARY)
    return path


def chain() -> ir.Model:
    """x -> Mul w -> m -> MatMul big -> t -> Add b -> Relu -> y; the Mul, and the Add with the Relu, are partitions."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal(64).astype(np.float32),
               "big": rng.standard_normal((64, 64)).astype(np.float32),
               "b": rng.standard_normal(64).astype(np.float32)}
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"], "mul"),
             helper.make_node("MatMul", ["m", "big"], ["t"], "matmul"),
             helper.make_node("Add", ["t", "b"], ["a"], "add"),
             helper.make_node("Relu", ["a"], ["y"], "relu")]
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
        value_info=[helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 64]) for n in ("m", "t", "a")])
    return loaded(graph)


def loaded(graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto] = ()) -> ir.Model:
    imports = [helper.make_opsetid("", 17)]
    if functions:
        imports.append(helper.make_opsetid("ai.tilegraph", 1))
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)
    onnx.checker.check_model(model)
    return ir.serde.deserialize_model(model)


def named(model: ir.Model) -> dict[str, ir.Node]:
    return {n.name: n for n in model.graph.all_nodes() if n.name}


def values(model: ir.Model) -> dict[str, ir.Value]:
    found: dict[str, ir.Value] = {}
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in (*graph.inputs, *graph.initializers.values(), *(o for n in graph for o in n.outputs)):
            found[value.name or ""] = value
    return found


def chain_partitions(model: ir.Model) -> list[EmitPartition]:
    n, v = named(model), values(model)
    return [partition("p0", [n["mul"]], [v["x"], v["w"]], [v["m"]]),
            partition("p1", [n["add"], n["relu"]], [v["t"], v["b"]], [v["y"]])]
