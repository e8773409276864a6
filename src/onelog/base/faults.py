"""Named fault points: where tests make the disk fail or the process die.

Production never arms one. `hit(name)` costs a truth test of an empty dict, and it is called only
where a system call follows anyway. `ONELOG_FAULTS="name=exit,name2=ENOSPC:3"` arms points in a
child process (the number is how many hits pass before it fires).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

Action = Callable[[], None]

armed: dict[str, Action] = {}
"""What runs at which point; always the same dict."""


def hit(name: str) -> None:
    """Pass the point `name`: nothing happens unless a test armed it."""
    if armed:
        action = armed.get(name)
        if action is not None:
            action()


def arm(name: str, action: Action) -> None:
    """Let `action` run at each pass of `name` (it may raise or end the process)."""
    armed[name] = action


def disarm(name: str | None = None) -> None:
    """Forget one armed point, or all of them."""
    if name is None:
        armed.clear()
    else:
        armed.pop(name, None)


def fail_with(code: int, after: int = 0) -> Action:
    """Build an action that raises OSError(code) once `after` hits have passed."""
    left = after

    def action() -> None:
        nonlocal left
        if left > 0:
            left -= 1
            return
        raise OSError(code, os.strerror(code))

    return action


def die(after: int = 0) -> Action:
    """Build an action that ends the process as kill -9 would, once `after` hits have passed."""
    left = after

    def action() -> None:
        nonlocal left
        if left > 0:
            left -= 1
            return
        os._exit(137)

    return action


def arm_from_environment(spec: str) -> None:
    """Arm what `ONELOG_FAULTS` names: `point=exit[:after]` or `point=ENAME[:after]`, by comma."""
    for part in filter(None, spec.split(",")):
        name, _, what = part.partition("=")
        verb, _, after = what.partition(":")
        count = int(after or 0)
        arm(name, die(count) if verb == "exit" else fail_with(getattr(errno, verb), count))
