"""External data: checked once when a model is loaded, memory-mapped afterwards."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import onnx
import onnx_ir as ir

from tilegraph.errors import InputError


class MappedTensor(ir.ExternalTensor):
    """An external tensor whose path `check_external` has accepted.

    onnx_ir's own check refuses every file with more than one hard link (package installers make those) and every
    symbolic link out of the folder (model caches that keep a flat store of files make those). And it maps the whole
    file for each tensor, 60 GB of addresses for 12 layers of BERT: here the tensors of a file share one mapping.
    """

    __slots__ = ()

    def _check_path_containment(self) -> None:
        return None

    def _load(self) -> None:
        if self.size == 0 or self.dtype.bitwidth < 8:
            super()._load()  # type: ignore[no-untyped-call]
            return
        self.raw = _mapping(Path(self.path))
        elements = np.frombuffer(self.raw, np.dtype(self.dtype.numpy()).newbyteorder("<"), self.size, self.offset or 0)
        self._array = elements.reshape(self.shape.numpy())

    def release(self) -> None:
        """Others may read the same mapping, which goes with the last of them."""
        self._array = self.raw = None


_MAPPINGS: WeakValueDictionary[tuple[int, ...], mmap.mmap] = WeakValueDictionary()


def _mapping(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        key = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
        found = _MAPPINGS.get(key)
        if found is None:
            found = _MAPPINGS[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return found


def iter_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every dense tensor of a graph: initializers, then attributes, subgraphs included."""
    yield from graph.initializer
    for node in graph.node:
        yield from iter_node_tensors(node)


def iter_node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """Every dense tensor in the attributes of a node, subgraphs included."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from iter_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from iter_tensors(graph)


def check_external(proto: onnx.ModelProto, path: Path | None) -> None:
    """Checks that each external tensor lies in a file of the model's folder and is all there.

    A symbolic link may lead out of the folder only when the model file itself is a link to the same place.
    Raises InputError that names the tensor, the reason and the fix. `path` None: the model came without a folder.
    """
    tensors = list(iter_tensors(proto.graph))
    for function in proto.functions:
        for node in function.node:
            tensors += iter_node_tensors(node)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        if path is None:
            raise InputError(
                f"tensor '{tensor.name}' has its data in the file '{location}', but the model was given without a "
                "folder; give the model's path instead"
            )
        if location not in sizes:
            sizes[location] = _file_size(path, location, tensor.name)
        _check_extent(tensor, entries, location, sizes[location])


def _file_size(path: Path, location: str, tensor: str) -> int:
    if not location:
        raise InputError(f"{path}: external tensor '{tensor}' names no file; export the model again")
    if os.path.isabs(location) or ".." in Path(location).parts:
        raise InputError(
            f"{path}: external data '{location}' of tensor '{tensor}' lies outside the model's folder; "
            "put the data file beside the model and save it with a relative path"
        )
    file = path.parent / location
    try:
        size = file.stat().st_size
    except OSError as error:
        raise InputError(
            f"{path}: external data '{location}' of tensor '{tensor}' cannot be read ({error.strerror}); "
            "put the data file beside the model"
        ) from None
    if not file.is_file():
        raise InputError(f"{path}: external data '{location}' of tensor '{tensor}' is not a regular file; replace it")
    real = file.resolve()
    roots = {path.parent.resolve(), path.resolve().parent}
    if not any(real.is_relative_to(root) for root in roots):
        raise InputError(
            f"{path}: external data '{location}' of tensor '{tensor}' is a link to {real}, outside the model's "
            "folder; copy the data file beside the model"
        )
    return size


def _check_extent(tensor: onnx.TensorProto, entries: dict[str, str], location: str, size: int) -> None:
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else None
    except ValueError:
        raise InputError(
            f"external tensor '{tensor.name}' has an offset or length that is not a number; export the model again"
        ) from None
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        raise InputError(f"tensor '{tensor.name}' has the unknown element type {tensor.data_type}") from None
    if dtype == ir.DataType.STRING or any(d < 0 for d in tensor.dims):
        raise InputError(f"external tensor '{tensor.name}' has a type or shape that cannot be external")
    count = 1
    for d in tensor.dims:
        count *= d
    needed = (count * dtype.bitwidth + 7) // 8
    if offset < 0 or (length is not None and length != needed):
        raise InputError(
            f"external tensor '{tensor.name}' of {needed} bytes is stored with offset {offset} and length {length}; "
            "export the model again"
        )
    if offset + needed > size:
        raise InputError(
            f"external data '{location}' is too short: tensor '{tensor.name}' ends at byte {offset + needed}, the file "
            f"at {size}; copy or download the data file again"
        )


def map_externals(model: ir.Model, base_dir: Path) -> None:
    """Replaces every external tensor of `model` by a `MappedTensor` with `base_dir` as its folder, in place."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _mapped(value.const_value, base_dir)
    roots = [model.graph, *(f.graph for f in model.functions.values())]
    for root in roots:
        for node in root.all_nodes():
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, _mapped(attribute.value, base_dir))


def _mapped(tensor: ir.ExternalTensor, base_dir: Path) -> MappedTensor:
    return MappedTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        base_dir=base_dir,
    )
