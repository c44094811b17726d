"""One number that pins an optimized model: what `optimize` prints and `--expect-sha256` compares.

Of a single file it is the file's SHA-256. Of a folder it is that of the text that `sha256sum` prints for its files in
the order of their names: the model, its weights if they are in a file of their own, the manifest and the library.
The report is left out: nothing reads it when the model is served. The provider computes the same (runtime/src).
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from tilegraph.errors import InputError, UsageError
from tilegraph.spec.artifact import DATA_FILE, MANIFEST_FILE, MODEL_FILE

_HEX = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 22  # bytes


def artifact_sha256(path: Path) -> str:
    """The digest of a folder or a file that `optimize` wrote. Raises InputError if a part is missing or unreadable."""
    if not path.is_dir():
        return _part(path)
    names = [MODEL_FILE, MANIFEST_FILE, *([DATA_FILE] if (path / DATA_FILE).exists() else [])]
    try:
        library = json.loads((path / MANIFEST_FILE).read_bytes())["library"]["file"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path / MANIFEST_FILE}: no manifest to be read ({error}); give a folder that `tilegraph "
                         "optimize` wrote") from error
    names += [library] if library else []
    lines = "".join(f"{_part(path / name)}  {name}\n" for name in sorted(names))
    return hashlib.sha256(lines.encode()).hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Raises UsageError if `expected` is no SHA-256, InputError if it is not that of the folder or file `path`."""
    if not _HEX.fullmatch(expected):
        raise UsageError(f"--expect-sha256 {expected!r}: must be the 64 lower-case hexadecimal digits that optimize "
                         "prints")
    found = artifact_sha256(path)
    if found != expected:
        raise InputError(f"{path}: its SHA-256 is {found}, not the expected {expected}: it is another one or was "
                         "changed; do not load it, get it again from where it was made")


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal, read in pieces.

    Raises `FileNotFoundError` as it is, and `InputError` if the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    return digest.hexdigest()


def _part(path: Path) -> str:
    try:
        return sha256_file(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; copy the whole folder") from None
