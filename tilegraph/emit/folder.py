"""Writes and reads the result: a folder that can be moved, or one self-contained file."""

from __future__ import annotations

import mmap
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from tilegraph import io
from tilegraph.emit import manifest as text
from tilegraph.emit.context import bind_embedded, bind_to_folder, context_nodes
from tilegraph.emit.selfcontained import graphs, inline_attributes, serialize
from tilegraph.emit.staging import disk_problem, publish, staging
from tilegraph.errors import InputError, InternalError, UsageError
from tilegraph.spec.artifact import (
    DATA_FILE,
    EP_NAME,
    MANIFEST_FILE,
    MODEL_FILE,
    PORTABLE_FILE,
    REPORT_FILE,
    Manifest,
)
from tilegraph.spec.digest import sha256_file

_LIBRARY = re.compile(r"kernels\.[A-Za-z0-9_.+-]+\.so")
_OURS = frozenset({MANIFEST_FILE, MODEL_FILE, DATA_FILE, PORTABLE_FILE, PORTABLE_FILE + ".data", REPORT_FILE})
_MAX_MANIFEST = 1 << 28  # bytes; a file larger than this is not read just to see whether it is a manifest


def write_folder(path: Path, model: ir.Model, manifest: Manifest, library: Path | None, *, force: bool = False,
                 embed: bool = False, portable: ir.Model | None = None, sources: Iterable[Path] = ()) -> Path:
    """Writes an emitted `model` to the folder `path` (with `embed`, to the one file `path`) and returns `path`.

    `library`: the linked file that `manifest.library` describes; None if nothing was compiled. `portable`: the model
    before emission, written as portable.onnx. `sources`: files that must survive, such as the original model; those
    that weights are mapped from are known. An earlier result at `path` is replaced. Anything else is only replaced
    with `force`, and a folder that is the current one, above it, the home directory or holds a source never is.

    Sets the attributes of `model`'s EPContext nodes, and changes nothing else in it. The same arguments give the
    same bytes. Raises `InputError` if `path` cannot be used or written, or for an embedded model above 2 GB; then
    `path` is as it was.
    """
    path = Path(os.path.realpath(path))
    if embed and portable is not None:
        raise UsageError("--portable writes a second model beside the first, and --embed one file only; leave one out")
    _check_library(model, manifest, library)
    _check_place(path, embed, force, [*sources, *_mapped_files(model), *_mapped_files(portable)])
    with staging(path) as work:
        new = work / "new"
        if embed:
            bind_embedded(model, manifest, b"" if library is None else library.read_bytes())
            new.write_bytes(serialize(model, path))
        else:
            new.mkdir()
            _fill(new, model, manifest, library, portable)
        publish(new, path)
    return path


def read_folder(path: Path) -> Manifest:
    """The manifest of a folder that `write_folder` wrote, after checking that its files are there and unchanged.

    Weights are not read. Raises `InputError` that names the file and the fix.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; give one that `tilegraph optimize` wrote")
    file = path / MANIFEST_FILE
    try:
        if file.stat().st_size > _MAX_MANIFEST:
            raise InputError(f"{file}: larger than any manifest; optimize the model again")
        manifest = text.from_bytes(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise InputError(f"{path}: no {MANIFEST_FILE} in it; give a folder that `tilegraph optimize` wrote") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
    if not (path / MODEL_FILE).is_file():
        raise InputError(f"{path}: {MODEL_FILE} is missing; optimize the model again")
    library = manifest.library
    if library.file:
        try:
            found = sha256_file(path / library.file)
        except FileNotFoundError:
            raise InputError(f"{path}: {library.file} is missing; copy the whole folder, or optimize again") from None
        if found != library.sha256:
            raise InputError(f"{path / library.file}: changed after it was written; optimize the model again")
    return manifest


def _fill(folder: Path, model: ir.Model, manifest: Manifest, library: Path | None, portable: ir.Model | None) -> None:
    if library is not None:
        shutil.copyfile(library, folder / manifest.library.file)
    content = text.to_bytes(manifest)
    bind_to_folder(model, manifest, content)
    with inline_attributes(model):
        io.save(model, folder / MODEL_FILE, data_name=DATA_FILE)
    if portable is not None:
        with inline_attributes(portable):
            io.save(portable, folder / PORTABLE_FILE)
    (folder / REPORT_FILE).write_bytes(text.report_to_bytes(manifest.report))
    (folder / MANIFEST_FILE).write_bytes(content)


def _check_library(model: ir.Model, manifest: Manifest, library: Path | None) -> None:
    said = manifest.library
    if library is None:
        if any(context_nodes(model)):
            raise InternalError("the model has EPContext nodes, and there is no library")
        return
    if not _LIBRARY.fullmatch(said.file):
        raise InternalError(f"library file {said.file!r}: not of the form kernels.<target>.so")
    try:
        found, size = sha256_file(library), library.stat().st_size
    except FileNotFoundError:
        raise InternalError(f"the library {library} does not exist") from None
    if (found, size) != (said.sha256, said.bytes):
        raise InternalError(f"the library {library} is not the one that the manifest describes")


def _mapped_files(model: ir.Model | None) -> Iterator[Path]:
    """The files that weights are read from."""
    if model is not None:
        for graph in graphs(model):
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    yield Path(value.const_value.path)


def _check_place(path: Path, embed: bool, force: bool, sources: Sequence[Path]) -> None:
    """Raises `InputError` unless `path` is free or may be replaced."""
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")
    if not path.exists():
        return
    if path in (Path.home(), Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{path} is the current folder, above it, or the home directory, and is never replaced; "
                         "choose another folder with -o")
    for source in sorted(set(map(os.path.realpath, sources))):
        if path == Path(source) or path in Path(source).parents:
            raise InputError(f"writing {path} would remove {source}, which the model is read from; "
                             "choose another place with -o")
    if force:
        return
    try:
        reason = _not_ours_file(path) if embed else _not_ours_folder(path)
    except OSError as error:
        raise InputError(disk_problem(path, error)) from error
    if reason is not None:
        raise InputError(f"{path} exists and {reason}; choose another place with -o, or --force to replace it")


def _not_ours_folder(path: Path) -> str | None:
    """Why this may not be replaced without being asked, or None."""
    if not path.is_dir():
        return "is not a folder"
    file = path / MANIFEST_FILE
    if not any(path.iterdir()):
        return None
    if not file.is_file() or file.stat().st_size > _MAX_MANIFEST or not text.is_manifest(file.read_bytes()):
        return "is not a folder that tilegraph wrote"
    foreign = sorted(p.name for p in path.iterdir() if p.name not in _OURS and not _LIBRARY.fullmatch(p.name))
    if foreign:
        return f"holds what tilegraph did not write ({', '.join(foreign[:3])}{', ...' if len(foreign) > 3 else ''})"
    return None


def _not_ours_file(path: Path) -> str | None:
    if not path.is_file():
        return "is not a file"
    if path.stat().st_size == 0:
        return "is not a model that tilegraph wrote"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # A model of which nothing was compiled has no such node; it takes --force.
        ours = data.find(EP_NAME.encode()) >= 0 and data.find(b"EPContext") >= 0
    return None if ours else "is not a model that tilegraph wrote"
