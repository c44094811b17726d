"""Inputs and expected outputs that the user gives: an npz file or a dict, checked against the model's inputs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.errors import InputError
from tilegraph.io.names import extent_name
from tilegraph.spec.dims import Dim

Array = np.ndarray[Any, Any]
_NARROW = (ir.DataType.BFLOAT16, ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2,
           ir.DataType.FLOAT8E5M2FNUZ)


def read_npz(path: str | Path) -> dict[str, Array]:
    """The arrays of an .npz file; InputError if it is missing, broken or needs pickle."""
    another = "save named arrays with numpy.savez"
    try:
        data = np.load(path, allow_pickle=False)
        if not isinstance(data, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: holds one bare array; {another}")
        with data:
            return {name: data[name] for name in data.files}
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        # Of what is no archive numpy says that it holds pickled objects, and advises to load them.
        if not getattr(error, "errno", None) and not zipfile.is_zipfile(path):
            raise InputError(f"{path}: not an .npz file; {another}") from error
        raise InputError(f"{path}: not a readable .npz file ({str(error).splitlines()[0][:120]}); {another}") \
            from error


def given_arrays(source: str | Path | Mapping[str, Any], inputs: list[ir.Value], outputs: list[str],
                 ) -> tuple[dict[str, Any], dict[str, Array], list[str]]:
    """(feeds, expected outputs, notes). An input `x` may be called `x` or `in_x`, the expected output `y` is `out_y`;
    the elements of a sequence `s` are `s[0]`, `s[1]`, ... Inputs with a default may be left out.

    Raises InputError that names what is missing, misshaped, of the wrong dtype, or inconsistent.
    """
    where = "the given inputs" if isinstance(source, Mapping) else str(source)
    arrays = dict(source) if isinstance(source, Mapping) else dict(read_npz(source))
    feeds: dict[str, Any] = {}
    used: set[str] = set()
    missing: list[str] = []
    for value in inputs:
        name = value.name or ""
        key = next((k for k in (name, f"in_{name}") if k in arrays), None)
        elements = _elements(arrays, name) if key is None else []
        if key is not None:
            feeds[name] = arrays[key]
            used.add(key)
        elif elements:
            feeds[name] = [arrays[k] for k in elements]
            used.update(elements)
        elif not value.is_initializer():
            missing.append(name)
    expected = {o: np.asarray(arrays[f"out_{o}"]) for o in outputs if f"out_{o}" in arrays}
    used |= {f"out_{o}" for o in expected}
    extra = sorted(set(arrays) - used)
    if missing:
        hint = f"; it has {', '.join(map(repr, extra))}, which the model does not know" if extra else ""
        raise InputError(f"{where}: no array for input {', '.join(map(repr, missing))}{hint}")
    binding: dict[str, tuple[int, str]] = {}
    for value in inputs:
        name = value.name or ""
        if name in feeds:
            feeds[name] = _checked(where, value, feeds[name], binding)
    notes = [f"{where}: not used: {', '.join(map(repr, extra))}"] if extra else []
    return feeds, expected, notes


def _elements(arrays: Mapping[str, Any], name: str) -> list[str]:
    found = [(int(m.group(1)), k) for k in arrays if (m := re.fullmatch(rf"{re.escape(name)}\[(\d+)\]", k))]
    return [k for _, k in sorted(found)]


def _checked(where: str, value: ir.Value, given: Any, binding: dict[str, tuple[int, str]]) -> Any:
    name = value.name or ""
    if given is None or isinstance(given, list) or not isinstance(value.type, ir.TensorType):
        return given  # sequences and optionals: ORT checks them
    array = np.asarray(given)
    dtype = value.dtype
    assert dtype is not None
    if dtype == ir.DataType.STRING:
        if array.dtype.kind not in "OSU":
            raise InputError(f"{where}: input {name!r} is {array.dtype.name}, the model wants strings")
        array = array.astype(object)
    else:
        wanted = np.dtype(dtype.numpy())
        if dtype in _NARROW and array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
            array = array.view(wanted)  # .npy files forget the names of these types
        if array.dtype != wanted:
            fix = f"convert it with .astype({wanted.name!r})" if array.dtype.kind in "biuf" else "convert it"
            kind = "strings" if array.dtype.kind in "OSU" else array.dtype.name
            raise InputError(f"{where}: input {name!r} is {kind}, the model wants {wanted.name}: {fix}")
    if value.shape is None:
        return array
    # Some exporters write unknown extents as -1 or "?".
    shape = [d if isinstance(d, int) and d >= 0 else extent_name(d) for d in value.shape]
    spelled = "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
    if len(shape) != array.ndim:
        raise InputError(f"{where}: input {name!r} has shape {list(array.shape)}, the model wants {spelled}")
    for at, (dim, size) in enumerate(zip(shape, array.shape, strict=True)):
        if isinstance(dim, int):
            if dim != size:
                raise InputError(f"{where}: input {name!r} has shape {list(array.shape)}, the model wants {spelled}")
        elif dim is not None and (symbol := Dim.of(dim).bare_symbol) is not None:
            before = binding.setdefault(symbol, (size, f"{name}[{at}]"))
            if before[0] != size:
                raise InputError(f"{where}: dim {symbol!r} is {before[0]} in {before[1]} and {size} in {name}[{at}]")
    return array
