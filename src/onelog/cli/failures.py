"""Exit codes of the command line, and which error ends with which.

Rules: the table is total: an error that it does not name ends with 1. Codes never change their
meaning; docs/guide/cli.md has the same table, and a test compares them.
"""

from __future__ import annotations

from typing import Final

from onelog.base.errors import ConfigError, NotAuthenticated, NotAuthorized, NotFound, Unavailable


class NotReachable(Unavailable):
    """No server answers there, or it is no server of OneLog."""


EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_NOT_FOUND: Final = 4
EXIT_FORBIDDEN: Final = 5
EXIT_INTERRUPTED: Final = 130

MEANINGS: Final = {
    EXIT_OK: "done",
    EXIT_FAILED: "the server refused it, or it failed; `acl test`: no",
    EXIT_USAGE: "the command line or the configuration is wrong",
    EXIT_UNREACHABLE: "no server answers there",
    EXIT_NOT_FOUND: "there is no such thing",
    EXIT_FORBIDDEN: "not logged in, or not allowed",
    EXIT_INTERRUPTED: "Ctrl-C",
}

_CODES: Final[dict[type[Exception], int]] = {
    ConfigError: EXIT_USAGE,
    NotReachable: EXIT_UNREACHABLE,
    NotFound: EXIT_NOT_FOUND,
    NotAuthenticated: EXIT_FORBIDDEN,
    NotAuthorized: EXIT_FORBIDDEN,
}


def exit_code(error: Exception) -> int:
    """The code that a command ends with because of an error; the nearest base class counts."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return EXIT_FAILED
