"""A content-addressed store of compiled kernels, shared by all processes of a user.

An entry's name is the SHA-256 of everything that decides its bytes, so an entry is never stale, only unused.
Files are written under a temporary name and renamed: a reader sees a whole entry or none. Each carries the
SHA-256 of its payload, and one that fails it counts as absent and is removed. The least recently used entries
go when the store outgrows its limit. A store that cannot be used costs time, never the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

from tilegraph.diagnostics import Diagnostics

DEFAULT_LIMIT = 1 << 30  # bytes

_MAGIC = b"tilegraph kernel 1\n"
_HEADER = len(_MAGIC) + 32
_KEY = re.compile(r"[0-9a-f]{64}")
_STALE_SECONDS = 3600.0  # a temporary file this old belongs to nobody
_KEEP = 0.9  # evict down to this share of the limit, so that not every put has to
_LOOKS = 16  # a process looks at the store at one put in so many: 35,000 entries take .3 s


def kernel_key(source: str, *, generator: str, tvm: str, isa: str) -> str:
    """The key of a kernel: its source text, the generator's and TVM's versions, and the ISA string.

    Each part goes in with its length, so that no two different sets of parts can run together.
    """
    digest = hashlib.sha256()
    for part in (source, generator, tvm, isa):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def default_directory() -> Path | None:
    """$TILEGRAPH_CACHE_DIR, else tilegraph under $XDG_CACHE_HOME, else ~/.cache/tilegraph; None without a home."""
    explicit = os.environ.get("TILEGRAPH_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        return Path(base) / "tilegraph"
    try:
        return Path.home() / ".cache" / "tilegraph"
    except RuntimeError:
        return None


class KernelCache:
    """Kernels by key. Every problem with the directory becomes one refused decision (stage "cache"), no error.

    `directory`: None takes `default_directory()`. `limit`: bytes on disk that the store may use.
    """

    def __init__(self, directory: Path | None = None, *, limit: int = DEFAULT_LIMIT,
                 diagnostics: Diagnostics | None = None) -> None:
        self.directory = directory if directory is not None else default_directory()
        self.limit = limit
        self.hits = 0
        self.misses = 0
        self._diagnostics = diagnostics if diagnostics is not None else Diagnostics()
        self._noted: set[str] = set()
        self._bytes: int | None = None  # an estimate: what this process found and added
        if self.directory is None:
            self._note("the kernel cache", "no home directory; set TILEGRAPH_CACHE_DIR to keep compiled kernels")

    def get(self, key: str) -> bytes | None:
        """The kernel's bytes, or None if it has to be compiled."""
        path = self._path(key)
        data = None if path is None else self._read(path)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data` under `key`, replacing an entry of that key."""
        path = self._path(key)
        if path is None or len(data) + _HEADER > self.limit:
            return
        temporary = None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".put-")
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(data).digest() + data)
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            self._note(str(self.directory), f"cannot keep compiled kernels: {error.strerror or error}; "
                                            "set TILEGRAPH_CACHE_DIR to a directory that can be written")
            return
        if self._bytes is not None:
            self._bytes += len(data) + _HEADER
        elif int(key[-2:], 16) % _LOOKS and _LOOKS * (len(data) + _HEADER) <= self.limit * (1 - _KEEP):
            return  # so little is left to one of the next, here or in another process
        self._evict()

    def _path(self, key: str) -> Path | None:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not a kernel key: {key!r}")
        return None if self.directory is None else self.directory / "kernels" / key[:2] / key[2:]

    def _read(self, path: Path) -> bytes | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note(str(self.directory), f"cannot read compiled kernels: {error.strerror or error}; "
                                            "set TILEGRAPH_CACHE_DIR to a directory that can be read")
            return None
        data = content[_HEADER:]
        if content[:len(_MAGIC)] != _MAGIC or content[len(_MAGIC):_HEADER] != hashlib.sha256(data).digest():
            self._note(str(path), "a damaged entry of the kernel cache; removed, and compiled again")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):  # a read-only store is still worth reading
            os.utime(path)
        return data

    def _evict(self) -> None:
        """Removes the oldest entries when the store is over its limit. Others may do the same meanwhile."""
        if self._bytes is not None and self._bytes <= self.limit:
            return
        entries = self._scan()
        self._bytes = sum(size for _, size, _ in entries)
        if self._bytes <= self.limit:
            return
        for _, size, path in sorted(entries):
            if self._bytes <= self.limit * _KEEP:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            self._bytes -= size

    def _scan(self) -> list[tuple[int, int, str]]:
        """(mtime in ns, bytes, path) of every entry; removes what interrupted writers left."""
        assert self.directory is not None
        found: list[tuple[int, int, str]] = []
        for folder in self._folders():
            with contextlib.suppress(OSError), os.scandir(folder) as files:
                for file in files:
                    with contextlib.suppress(OSError):
                        status = file.stat(follow_symlinks=False)
                        if not file.name.startswith("."):
                            found.append((status.st_mtime_ns, status.st_size, file.path))
                        elif time.time() - status.st_mtime > _STALE_SECONDS:
                            os.unlink(file.path)
        return found

    def _folders(self) -> list[str]:
        assert self.directory is not None
        try:
            with os.scandir(self.directory / "kernels") as folders:
                return [f.path for f in folders if f.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _note(self, subject: str, reason: str) -> None:
        if subject not in self._noted:
            self._noted.add(subject)
            self._diagnostics.refused("cache", subject, reason)
