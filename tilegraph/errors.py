"""The errors that tilegraph raises on purpose.

Every message names the object, the reason and the fix in one or two lines. The command line turns the class
into the exit code; anything that is not a `TilegraphError` is a bug and exits with 3.
"""

from __future__ import annotations


class TilegraphError(Exception):
    """Base of all deliberate errors. `exit_code` is what the command line returns."""

    exit_code = 3


class InputError(TilegraphError):
    """The user's model, file, option or machine cannot be used as given."""

    exit_code = 2


class UsageError(InputError):
    """An option or an argument does not make sense."""


class EnvironmentProblem(InputError):
    """The machine lacks something that is needed, such as a C compiler."""


class NotEnoughMemory(EnvironmentProblem):
    """Less memory is free than what was asked for takes."""


class InternalError(TilegraphError):
    """An invariant of tilegraph itself does not hold."""
