"""One partition of a fetch: its reads, its row in the answer, and its wake-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from onelog.base.errors import OnelogError, without_frames
from onelog.broker import Callback, Cold, Waiter
from onelog.protocols.kafka.epochs import check_epoch
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.nodes import check_fresh, check_led
from onelog.protocols.kafka.readers import ReadElsewhere, Readers
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
"""A row in the kernel's form (`kernel.types.FetchedRow`)."""


class Wanted:
    """One partition that a fetch asks for."""

    __slots__ = (
        "_bringing",
        "_waiter",
        "_waits_at",
        "cold",
        "error",
        "fetched",
        "heard_to",
        "is_cold",
        "max_bytes",
        "number",
        "offset",
        "passed_to",
        "target",
    )

    def __init__(
        self,
        asked: Asked,
        topic: KafkaTopic | None,
        refusal: OnelogError | None,
        from_any: bool = True,
    ) -> None:
        """`from_any`: also a replica that does not lead may serve it."""
        self.number, epoch, self.offset, _fetched_epoch, _log_start, self.max_bytes = asked
        self.target: TopicPartition | None = None
        self.error = refusal
        self.heard_to = _NOT_SAID
        """The offset up to which it was read; news come behind it. None: everything was read."""
        self.passed_to = self.offset
        """For a view: up to here there is nothing to show, so that nobody looks there again."""
        self.cold: Cold | None = None
        """Set while its records are cold, and come."""
        self.is_cold = False
        """Whether its records were cold when it was read last."""
        self.fetched = NOTHING
        """What was read of it last."""
        self._waits_at = 0
        self._waiter: Waiter | None = None
        self._bringing: Waiter | None = None
        """Of cold bytes that this part asked for."""
        if topic is not None:
            try:
                self.target = topic.partition(self.number)
                check_epoch(self.target.log, epoch)
                check_fresh(self.target.log)
                if not from_any:
                    check_led(self.target.log)
            except OnelogError as error:
                self.error = error

    def send_to(self, readers: Readers) -> None:
        """Name another replica to the client, if there is one nearer to it."""
        target = self.target
        if target is not None and self.error is None:
            node = readers.nearest(target.log)
            if node is not None:
                self.error = ReadElsewhere(node)

    # -- waiting

    def _end(self, *, committed: bool) -> int:
        """The end of a reader's records now."""
        return 0 if self.target is None else self.target.end(committed=committed)

    def listen(self, callback: Callback, *, committed: bool) -> None:
        """Be called for the next record, or when cold bytes are in memory."""
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
        """Stop waiting; records that were skipped meanwhile were for others."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()
            if self.passed_to >= self._waits_at:
                self.passed_to = max(self.passed_to, waiter.offset)

    # -- reading

    def read_and_mark(self, left: int, first: bool, committed: bool, may_bring: bool) -> Fetched:
        """As `read`; records from now on are news, also before anybody listens."""
        self.heard_to = _NOT_SAID
        fetched = self.read(left, first, committed, may_bring)
        if self.heard_to == _NOT_SAID:
            self.heard_to = self._end(committed=committed)
        return fetched

    def read(self, left: int, first: bool, committed: bool, may_bring: bool) -> Fetched:
        """What fits into `left` bytes; for the `first` partition with records, at least one batch.

        Cold bytes are brought, unless the fetch waits for enough of them already.
        """
        self.cold = None
        self.is_cold = False
        self.fetched = NOTHING
        bringing, self._bringing = self._bringing, None
        if bringing is not None:
            bringing.cancel()
        if self.error is not None or self.target is None or left <= 0:
            return NOTHING
        budget = left if left < self.max_bytes else self.max_bytes
        try:
            fetched = self.target.fetch(self.passed_to, budget, committed)
        except Cold as cold:
            # If other partitions have something to send, the client gets this with its next fetch.
            self.is_cold = True
            if may_bring:
                self.error = self.target.log.failure_of(cold)
                if self.error is None:
                    self.cold = cold.with_traceback(None)
                    self._bringing = self.target.log.when_here(cold, self._came)
            return NOTHING
        except OnelogError as error:
            self.error = without_frames(error)
            return NOTHING
        self.note(fetched)
        # At least one batch goes out; if it is not the only one, it must fit.
        if not first and fetched.size_bytes > budget:
            self.fetched = NOTHING
        return self.fetched

    def _came(self, error: OnelogError | None) -> None:
        """Cold bytes came, or did not: the client hears of it and asks again."""
        if error is not None and self.cold is not None:
            self.error = error

    def note(self, fetched: Fetched) -> None:
        """Keep what was read, and remember how far a look through a view went."""
        self.fetched = fetched
        self.heard_to = fetched.reached or _NOT_SAID
        if not fetched.records and fetched.reached > self.passed_to:
            self.passed_to = fetched.reached

    def row(self, committed: bool) -> Row:
        """Its row in the answer."""
        target, fetched = self.target, self.fetched
        if self.error is not None or target is None:
            code = ErrorCode.unknown_server_error if self.error is None else code_of(self.error)
            replica = self.error.node if isinstance(self.error, ReadElsewhere) else _NO_REPLICA
            start = stable = mark = _UNKNOWN
            if target is not None and code is not ErrorCode.unknown_topic_or_partition:
                start, stable, mark = target.ends()
            return (self.number, int(code), mark, stable, start, None, replica, b"")
        start, stable, mark = target.ends()
        if self.is_cold:
            start = _UNKNOWN  # says to our own clients that nothing came, not that nothing is there
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
