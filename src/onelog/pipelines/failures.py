"""What went wrong, in one line: Spark wraps an error in pages of Java and Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from onelog.base.errors import InvalidRequest, OnelogError

_OURS: Final = re.compile(r"onelog\.base\.errors\.(?:\w+): (.+)")
_PYTHON: Final = re.compile(r"^(?:\s*)(?:pyspark\.errors[\w.]*\.)?(\w+(?:Error|Exception)): (.+)$")
_CHARS_MAX: Final = 600
_LATE: Final = "Python worker failed to connect back"
STARTS_MAX: Final = 12

T = TypeVar("T")


class PipelineFailed(OnelogError):
    """A run ended by an error; what it had committed stays, and the next run goes on behind it."""


def is_late(error: BaseException | None) -> bool:
    """Whether Spark gave up a Python process that was still starting.

    It gives it ten seconds and cannot be told otherwise; a busy machine needs more.
    """
    return error is not None and _LATE in str(error)


def patiently(work: Callable[[], T]) -> T:
    """Do what starts Python processes; again when one was late. Twice must do no harm."""
    for _ in range(STARTS_MAX - 1):
        try:
            return work()
        except Exception as error:
            if not is_late(error):
                raise
    return work()


def told(error: BaseException) -> str:
    """The line that says it: ours if there is one, else Python's of a task, else Spark's first."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return _short(ours[-1])
    if isinstance(error, OnelogError):
        return text
    python = [found for line in text.splitlines() if (found := _PYTHON.match(line))]
    if python:
        return _short(f"{python[-1][1]}: {python[-1][2]}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _short(lines[0] if lines else type(error).__name__)


def told_whole(error: BaseException) -> OnelogError:
    """An error of Spark as one of ours, for the command line."""
    if isinstance(error, OnelogError):
        return error
    return InvalidRequest(told(error))


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _CHARS_MAX else plain[: _CHARS_MAX - 1] + "…"
