"""What the command line writes: JSON, progress, and errors of one or two lines."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilegraph.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console


def error(message: str) -> None:
    """`error: ...` on stderr; continuation lines are indented."""
    lines = message.strip().splitlines() or ["unknown"]
    print("\n  ".join([f"error: {lines[0]}", *lines[1:]]), file=sys.stderr)


def check_writable(*targets: str | Path | None) -> None:
    """Before the work: a file cannot appear where `write_text` and `write_json` are to put it. InputError says why."""
    for path in (Path(target) for target in targets if target is not None and target != "-"):
        if path.is_dir():
            raise InputError(f"{path}: cannot be written (it is a folder); name a file")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            why = "may not be written to" if path.parent.is_dir() else "does not exist"
            raise InputError(f"{path}: cannot be written (the folder {path.parent} {why}); choose another place")


def write_text(path: Path, text: str) -> None:
    """Atomically: a reader sees the old file or the whole new one. InputError names the file when it cannot be."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as problem:
        raise InputError(f"{path}: cannot be written ({problem.strerror}); choose another place") from problem
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes it private
        os.replace(temporary, path)
    except OSError as problem:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({problem.strerror}); free space or choose another place") \
            from problem
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(target: str | None, data: dict[str, Any]) -> None:
    """To the file `target`, to stdout for "-", nowhere for None."""
    if target is None:
        return
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_text(Path(target), text)


def console(*, quiet: bool, json_target: str | None) -> Console:
    """Where results for people go: stdout, or stderr when stdout carries JSON; nothing when quiet."""
    from rich.console import Console

    made = Console(quiet=quiet, stderr=json_target == "-", highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = max(made.width, 160)  # tables in files and pipes are not cut at 80 columns
    return made


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner with the current step on stderr; silent when stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:
        yield lambda step: status.update(escape(step))


def dims_of(options: list[str]) -> dict[str, int | str]:
    """`["batch=1", "total=past+seq"]` as a dict; UsageError names what is wrong."""
    from tilegraph.errors import UsageError

    found: dict[str, int | str] = {}
    for option in options:
        name, equals, size = option.rpartition("=")
        size = size.strip()
        if not equals or not name or not (size.isdigit() or re.search(r"[^\W\d]", size)):
            raise UsageError(f"--dim {option}: write it as NAME=SIZE, for example --dim batch=1, or as a sum of other "
                             "dims, for example --dim total=past+seq")
        given = int(size) if size.isdigit() else size
        if found.setdefault(name, given) != given:
            raise UsageError(f"--dim {name}: given twice, as {found[name]} and {given}")
    return found
