"""One partition that a fetch asks for: what is read of it, what is told of it, and its wake-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from onelog.base.errors import OnelogError
from onelog.broker import Callback, Cold, Waiter
from onelog.protocols.kafka.epochs import check_epoch
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.topics import NOTHING, Fetched, KafkaTopic, TopicPartition

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

_NO_REPLICA: Final = -1
_UNKNOWN: Final = -1
_NOT_SAID: Final = -1

Asked: TypeAlias = "tuple[int, int, int, int, int, int]"
"""Partition, leader epoch, offset, epoch of the last fetch, start of the log, bytes at most."""
Row: TypeAlias = (
    "tuple[int, int, int, int, int, Sequence[tuple[int, int]] | None, int, list[Buffer] | bytes]"
)
"""As the kernel takes it (`kernel.types.FetchedRow`)."""


def _ignore(_error: OnelogError | None) -> None:
    pass


class Wanted:
    """One partition that a fetch asks for."""

    __slots__ = (
        "_waiter",
        "_waits_at",
        "cold",
        "error",
        "fetched",
        "heard_to",
        "max_bytes",
        "number",
        "offset",
        "passed_to",
        "target",
    )

    def __init__(self, asked: Asked, topic: KafkaTopic | None, refusal: OnelogError | None) -> None:
        self.number, epoch, self.offset, _fetched_epoch, _log_start, self.max_bytes = asked
        self.target: TopicPartition | None = None
        self.error = refusal
        self.heard_to = _NOT_SAID
        """Up to here it was looked at; news come behind it. Not said: all there is."""
        self.passed_to = self.offset
        """Of a view: up to here there is nothing to show, so that nobody looks there again."""
        self.cold: Cold | None = None
        """What its records wait for, on their way from the disk."""
        self.fetched = NOTHING
        """What was read of it last."""
        self._waits_at = 0
        self._waiter: Waiter | None = None
        if topic is not None:
            try:
                self.target = topic.partition(self.number)
                check_epoch(self.target.log, epoch)
            except OnelogError as error:
                self.error = error

    # -- waiting

    def _end(self, *, committed: bool) -> int:
        """Where a reader's records end now."""
        return 0 if self.target is None else self.target.end(committed=committed)

    def listen(self, callback: Callback, *, committed: bool) -> None:
        """Be told of the next record, or of the one that is on its way from the disk."""
        target = self.target
        if target is None:
            return
        if self.cold is not None:
            self._waiter = target.log.when_here(self.cold, callback)
        else:
            end = self._end(committed=committed) if self.heard_to == _NOT_SAID else self.heard_to
            offset = max(self.offset, end)
            self._waits_at = offset
            self._waiter = target.when_news(offset, committed=committed, callback=callback)

    def hear(self) -> None:
        """Wait no more; what was passed over meanwhile was for others."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()
            if self.passed_to >= self._waits_at:
                self.passed_to = max(self.passed_to, waiter.offset)

    # -- reading

    def read_and_mark(self, left: int, first: bool, committed: bool, may_bring: bool) -> Fetched:
        """As `read`; what comes from now on is news, also before anybody listens."""
        self.heard_to = _NOT_SAID
        fetched = self.read(left, first, committed, may_bring)
        if self.heard_to == _NOT_SAID:
            self.heard_to = self._end(committed=committed)
        return fetched

    def read(self, left: int, first: bool, committed: bool, may_bring: bool) -> Fetched:
        """What fits into `left` bytes; of the `first` that has something, one batch always.

        What is not in memory is brought, unless the fetch waits for enough of that already.
        """
        self.cold = None
        self.fetched = NOTHING
        if self.error is not None or self.target is None or left <= 0:
            return NOTHING
        budget = left if left < self.max_bytes else self.max_bytes
        try:
            fetched = self.target.fetch(self.passed_to, budget, committed)
        except Cold as cold:
            # If others have something to send, the client finds this with its next fetch.
            if may_bring:
                self.cold = cold
                self.target.log.when_here(cold, _ignore)
            return NOTHING
        except OnelogError as error:
            self.error = error
            return NOTHING
        self.note(fetched)
        # One batch always comes; unless it is the only thing sent, it must fit.
        if not first and fetched.size_bytes > budget:
            self.fetched = NOTHING
        return self.fetched

    def note(self, fetched: Fetched) -> None:
        """Keep what was read, and remember how far a look through a view went."""
        self.fetched = fetched
        self.heard_to = fetched.reached or _NOT_SAID
        if not fetched.records and fetched.reached > self.passed_to:
            self.passed_to = fetched.reached

    def row(self, committed: bool) -> Row:
        """What is told of it."""
        target, fetched = self.target, self.fetched
        if self.error is not None or target is None:
            code = ErrorCode.unknown_server_error if self.error is None else code_of(self.error)
            start = stable = mark = _UNKNOWN
            if target is not None and code is not ErrorCode.unknown_topic_or_partition:
                start, stable, mark = target.ends()
            return (self.number, int(code), mark, stable, start, None, _NO_REPLICA, b"")
        start, stable, mark = target.ends()
        return (
            self.number,
            0,
            mark,
            stable,
            start,
            fetched.aborted if committed else None,
            _NO_REPLICA,
            fetched.records or (fetched.filler(self.offset) if fetched.filler else b""),
        )
