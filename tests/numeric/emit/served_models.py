"""Models with a partition that a hand-written C kernel computes, emitted and linked as the compiler would."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from tilegraph.codegen.isa import host
from tilegraph.codegen.library import find_compiler, link
from tilegraph.emit import EmitPartition, emit
from tilegraph.spec.artifact import KernelCall, Library, Manifest, Program, Slot, TensorSpec, library_file
from tilegraph.spec.dims import Dim

# y = relu(x + b) over rows of `width`; arguments as tvm-ffi passes them: 16 bytes each, the value in the second half.
KERNEL = """
typedef union { long long i; void* p; } value;
typedef struct { int type, unused; value v; } any;
int __tvm_ffi_tg_add_relu(void* self, const any* a, int n, any* ret) {
  const float* x = a[0].v.p; const float* b = a[1].v.p; float* y = a[2].v.p;
  long long width = a[4].v.i;
  for (long long r = a[5].v.i; r < a[6].v.i; ++r)
    for (long long c = 0; c < width; ++c) {
      float s = x[r * width + c] + b[c];
      y[r * width + c] = s > 0 ? s : (s != s ? s : 0);
    }
  return n == 7 ? 0 : -1;
}
"""
WIDTH = 48


def kernel_object(folder: Path) -> bytes:
    (folder / "kernel.c").write_text(KERNEL)
    subprocess.run([*find_compiler(), "-c", "-O2", "-fPIC", "-o", str(folder / "kernel.o"), str(folder / "kernel.c")],
                   check=True)
    return (folder / "kernel.o").read_bytes()


def info(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def _weights() -> list[onnx.TensorProto]:
    rng = np.random.default_rng(3)
    return [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
            for name, shape in (("b", (WIDTH,)), ("w", (WIDTH, WIDTH)))]


def straight() -> onnx.ModelProto:
    """x -> Add b -> Relu -> MatMul w -> Add b -> Relu -> y: two partitions with a MatMul of ORT's between them."""
    nodes = [helper.make_node("Add", ["x", "b"], ["a1"], "add1"), helper.make_node("Relu", ["a1"], ["r1"], "relu1"),
             helper.make_node("MatMul", ["r1", "w"], ["m"], "matmul"),
             helper.make_node("Add", ["m", "b"], ["a2"], "add2"), helper.make_node("Relu", ["a2"], ["y"], "relu2")]
    graph = helper.make_graph(nodes, "straight", [info("x", "N", WIDTH)], [info("y", "N", WIDTH)], _weights(),
                              value_info=[info(n, "N", WIDTH) for n in ("a1", "r1", "m", "a2")])
    return _model(graph)


def conditional() -> onnx.ModelProto:
    """If c: relu(x + b) else relu(x + b) @ w; b and w come from the outer graph."""
    def branch(name: str, product: bool) -> onnx.GraphProto:
        nodes = [helper.make_node("Add", ["x", "b"], [f"{name}_a"], f"{name}_add"),
                 helper.make_node("Relu", [f"{name}_a"], [f"{name}_r"], f"{name}_relu")]
        known = [info(f"{name}_a", "N", WIDTH)]
        out = f"{name}_r"
        if product:
            nodes.append(helper.make_node("MatMul", [out, "w"], [f"{name}_m"], f"{name}_matmul"))
            known.append(info(out, "N", WIDTH))
            out = f"{name}_m"
        return helper.make_graph(nodes, name, [], [info(out, "N", WIDTH)], value_info=known)

    graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], "if", then_branch=branch("t", False),
                                                else_branch=branch("e", True))], "conditional",
                              [info("x", "N", WIDTH), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
                              [info("y", "N", WIDTH)], _weights())
    return _model(graph)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def emitted(proto: onnx.ModelProto, pairs: Sequence[tuple[str, str]], folder: Path) -> tuple[ir.Model, Manifest, Path]:
    """`pairs`: names of the Add and the Relu of each partition."""
    model = ir.serde.deserialize_model(proto)
    nodes = {n.name: n for n in model.graph.all_nodes()}
    parts = []
    for index, (add, relu) in enumerate(pairs):
        x, b = nodes[add].inputs
        (y,) = nodes[relu].outputs
        assert x is not None
        assert b is not None
        rows = (Dim.of("N"), Dim.of(WIDTH))
        call = KernelCall("tg_add_relu",
                          (Slot("input", Dim.of(0)), Slot("input", Dim.of(1)), Slot("output", Dim.of(0))),
                          (Dim.of(WIDTH),), Dim.of("N"), Dim.of(4))
        program = Program((TensorSpec(x.name or "", "float", rows), TensorSpec("b", "float", rows[1:], True)),
                          (TensorSpec(y.name or "", "float", rows),), Dim.of(0), (call,))
        parts.append(EmitPartition(f"part_{index}", (nodes[add], nodes[relu]), (x, b), (y,), program))
    library = folder / "linked.so"
    linked = link({"tg_add_relu": kernel_object(folder)}, library)
    emit(model, parts)
    isa = host()
    return model, Manifest("cpu", Library(library_file("cpu"), linked.sha256, linked.bytes, isa.base, isa.features),
                           {p.name: p.program for p in parts}, "0" * 64, {"tilegraph": "0.1.0"}), library
