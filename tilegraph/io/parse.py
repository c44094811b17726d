"""Bytes to a ModelProto, and what is wrong with them when that fails."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilegraph.errors import InputError

_LFS = b"version https://git-lfs.github.com/spec/"
# Field number -> wire type (0 varint, 2 length-delimited) of ModelProto.
_FIELDS = {f.number: 2 if f.type in (f.TYPE_MESSAGE, f.TYPE_STRING, f.TYPE_BYTES) else 0
           for f in onnx.ModelProto.DESCRIPTOR.fields}


def read_proto(path: Path) -> onnx.ModelProto:
    """Parses the file at `path`; external data is not touched.

    Raises InputError: no such file, a folder, unreadable, empty, truncated, or not an ONNX model.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the .onnx file in it")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    return parse_proto(data, str(path))


def parse_proto(data: bytes, name: str) -> onnx.ModelProto:
    """Parses a serialized model; `name` is what messages call it. Raises InputError as `read_proto` does."""
    if not data:
        raise InputError(f"{name} is empty; export or download the model again")
    if data.startswith(_LFS):
        raise InputError(f"{name} is a Git LFS pointer, not the model; fetch it with 'git lfs pull'")
    if data[4:8] == b"ORTM":
        raise InputError(f"{name} is in ONNX Runtime's own ORT format; give the .onnx model it was made from")
    if data[:4] == b"PK\x03\x04":
        raise InputError(f"{name} is a zip archive (a PyTorch checkpoint?); export the model to ONNX first")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError:
        lost = _missing_bytes(data)
        if lost:
            raise InputError(
                f"{name} is truncated: at least {lost} bytes are missing after byte {len(data)}; "
                "copy or download it again"
            ) from None
        raise InputError(f"{name} is not an ONNX model (its protobuf does not parse); export it again") from None
    if not proto.ir_version or not proto.HasField("graph"):
        raise InputError(f"{name} is not an ONNX model (no IR version or no graph in it); give an exported .onnx file")
    return proto


def _missing_bytes(data: bytes) -> int:
    """How many bytes the outermost protobuf field announces beyond the end of `data`; 0 if it is not that kind."""
    position, fields = 0, 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag is None:
            return 1 if fields else 0
        number, wire = tag >> 3, tag & 7
        if _FIELDS.get(number) != wire:
            return 0
        value, position = _varint(data, position)
        if value is None:
            return 1 if fields else 0
        if wire == 2:
            position += value
        if position > len(data):
            return position - len(data) if fields else 0
        fields += 1
    return 0


def _varint(data: bytes, position: int) -> tuple[int | None, int]:
    value, shift = 0, 0
    while position < len(data) and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if not byte & 0x80:
            return value, position
    return None, position
