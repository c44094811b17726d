"""Save a model, with its large tensors in one aligned data file beside it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
import onnx_ir as ir

from tilegraph.errors import EnvironmentProblem, InputError
from tilegraph.io.external import MappedTensor
from tilegraph.io.walk import all_graphs

ALIGNMENT = 64  # bytes; a cache line, and enough for every vector load
INLINE_LIMIT = 16384  # bytes; ONNX Runtime maps each external tensor by itself, and copies one in the model file twice
_MAX_PROTO = (1 << 31) - 1
_CHUNK = 16 << 20


def save(model: ir.Model, path: str | os.PathLike[str], *, data_name: str | None = None,
         inline_limit: int = INLINE_LIMIT) -> list[Path]:
    """Writes `model` to `path` and its initializers of at least `inline_limit` bytes to `data_name` beside it.

    `data_name` defaults to the model's file name plus ".data"; no data file is written when no initializer is large
    enough. Every tensor in it starts at a multiple of 64 bytes. Both files appear whole or not at all, and a model may
    be saved over the files that its own weights are mapped from. Equal models give equal bytes. `model` is unchanged.
    Returns the files written, the model first. Raises EnvironmentProblem when the disk refuses (full, not writable),
    InputError when the rest of the model exceeds protobuf's 2 GiB.
    """
    path = Path(path)
    data_path = path.with_name(data_name or path.name + ".data")
    every = [v for g in all_graphs(model) for v in g.initializers.values()]
    values = [v for v in every if _goes_out(v.const_value, inline_limit)]
    tensors = [v.const_value for v in values if v.const_value is not None]
    # What stays inside must not go on pointing at the file that it was loaded from.
    mapped = [v for v in every if v not in set(values) and isinstance(v.const_value, ir.ExternalTensor)]
    sources = [v.const_value for v in mapped]
    with _replacing(data_path) as data_tmp, _replacing(path) as model_tmp:
        external = write_data(tensors, data_tmp, location=data_path.name) if tensors else []
        try:
            for value, tensor in zip(values, external, strict=True):
                value.const_value = tensor
            for value in mapped:
                value.const_value = _in_memory(value.const_value)
            payload = _serialize(model, path)
        finally:
            for value, original in zip((*values, *mapped), (*tensors, *sources), strict=True):
                value.const_value = original
        model_tmp.write_bytes(payload)
    return [path, data_path] if tensors else [path]


def write_data(tensors: Iterable[ir.TensorProtocol], path: str | os.PathLike[str], *,
               location: str | None = None) -> list[ir.ExternalTensor]:
    """Writes the bytes of `tensors` to `path`, each at a multiple of 64 bytes, in order, and returns their references.

    A tensor that occurs twice (the same object, or the same place of the same file) is written once. Memory-mapped
    ones are copied in pieces, so that none is ever held. The references say `location` (default: the file's name)
    and `path`'s folder. Raises EnvironmentProblem when the disk refuses.
    """
    path = Path(path)
    written: dict[object, int] = {}
    references: list[ir.ExternalTensor] = []
    try:
        with path.open("wb") as file:
            position = 0
            for tensor in tensors:
                identity = _identity(tensor)
                if identity not in written:
                    padding = -position % ALIGNMENT
                    file.write(b"\0" * padding)
                    written[identity] = position + padding
                    _copy(tensor, file)
                    position += padding + tensor.nbytes
                references.append(MappedTensor(
                    location or path.name, written[identity], tensor.nbytes, tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()), name=tensor.name or "", base_dir=path.parent))
    except OSError as error:
        raise _disk_problem(path, error) from error
    return references


def _goes_out(tensor: ir.TensorProtocol | None, limit: int) -> bool:
    return tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes >= max(limit, 1)


def _in_memory(tensor: ir.TensorProtocol | None) -> ir.TensorProtocol:
    assert tensor is not None
    return ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()),
                     name=tensor.name)


def _identity(tensor: ir.TensorProtocol) -> object:
    if isinstance(tensor, ir.ExternalTensor):
        return os.fspath(tensor.path), tensor.offset or 0, tensor.nbytes
    return id(tensor)


def _copy(tensor: ir.TensorProtocol, file: IO[bytes]) -> None:
    if isinstance(tensor, ir.ExternalTensor):
        _copy_range(Path(tensor.path), tensor.offset or 0, tensor.nbytes, file)
        return
    array = tensor.numpy() if tensor.dtype.bitwidth >= 8 else None
    if array is not None and array.dtype.byteorder != ">" and array.flags.c_contiguous:
        file.write(array.reshape(-1).view(np.uint8).data)
    else:
        file.write(tensor.tobytes())


def _copy_range(source: Path, offset: int, length: int, file: IO[bytes]) -> None:
    """Copies without holding more than a chunk; the mapping is dropped after each, so pages do not pile up."""
    with source.open("rb") as stream:
        stream.seek(offset)
        left = length
        while left:
            chunk = stream.read(min(_CHUNK, left))
            if not chunk:
                raise InputError(f"{source} ended {left} bytes early while it was copied; it changed after loading")
            file.write(chunk)
            left -= len(chunk)


def _serialize(model: ir.Model, path: Path) -> bytes:
    try:
        proto = ir.serde.serialize_model(model)
        size = proto.ByteSize()
        if size <= _MAX_PROTO:
            return bytes(proto.SerializeToString(deterministic=True))
    except ValueError as error:  # protobuf's own complaint about its limit
        raise InputError(f"{path}: the model without its weights exceeds 2 GiB; store its constants as initializers") \
            from error
    raise InputError(f"{path}: the model without its weights has {size} bytes, protobuf ends at {_MAX_PROTO}; "
                     "store its large constants as initializers")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that replaces `path` on success if it was written, and goes on failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if temporary.exists():
            os.replace(temporary, path)
    except OSError as error:
        raise _disk_problem(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _disk_problem(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(f"{path} cannot be written ({error.strerror or error}); free some space or choose "
                              "another output folder")
