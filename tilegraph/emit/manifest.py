"""manifest.json as text: written for people and for diffs, read with every field checked."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

from tilegraph.errors import InputError, InternalError
from tilegraph.spec.artifact import KERNEL_ABI, MANIFEST_FORMAT, Manifest, Program

_WIDTH = 100  # characters; what fits in a line stays on one
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def to_bytes(manifest: Manifest) -> bytes:
    """The file's content. Equal manifests give equal bytes.

    Raises `InternalError` if it holds what JSON cannot, such as a NaN.
    """
    try:
        text = _pretty(manifest.to_json(), "", 0)
    except (TypeError, ValueError) as error:
        raise InternalError(f"the manifest cannot be written as JSON: {error}") from error
    return (text + "\n").encode()


def report_to_bytes(report: dict[str, Any]) -> bytes:
    """report.json's content. Raises `InternalError` as `to_bytes`."""
    try:
        return (_pretty(report, "", 0) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise InternalError(f"the report cannot be written as JSON: {error}") from error


def _pretty(value: Any, indent: str, taken: int) -> str:
    """`taken` characters stand before the value in its line."""
    short = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if len(indent) + taken + len(short) <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return short
    deeper = indent + " "
    if isinstance(value, dict):
        keys = [json.dumps(k, ensure_ascii=False) + ": " for k in value]
        items = [k + _pretty(v, deeper, len(k)) for k, v in zip(keys, value.values(), strict=True)]
        opening, closing = "{}"
    else:
        items = [_pretty(v, deeper, 0) for v in value]
        opening, closing = "[]"
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}{closing}"


def is_manifest(data: bytes) -> bool:
    """Whether this is a manifest of tilegraph's, of this format or another."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("format"), int) and \
        {"abi", "target", "library", "partitions"} <= set(found)


def from_bytes(data: bytes, where: str) -> Manifest:
    """Reads what `to_bytes` wrote. Raises `InputError`, naming `where`, for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not readable as JSON ({error}); optimize the model again") from error
    if not isinstance(found, dict) or "format" not in found:
        raise InputError(f"{where}: not a tilegraph manifest; give a folder that `tilegraph optimize` wrote")
    for field, oldest, supported in (("format", MANIFEST_FORMAT, MANIFEST_FORMAT), ("abi", 1, KERNEL_ABI)):
        if found.get(field) not in range(oldest, supported + 1):
            raise InputError(f"{where}: {field} {found.get(field)!r}, but this tilegraph reads {field} {supported}; "
                             "optimize the model again with this version")
    try:
        manifest = Manifest.from_json(found)
        _check(manifest)
    except KeyError as error:
        raise InputError(f"{where}: the field {error} is missing; optimize the model again") from error
    except (TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(f"{where}: damaged ({error}); optimize the model again") from error
    return manifest


def is_safe_file(name: str) -> bool:
    """A relative path that stays inside the folder."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _check(manifest: Manifest) -> None:
    """Raises `ValueError` for what has the right fields and cannot be meant."""
    library = manifest.library
    if library.file or manifest.programs:  # a model of which nothing was compiled has no library
        if not is_safe_file(library.file):
            raise ValueError(f"library file {library.file!r} is not a path inside the folder")
        if not _SHA256.fullmatch(library.sha256):
            raise ValueError(f"library sha256 {library.sha256!r} is not a SHA-256")
        if library.bytes < 0:
            raise ValueError("a negative library size")
    if not isinstance(manifest.target, str) or not isinstance(manifest.tools, dict) \
            or not isinstance(manifest.report, dict):
        raise ValueError("target, tools or report has the wrong type")
    for name, program in manifest.programs.items():
        _check_program(name, program)


def _check_program(name: str, program: Program) -> None:
    ends = {"input": len(program.inputs), "output": len(program.outputs)}
    for call in program.calls:
        if not _SYMBOL.fullmatch(call.symbol):
            raise ValueError(f"partition {name}: {call.symbol!r} is not a symbol")
        for slot in call.args:
            if slot.kind not in (*ends, "arena"):
                raise ValueError(f"partition {name}: slot kind {slot.kind!r}")
            if slot.kind in ends and not (slot.at.is_static and 0 <= slot.at.value < ends[slot.kind]):
                raise ValueError(f"partition {name}: {call.symbol} uses {slot.kind} {slot.at} of {ends[slot.kind]}")
        if call.align < 1:
            raise ValueError(f"partition {name}: {call.symbol} has align {call.align}")
