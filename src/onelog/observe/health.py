"""Health: is the process alive, and is it ready for work?

Rules: a check is a cheap, synchronous look at state that is kept anyway; it returns None when all
is well and one sentence when not. Alive means that the loop answers. Ready means that every
check passes, so a load balancer may send work here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Check = Callable[[], str | None]


class HealthReport(msgspec.Struct, frozen=True):
    """The answer to a probe."""

    ok: bool
    checks: dict[str, str]
    """Name of each check → "ok", or the reason why it fails."""


class Health:
    """The named checks of this process."""

    __slots__ = ("_checks",)

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def register(self, name: str, check: Check) -> None:
        """Add a check, or replace the one of this name."""
        self._checks[name] = check

    def live(self) -> HealthReport:
        """The answer of a process that still answers."""
        return HealthReport(ok=True, checks={})

    def ready(self) -> HealthReport:
        """The outcome of every check."""
        problems = {name: check() for name, check in self._checks.items()}
        return HealthReport(
            ok=not any(problems.values()),
            checks={name: problem or "ok" for name, problem in problems.items()},
        )
