"""The callers that wait for staged records, and how each gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.kernel import StageAcks
from onelog.observe.troubles import Troubles


class Published(msgspec.Struct, frozen=True, gc=False):
    """Where a message went."""

    stream: str
    partition: int
    offset: Offset


NOWHERE: Final = Published("", -1, Offset(-1))


class Call(Protocol):
    """A caller that waits for staged records."""

    @property
    def results(self) -> list[Published] | None:
        """The list for the results, one per record; None: the caller wants none."""
        ...

    def finish(self, count: int, error: OnelogError | None) -> None:
        """So many of its records are visible, or failed with this error."""
        ...


Waiting = tuple[Call, int, int]
"""A record that a call waits for: the call, its index in the answer, its index among the staged."""


def wants_again(call: Call) -> bool:
    """Whether records are sent again when it is not known whether they were written.

    Publishes of QoS 1 are: they may be stored twice, and their publisher can learn no more than
    success or failure. Every other publisher hears that the outcome is open.
    """
    return isinstance(call, StageAcks)


class Notice:
    """One message in progress: its callback gets None when the message is durable, or the error."""

    __slots__ = ("_done",)

    results: None = None

    def __init__(self, done: Callable[[OnelogError | None], None]) -> None:
        self._done = done

    def finish(self, count: int, error: OnelogError | None) -> None:
        """The record is visible, or failed with this error."""
        del count
        self._done(error)


class Single:
    """One message in progress: a future for its caller."""

    __slots__ = ("future", "results")

    def __init__(self, future: asyncio.Future[Published]) -> None:
        self.future = future
        self.results = [NOWHERE]

    def finish(self, count: int, error: OnelogError | None) -> None:
        """The record is visible, or failed with this error."""
        del count
        if not self.future.done():
            if error is None:
                self.future.set_result(self.results[0])
            else:
                self.future.set_exception(error)


class Several:
    """Several messages in progress: one future for all of them."""

    __slots__ = ("_error", "_left", "future", "results")

    def __init__(self, count: int, future: asyncio.Future[list[Published]]) -> None:
        self.future = future
        self.results: list[Published] = [NOWHERE] * count
        self._left = count
        self._error: OnelogError | None = None

    def finish(self, count: int, error: OnelogError | None) -> None:
        """So many of its records are visible, or failed with this error."""
        self._left -= count
        self._error = self._error or error
        if self._left == 0 and not self.future.done():
            if self._error is None:
                self.future.set_result(self.results)
            else:
                self.future.set_exception(self._error)


def finish_rows(rows: list[Waiting], error: OnelogError | None, troubles: Troubles) -> None:
    """Answer every call that has records among those written together."""
    last, count = rows[0][0], 0
    if len(rows) == 1:
        try:
            last.finish(1, error)
        except Exception as failure:  # noqa: BLE001 - as in `_finish`, without a call more
            tell_raised(last, failure, troubles)
        return
    for call, _place, _index in rows:  # a call's records lie side by side
        if call is not last:
            _finish(last, count, error, troubles)
            last, count = call, 0
        count += 1
    _finish(last, count, error, troubles)


def _finish(call: Call, count: int, error: OnelogError | None, troubles: Troubles) -> None:
    try:
        call.finish(count, error)
    except Exception as failure:  # noqa: BLE001 - isolated: the others are answered
        tell_raised(call, failure, troubles)


def tell_raised(call: Call, failure: Exception, troubles: Troubles) -> None:
    """A call raised when it was told: note it."""
    troubles.note("publish-answer", type(call).__name__, failure)
