"""Reads the symbol tables of 64-bit little-endian ELF files, the only object format that is linked here.

Source: System V ABI, chapter 4 (object files). Only what `library` checks is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SYMTAB, _DYNSYM, _DYNAMIC = 2, 11, 6
_LOCAL, _WEAK = 0, 2
_NEEDED = 1


@dataclass(frozen=True)
class Symbol:
    """A symbol that is not local to its file. `defined` is False for what the linker has to find elsewhere."""

    name: str
    defined: bool
    weak: bool


def symbols(data: bytes, *, dynamic: bool = False) -> list[Symbol]:
    """The global and weak symbols of an object file, or the dynamic ones of a shared library.

    Raises `ValueError` if `data` is not a whole 64-bit little-endian ELF file.
    """
    try:
        return _symbols(data, _DYNSYM if dynamic else _SYMTAB)
    except struct.error as error:
        raise ValueError("truncated ELF file") from error


def needed(data: bytes) -> list[str]:
    """The libraries that a shared library asks the loader for. Raises `ValueError` as `symbols` does."""
    found = []
    try:
        sections = _sections(data)
        for kind, offset, size, link in sections:
            if kind != _DYNAMIC:
                continue
            for at in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                if tag == _NEEDED:
                    found.append(_string(data, sections[link][1] + value))
    except (struct.error, IndexError) as error:
        raise ValueError("truncated ELF file") from error
    return found


def _sections(data: bytes) -> list[tuple[int, int, int, int]]:
    """(type, offset, size, link) of each section."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    found = []
    for index in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, table + index * entry)
        found.append((kind, offset, size, link))
    return found


def _symbols(data: bytes, wanted: int) -> list[Symbol]:
    sections = _sections(data)
    found = []
    for kind, offset, size, link in sections:
        if kind != wanted:
            continue
        if link >= len(sections):
            raise ValueError("truncated ELF file")
        for at in range(offset, offset + size, 24):
            name, info, _, section = struct.unpack_from("<IBBH", data, at)
            if name and info >> 4 != _LOCAL:
                found.append(Symbol(_string(data, sections[link][1] + name), section != 0, info >> 4 == _WEAK))
    return found


def _string(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    if end < 0:
        raise ValueError("truncated ELF file")
    return data[at:end].decode("utf-8", "replace")
