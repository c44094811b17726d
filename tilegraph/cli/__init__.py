"""The command line. Start-up imports little: each command imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `tilegraph ARGUMENTS` (default: those of the process) and returns the exit code.

    0 done (verify: same), 1 verify: answers differ, 2 bad input or usage, 3 internal error, 130 interrupted.
    """
    from tilegraph.cli.app import run

    return run(arguments)
