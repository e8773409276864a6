"""Errors in one line: Spark wraps an error in pages of Java and Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from onelog.base.errors import InvalidRequest, OnelogError

_OURS: Final = re.compile(r"onelog\.base\.errors\.(?:\w+): (.+)")
_PYTHON: Final = re.compile(r"^(?:\s*)(?:pyspark\.errors[\w.]*\.)?(\w+(?:Error|Exception)): (.+)$")
_GRPC: Final = re.compile(r'^\s*details = "(.+)"$', re.MULTILINE)
_CALLED: Final = "An error occurred while calling"
"""How every error of Java begins; what it is stands in the next line."""
_CHARS_MAX: Final = 600
_PASSING: Final = re.compile(
    r"Python worker failed to connect back|Illegal size \d+ of collection, expected \d+"
)
_DIED: Final = re.compile(
    r"Python worker exited unexpectedly"
    r"|\A(?:java\.[\w.]+: )?(?:Broken pipe|Connection reset|Stream closed|java\.io\.EOFException)"
)
_SAYS_NOTHING: Final = re.compile(r"(?:\[\w+\] )?Writing job failed\.")
_JAVA_CLASS: Final = re.compile(r"\A(?:[a-z]\w*\.)+[A-Z]\w*: ")
STARTS_MAX: Final = 12

T = TypeVar("T")


class PipelineFailed(OnelogError):
    """A run ended by an error; what it had committed stays, and the next run goes on behind it."""


def is_passing(error: BaseException | None) -> bool:
    """Whether Spark stumbled over itself, and the same goes well when it is begun again.

    It gives a Python process ten seconds to start, and no setting changes that; a busy machine
    needs more. And queries that begin at once may trip over a collection that they share.
    """
    return any(map(_PASSING.search, _texts(error)))


def patiently(work: Callable[[], T]) -> T:
    """Do what starts Python processes; again when that passes. Twice must do no harm."""
    for _ in range(STARTS_MAX - 1):
        try:
            return work()
        except Exception as error:
            if not is_passing(error):
                raise
    return work()


def told(error: BaseException) -> str:
    """The line that says it."""
    if isinstance(error, OnelogError) and not _OURS.search(str(error)):
        return str(error)
    lines = filter(None, map(told_text, _texts(error)))
    return next((line for line in lines if not _SAYS_NOTHING.match(line)), type(error).__name__)


def _texts(error: BaseException | None) -> Iterator[str]:
    """The text of an error, and the texts of its causes."""
    while error is not None:
        yield str(error)
        error = getattr(error, "_cause", None)


def told_text(text: str) -> str:
    """The line that says it: ours if there is one, else Python's of a task, else the first."""
    for pattern in (_OURS, _GRPC):
        said = pattern.findall(text)
        if said:
            return _short(said[-1])
    python = [found for line in text.splitlines() if (found := _PYTHON.match(line))]
    if python:
        return _short(f"{python[-1][1]}: {python[-1][2]}")
    if _DIED.search(text):
        return (
            "a Python process of Spark died: it was killed, or there was no memory left. What was"
            " committed stays, and the next run goes on behind it"
        )
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    plain = [line for line in lines if not line.startswith(_CALLED)]
    return _short(_JAVA_CLASS.sub("", (plain or lines)[0])) if lines else ""


def told_whole(error: BaseException) -> OnelogError:
    """An error of Spark as one of ours, for the command line."""
    if isinstance(error, OnelogError):
        return error
    return InvalidRequest(told(error))


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _CHARS_MAX else plain[: _CHARS_MAX - 1] + "…"
