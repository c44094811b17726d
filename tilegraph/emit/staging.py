"""Results appear whole or not at all.

A result is built in a temporary folder beside its place and moved there by one rename. An interrupted run leaves at
most that folder; its name marks it, and the next run that writes the same place removes it. A lock on the folder
tells one that is in use from one that was left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilegraph.errors import InputError

_PREFIX = ".tilegraph-tmp-"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """A locked, empty folder beside `path`, gone afterwards. Removes what interrupted runs for `path` left.

    Raises `InputError` for an `OSError` in the block: a full disk, a folder that cannot be written.
    """
    prefix = _PREFIX + hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12] + "-"
    try:
        _remove_leftovers(path.parent, prefix)
        folder, lock = _locked_folder(path.parent, prefix)
        try:
            yield folder
        finally:
            discard(folder)
            os.close(lock)
    except OSError as error:
        raise InputError(disk_problem(path, error)) from error


def publish(source: Path, path: Path) -> None:
    """Moves `source` to `path` in one step. What was at `path` is afterwards at `source`, or gone."""
    if not os.path.lexists(path):
        os.rename(source, path)
        return
    if not _exchange(source, path):  # an old kernel or file system: two steps, the old result stays beside
        aside = source.with_name("replaced")
        os.rename(path, aside)
        try:
            os.rename(source, path)
        except OSError:
            os.rename(aside, path)
            raise


def discard(path: Path) -> None:
    """Removes a file or a folder with all it holds; leaves what cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def disk_problem(path: Path, error: OSError) -> str:
    """A message for an `OSError` while `path` was written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write {path}: the disk is full; free some space or choose another folder with -o"
    return f"cannot write {path}: {error.strerror or error}; choose another folder with -o"


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks: nobody removes leftovers there either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():  # else another run took it for a leftover before it was locked
            return folder, lock
        os.close(lock)


def _remove_leftovers(parent: Path, prefix: str) -> None:
    with os.scandir(parent) as entries:
        found = [e.path for e in entries if e.name.startswith(prefix) and e.is_dir(follow_symlinks=False)]
    for name in found:
        with contextlib.suppress(OSError):
            lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                discard(Path(name))
            finally:
                os.close(lock)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two names atomically (renameat2, Linux 3.15, glibc 2.28); False if this system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), os.fspath(other))
