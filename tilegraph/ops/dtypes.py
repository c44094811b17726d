"""ONNX dtypes as kernels see them: how they are stored and in which numpy dtype they are computed."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.ops.prims import Decline

# ONNX name in lower case -> numpy name of the computing dtype. float16 and bfloat16 compute in float32.
COMPUTE: dict[str, str] = {
    "float": "float32", "double": "float64", "float16": "float32", "bfloat16": "float32",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "bool": "bool",
}

BYTES: dict[str, int] = {
    "float": 4, "double": 8, "float16": 2, "bfloat16": 2, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}


# The largest finite number of what is stored in fewer bits than it is computed in.
LARGEST: dict[str, float] = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}

# Two in a byte. Only products read them, packed for that; see `lower_region`.
NARROW: dict[str, str] = {"int4": "int8", "uint4": "uint8"}


def stored_name(dtype: ir.DataType | None, what: str = "") -> str:
    """`DataType.FLOAT16` -> "float16"; `Decline` for what kernels do not handle (strings, float8, int4, complex)."""
    name = "" if dtype is None else dtype.name.lower()
    if name not in COMPUTE:
        raise Decline(f"dtype {name or 'unknown'} is not handled by kernels", what)
    return name


def is_float(dtype: str) -> bool:
    """Of a numpy name."""
    return dtype.startswith("float")
