"""Fetch: stored batches as they are, at once or as soon as there is something to send.

Rules:
- An answer goes when `min_bytes` are there, when `max_wait_ms` is over, or when a partition has an
  error to tell. Waiting is by wake-up of the partitions that were asked for, never by polling.
- At least one batch goes out where there is one, also when it is larger than every limit (KIP-74),
  so that no consumer stands still; a batch is never cut.
- A look through a view that is not over in a moment goes on in a thread, and then the answer goes,
  whatever was found. Where a view has nothing to show, a filler goes out with the answer.
- No fetch session is kept: session id 0 says so, and every client then sends whole fetches.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.kernel import encode_fetch_response, parse_fetch
from onelog.log.wakeup import Callback, Waiter
from onelog.protocols.kafka.epochs import check_epoch
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.topics import NOTHING, Fetched, KafkaTopic, TopicPartition
from onelog.protocols.kafka.turns import ROWS as TURN_ROWS
from onelog.protocols.kafka.turns import Turns

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer, FetchRequest
    from onelog.protocols.kafka.answers import Slot
    from onelog.protocols.kafka.connection import Connection, Frame

_READ_COMMITTED: Final = 1
_NO_REPLICA: Final = -1
_UNKNOWN: Final = -1
LOOK_BYTES: Final = 32 * 1024 * 1024
"""Bytes that one fetch looks at through views before it answers."""

Row: TypeAlias = (
    "tuple[int, int, int, int, int, Sequence[tuple[int, int]] | None, int, list[Buffer] | bytes]"
)
"""As the kernel takes it (`kernel.types.FetchedRow`)."""


class _Wanted:
    """One partition that a fetch asks for."""

    __slots__ = (
        "_waiter",
        "_waits_at",
        "error",
        "heard_to",
        "max_bytes",
        "number",
        "offset",
        "passed_to",
        "target",
    )

    def __init__(self, number: int, offset: int, max_bytes: int) -> None:
        self.number = number
        self.offset = offset
        self.max_bytes = max_bytes
        self.target: TopicPartition | None = None
        self.error: OnelogError | None = None
        self.heard_to = 0
        """Of a view: up to here it was looked at; news come behind it."""
        self.passed_to = offset
        """Of a view: up to here there is nothing to show, so that nobody looks there again."""
        self._waits_at = 0
        self._waiter: Waiter | None = None

    def listen(self, callback: Callback, *, committed: bool) -> None:
        """Be told of the next record."""
        target = self.target
        if target is not None:
            end = self.heard_to or (
                target.last_stable_offset if committed else target.high_watermark
            )
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

    def note(self, fetched: Fetched) -> Fetched:
        """Remember how far a look through a view went."""
        self.heard_to = fetched.reached
        if not fetched.records:
            self.passed_to = max(self.passed_to, fetched.reached)
        return fetched


class _Fetch:
    """One request in progress."""

    __slots__ = (
        "_committed",
        "_connection",
        "_correlation_id",
        "_max_bytes",
        "_min_bytes",
        "_slot",
        "_timer",
        "_topics",
        "_version",
        "_woken",
        "refusal",
        "wait_ms",
    )

    def __init__(
        self,
        connection: Connection,
        slot: Slot,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> None:
        limits = connection.hub.limits
        self._connection = connection
        self._slot = slot
        self._version = version
        self._correlation_id = correlation_id
        self._committed = request.isolation_level == _READ_COMMITTED
        self._min_bytes = request.min_bytes
        self._max_bytes = min(request.max_bytes, limits.fetch_bytes)
        self.wait_ms = min(request.max_wait_ms, limits.fetch_wait_ms)
        self.refusal = ErrorCode.none
        if request.session_id and request.session_epoch > 0:
            self.refusal = ErrorCode.fetch_session_id_not_found
        self._topics: list[tuple[str | bytes, list[_Wanted]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    def resolve(
        self, topics: Sequence[tuple[str | bytes, list[tuple[int, int, int, int, int, int]]]]
    ) -> None:
        """Find what is asked for."""
        self._topics = [(name, self._resolve(name, rows)) for name, rows in topics]

    async def resolve_in_turns(
        self, topics: Sequence[tuple[str | bytes, list[tuple[int, int, int, int, int, int]]]]
    ) -> None:
        """The same for many topics, then go on as `begin` does."""
        self._topics = [
            (name, self._resolve(name, rows)) async for name, rows in Turns().over(topics)
        ]
        self.begin()

    def begin(self) -> None:
        """Answer now, or when there is something to send."""
        if not self.try_answer(last_try=self.wait_ms <= 0):
            self.wait()

    def _resolve(
        self, name: str | bytes, rows: list[tuple[int, int, int, int, int, int]]
    ) -> list[_Wanted]:
        """What is asked for of one topic."""
        topic, refusal = None, None
        try:
            topic = self._find(name)
        except OnelogError as error:
            refusal = error
        found = []
        for number, epoch, offset, _fetched_epoch, _log_start, max_bytes in rows:
            wanted = _Wanted(number, offset, max_bytes)
            found.append(wanted)
            if topic is None:
                wanted.error = refusal
                continue
            try:
                wanted.target = topic.partition(number)
                check_epoch(wanted.target.log, epoch)
            except OnelogError as error:
                wanted.error = error
        return found

    def _find(self, name: str | bytes) -> KafkaTopic:
        hub = self._connection.hub
        if isinstance(name, bytes):
            topic = hub.topics.by_id(uuid.UUID(bytes=name))
            if topic is None:
                raise KafkaError(ErrorCode.unknown_topic_id, "no topic has this id")
        else:
            topic = hub.topics.get(name)
        hub.authorize(self._connection.principal, Action.SUBSCRIBE, topic)
        return topic

    # -- answering

    def try_answer(self, *, last_try: bool) -> bool:
        """Answer if there is enough; True when the answer went."""
        left, total, failed, rests = self._max_bytes, 0, False, False
        found: list[list[Fetched]] = []
        for _name, wanted in self._topics:
            row = []
            for part in wanted:
                fetched = self._read(part, left if total else max(left, 1), first=not total)
                failed = failed or part.error is not None
                total += fetched.size_bytes
                left -= fetched.size_bytes
                rests = rests or fetched.rest is not None
                row.append(fetched)
            found.append(row)
        if rests:
            self._connection.run(self._slot, self._look_on(found, total))
            return True
        # Who asks for nothing (a client that ends its session) waits for nothing.
        if total < self._min_bytes and self._topics and not failed and not last_try:
            return False
        self._send(found)
        return True

    def _read(self, part: _Wanted, left: int, *, first: bool) -> Fetched:
        if part.error is not None or part.target is None or left <= 0:
            return NOTHING
        budget = min(part.max_bytes, left)
        try:
            fetched = part.target.fetch(part.passed_to, budget, committed=self._committed)
        except OnelogError as error:
            part.error = error
            return NOTHING
        part.note(fetched)
        # One batch always comes; unless it is the only thing sent, it must fit.
        return fetched if first or fetched.size_bytes <= budget else NOTHING

    async def _look_on(self, found: list[list[Fetched]], total: int) -> None:
        """Go on with looks through views, all of them a part of the way, then answer."""
        rests = [
            (part, row, at, rest)
            for (_name, wanted), row in zip(self._topics, found, strict=True)
            for at, part in enumerate(wanted)
            if (rest := row[at].rest) is not None
        ]
        share = max(LOOK_BYTES // len(rests), 1)

        def work() -> None:
            room = self._max_bytes - total
            for _part, row, at, rest in rests:
                before = row[at].size_bytes
                room -= rest.go_on(share, before + max(room, 1)) - before
                if room <= 0:
                    break

        await self._connection.hub.views.in_thread(work)
        for part, row, at, rest in rests:
            try:
                row[at] = part.note(rest.fetched())
            except OnelogError as error:
                part.error = error
        self._send(found)

    def _send(self, found: list[list[Fetched]]) -> None:
        topics = [
            (name, [self._row(part, fetched) for part, fetched in zip(wanted, row, strict=True)])
            for (name, wanted), row in zip(self._topics, found, strict=True)
        ]
        self._slot.finish(
            encode_fetch_response(
                self._correlation_id, self._version, 0, int(self.refusal), 0, topics
            )
        )

    def _row(self, part: _Wanted, fetched: Fetched) -> Row:
        target = part.target
        if part.error is not None or target is None:
            code = ErrorCode.unknown_server_error if part.error is None else code_of(part.error)
            mark = start = stable = _UNKNOWN
            if target is not None and code is not ErrorCode.unknown_topic_or_partition:
                mark, stable = target.high_watermark, target.last_stable_offset
                start = int(target.log.start_offset)
            return (part.number, int(code), mark, stable, start, None, _NO_REPLICA, b"")
        return (
            part.number,
            0,
            target.high_watermark,
            target.last_stable_offset,
            int(target.log.start_offset),
            fetched.aborted if self._committed else None,
            _NO_REPLICA,
            fetched.records or (fetched.filler(part.offset) if fetched.filler else b""),
        )

    def refuse(self) -> None:
        """Answer that the request as a whole cannot be served."""
        self._topics = []
        self._send([])

    # -- waiting

    def wait(self) -> None:
        """Answer when there is news, or when the client's patience ends."""
        loop = self._connection.hub.loop
        self._slot.cancel = self.cancel
        self._timer = loop.call_later(self.wait_ms / 1000, self._time_is_over)
        self._listen()

    def _listen(self) -> None:
        """Be told of the next record in any partition that was asked for."""
        self._woken = False
        for _name, wanted in self._topics:
            for part in wanted:
                part.listen(self._wake, committed=self._committed)

    def _wake(self, _error: OnelogError | None) -> None:
        if not self._woken:
            # All that becomes visible in this pass of the loop goes into one answer.
            self._woken = True
            self._connection.hub.loop.call_soon(self._look)

    def _look(self) -> None:
        if self._timer is None:
            return  # answered or given up meanwhile
        self._forget_waiters()
        if self.try_answer(last_try=False):
            self._timer.cancel()
            self._timer = None
        else:
            self._listen()

    def _time_is_over(self) -> None:
        self._timer = None
        self._forget_waiters()
        self.try_answer(last_try=True)

    def _forget_waiters(self) -> None:
        for _name, wanted in self._topics:
            for part in wanted:
                part.hear()

    def cancel(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget_waiters()


def begin_fetch(
    connection: Connection, slot: Slot, frame: Frame, version: int, correlation_id: int
) -> None:
    """Answer a Fetch request now, or when there is something to send."""
    buffer, start, end = frame
    request = parse_fetch(buffer, start, end, version)
    fetch = _Fetch(connection, slot, request, version, correlation_id)
    if fetch.refusal is not ErrorCode.none:
        fetch.refuse()
    elif len(request.topics) > TURN_ROWS:
        connection.run(slot, fetch.resolve_in_turns(request.topics))
    else:
        fetch.resolve(request.topics)
        fetch.begin()
