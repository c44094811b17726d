"""Builds small artifacts by hand: C kernels in the serving ABI, a manifest, and a model of EPContext nodes.

No compiler of tilegraph is involved: these tests see the serving side through the contract alone
(tilegraph/spec/artifact.py, docs/manifest.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tilegraph.spec.artifact import (
    EP_NAME,
    KernelCall,
    Library,
    Manifest,
    Program,
    Rounds,
    Slot,
    TensorSpec,
    library_file,
)
from tilegraph.spec.dims import Dim, DimLike

PRELUDE = r"""
#include <stdint.h>
#include <string.h>
typedef struct { int32_t type_index; uint32_t padding; union { int64_t i; void* p; }; } Any;
#define EXPORT __attribute__((visibility("default")))
EXPORT void (*tilegraph_set_error_parts)(const char* kind, const char** parts, int32_t n);
#define KERNEL(name) EXPORT int __tvm_ffi_##name(void* self, const Any* a, int32_t n, Any* ret)
/* Pointers are opaque (4) or none (0), the rest are integers (1): a wrong tag fails the call. */
#define POINTER(T, k) ((T*)pointer(&a[k], &bad_tag))
static void* pointer(const Any* a, int* bad_tag) {
  if (a->type_index == 4 ? !a->p : a->type_index != 0 || a->p) *bad_tag = 1;
  return a->p;
}
#define INTEGER(k) (a[k].type_index == 1 ? a[k].i : (bad_tag = 1, 0))
#define BEGIN INTEGER(n - 2)
#define END INTEGER(n - 1)
static int raise_error(const char* kind, const char* text) {
  const char* parts[2] = {text, " (from C)"};
  tilegraph_set_error_parts(kind, parts, 2);
  return -1;
}
#define CHECK_TAGS(count) if (bad_tag || n != (count)) return raise_error("ValueError", "wrong argument tags or count")
"""

# y[i] = x[i] + 1 over floats; arguments x, y, scratch, size, begin, end.
ADD_ONE = r"""
KERNEL(add_one) {
  int bad_tag = 0;
  const float* x = POINTER(const float, 0); float* y = POINTER(float, 1);
  int64_t begin = BEGIN, end = END, size = INTEGER(3);
  CHECK_TAGS(6);
  if (begin < 0 || end > size || begin > end) return raise_error("IndexError", "part outside the array");
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] + 1;
  return 0;
}
"""

# y = x * w[i % m] (float), arguments x, w, y, scratch, n, m, begin, end
SCALE = r"""
KERNEL(scale) {
  int bad_tag = 0;
  const float* x = POINTER(const float, 0); const float* w = POINTER(const float, 1); float* y = POINTER(float, 2);
  int64_t m = INTEGER(5), begin = BEGIN, end = END;
  CHECK_TAGS(8);
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] * w[i % m];
  return 0;
}
"""


def compile_c(source: str, output: Path, *flags: str) -> Path:
    """A shared library of `source` behind PRELUDE."""
    code = output.with_suffix(".c")
    code.write_text(PRELUDE + source)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror", "-Wno-unused",
                    "-o", str(output), str(code), *flags], check=True)
    return output


def tensor(name: str, dtype: str, *shape: DimLike, constant: bool = False) -> TensorSpec:
    return TensorSpec(name, dtype, tuple(Dim.of(d) for d in shape), constant)


def source(at: int) -> Slot:
    return Slot("input", Dim.of(at))


def result(at: int) -> Slot:
    return Slot("output", Dim.of(at))


def arena(offset: DimLike, item: DimLike = 0) -> Slot:
    return Slot("arena", Dim.of(offset), Dim.of(item))


def call(symbol: str, args: Sequence[Slot], sizes: Sequence[DimLike], extent: DimLike, *, grain: DimLike = 1 << 30,
         align: int = 1, scratch: DimLike = 0) -> KernelCall:
    return KernelCall(symbol, tuple(args), tuple(Dim.of(s) for s in sizes), Dim.of(extent), Dim.of(grain), align,
                      Dim.of(scratch))


def program(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], calls: Sequence[KernelCall],
            arena_bytes: DimLike = 0, rounds: Sequence[Rounds] = ()) -> Program:
    return Program(tuple(inputs), tuple(outputs), Dim.of(arena_bytes), tuple(calls), rounds=tuple(rounds))


def onnx_dtype(name: str) -> int:
    return int(onnx.TensorProto.DataType.Value(name.upper()))


def value_info(spec: TensorSpec, name: str | None = None) -> onnx.ValueInfoProto:
    shape = [d.value if d.is_static else str(d) for d in spec.shape]
    return helper.make_tensor_value_info(name or spec.name, onnx_dtype(spec.dtype), shape)


@dataclass
class Node:
    """One EPContext node; `inputs` and `outputs` default to the program's own names."""

    partition: str
    inputs: list[str] | None = None
    outputs: list[str] | None = None
    name: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)  # replace (or with None: remove) what would be written


@dataclass
class Artifact:
    """What a test wants written, with everything replaceable."""

    library: Path
    programs: dict[str, Program]
    nodes: list[Node] = field(default_factory=list)
    isa: str = "x86-64"
    features: tuple[str, ...] = ()
    embed: bool = False
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    graph_inputs: list[onnx.ValueInfoProto] | None = None
    graph_outputs: list[onnx.ValueInfoProto] | None = None
    edit_manifest: Callable[[dict[str, Any]], None] | None = None
    edit_model: Callable[[onnx.ModelProto], None] | None = None

    def manifest(self) -> dict[str, Any]:
        image = self.library.read_bytes()
        library = Library(library_file("cpu"), hashlib.sha256(image).hexdigest(), len(image), self.isa, self.features)
        data = Manifest("cpu", library, self.programs, "0" * 64, {"tilegraph": "test"}).to_json()
        if self.edit_manifest:
            self.edit_manifest(data)
        return data

    def context_nodes(self, nodes: Sequence[Node], manifest_text: str) -> list[onnx.NodeProto]:
        """EPContext nodes of one graph: with `embed`, the first carries the library."""
        image = self.library.read_bytes()
        library_sha = hashlib.sha256(image).hexdigest()
        made = []
        for i, node in enumerate(nodes):
            spec = self.programs.get(node.partition) or next(iter(self.programs.values()))
            if not self.embed:
                cache = library_file("cpu")
                notes: dict[str, Any] = {"manifest": "manifest.json", "library_sha256": library_sha,
                                         "manifest_sha256": hashlib.sha256(manifest_text.encode()).hexdigest()}
            elif i == 0:
                cache = base64.b64encode(image).decode()
                notes = {"manifest": json.loads(manifest_text), "library_sha256": library_sha}
            else:
                cache, notes = "", {}
            attributes = {"source": EP_NAME, "partition_name": node.partition, "embed_mode": int(self.embed),
                          "main_context": int(not self.embed or i == 0), "ep_cache_context": cache,
                          "notes": json.dumps(notes), "hardware_architecture": self.isa, "ep_sdk_version": "test",
                          **node.attributes}
            made.append(helper.make_node(
                "EPContext", node.inputs if node.inputs is not None else [t.name for t in spec.inputs],
                node.outputs if node.outputs is not None else [t.name for t in spec.outputs],
                name=node.name or f"node_{node.partition}", domain="com.microsoft",
                **{k: v for k, v in attributes.items() if v is not None}))
        return made

    def model(self, manifest_text: str) -> onnx.ModelProto:
        nodes = self.nodes or [Node(p) for p in self.programs]
        contexts = self.context_nodes(nodes, manifest_text)
        specs = [self.programs.get(n.partition) or next(iter(self.programs.values())) for n in nodes]
        values: dict[str, onnx.ValueInfoProto] = {}
        for proto, spec in zip(contexts, specs, strict=True):
            for name, t in zip([*proto.input, *proto.output], [*spec.inputs, *spec.outputs], strict=False):
                values.setdefault(name, value_info(t, name))
        produced = {o for n in contexts for o in n.output}
        used = {i for n in contexts for i in n.input}
        inputs = self.graph_inputs
        if inputs is None:
            inputs = [v for k, v in values.items() if k not in produced and k not in self.initializers]
        outputs = self.graph_outputs
        if outputs is None:
            outputs = [v for k, v in values.items() if k in produced and k not in used]
        graph = helper.make_graph(contexts, "g", inputs, outputs,
                                  [onnx.numpy_helper.from_array(a, k) for k, a in self.initializers.items()],
                                  value_info=[v for k, v in values.items() if k in produced])
        model = helper.make_model(graph, ir_version=9, opset_imports=[
            helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
        if self.edit_model:
            self.edit_model(model)
        return model

    def write(self, folder: Path) -> Path:
        """The folder of design.md; returns the model's path."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.manifest())
        if not self.embed:
            (folder / library_file("cpu")).write_bytes(self.library.read_bytes())
            (folder / "manifest.json").write_text(text)
        path = folder / "model.onnx"
        path.write_bytes(self.model(text).SerializeToString())
        return path


def add_one_program(*shape: DimLike, **options: Any) -> Program:
    total = Dim.product(shape)
    return program([tensor("x", "float", *shape)], [tensor("y", "float", *shape)],
                   [call("add_one", [source(0), result(0)], [total], total, **options)])


def chain_program(n: DimLike, arena_at: DimLike) -> Program:
    """y = x + 2 by way of the arena."""
    size = Dim.of(n)
    return program([tensor("x", "float", n)], [tensor("y", "float", n)],
                      [call("add_one", [source(0), arena(arena_at)], [size], size),
                       call("add_one", [arena(arena_at), result(0)], [size], size)],
                      arena_bytes=Dim.of(arena_at) + size * 4)
