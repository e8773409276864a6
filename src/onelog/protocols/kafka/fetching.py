"""Fetch: stored batches as they are, at once or as soon as there is something to send.

Rules:
- An answer goes out when there are `min_bytes`, when `max_wait_ms` is over, or when a partition has
  an error. Waiting is by wake-up of the requested partitions, never by polling.
- If there is any batch, at least one goes out, even when it is larger than every limit (KIP-74), so
  that no consumer gets stuck; a batch is never cut.
- A look through a view that takes long goes on in a thread, and then the answer goes out, whatever
  was found. If a view has nothing to show, a filler goes out with the answer.
- A thread brings cold records from the disk, for `COLD_AT_ONCE` partitions at a time, so that
  others do not wait long for the disk. An answer that would be empty waits for the first of them,
  even beyond `max_wait_ms`, but not for ever.
- A fetch of many partitions lets others on the loop have their turn between its steps (I8).
- No fetch session is kept: session id 0 says so, and every client then sends whole fetches.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.kernel import encode_fetch_response, parse_fetch
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.fetch_parts import Asked, Row, Wanted
from onelog.protocols.kafka.readers import Readers
from onelog.protocols.kafka.rights import topic_named, topic_of_id
from onelog.protocols.kafka.topics import KafkaTopic, Rest
from onelog.protocols.kafka.turns import RequestTurns
from onelog.protocols.kafka.views.looking import RUN_BYTES

if TYPE_CHECKING:
    from onelog.kernel.types import FetchRequest
    from onelog.net.frames import Frame
    from onelog.protocols.kafka.answers import AnswerSlot
    from onelog.protocols.kafka.connection import Connection

_READ_COMMITTED: Final = 1
_NEAREST_FROM: Final = 11
"""The version from which consumers may read from followers."""
_ABORTED_BYTES: Final = 16
"""What an answer needs to name an aborted transaction."""
LOOK_BYTES: Final = 32 * 1024 * 1024
"""Bytes that one fetch looks at through views before it answers."""
_LOOKS: Final = LOOK_BYTES // RUN_BYTES
"""Partitions of views that such a look can go into."""
COLD_AT_ONCE: Final = 32
"""Partitions whose cold records one fetch has brought at a time."""
AT_ONCE: Final = 200
"""Topics and partitions, together, of a fetch that is served in one pass of the loop."""

Topics = Sequence[tuple[str | bytes, list[Asked]]]


class Fetch:
    """One request in progress."""

    __slots__ = (
        "_cold_wait_s",
        "_committed",
        "_connection",
        "_correlation_id",
        "_from_any",
        "_is_late",
        "_max_bytes",
        "_min_bytes",
        "_readers",
        "_rights",
        "_slot",
        "_timer",
        "_topics",
        "_version",
        "_waits_for_disk",
        "_woken",
        "refusal",
        "wait_ms",
    )

    def __init__(
        self,
        connection: Connection,
        slot: AnswerSlot,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> None:
        limits = connection.hub.limits
        self._connection = connection
        self._slot = slot
        self._version = version
        self._correlation_id = correlation_id
        self._from_any = version >= _NEAREST_FROM
        self._readers = Readers.find(connection, request.rack_id) if request.rack_id else None
        self._committed = request.isolation_level == _READ_COMMITTED
        self._max_bytes = min(request.max_bytes, limits.fetch_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self.wait_ms = min(request.max_wait_ms, limits.fetch_wait_ms)
        self._cold_wait_s = limits.cold_wait_ms / 1000
        self.refusal = ErrorCode.none
        if request.session_id and request.session_epoch > 0:
            self.refusal = ErrorCode.fetch_session_id_not_found
        self._topics: list[tuple[str | bytes, list[Wanted]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False
        self._is_late = False
        """Whether the client's `max_wait_ms` is over."""
        self._waits_for_disk = True
        self._rights = connection.hub.rights_changes

    def _find(self, name: str | bytes) -> tuple[KafkaTopic | None, OnelogError | None]:
        """A requested topic, or the error why it is not served."""
        hub, principal = self._connection.hub, self._connection.principal
        try:
            if isinstance(name, bytes):
                topic = topic_of_id(hub, principal, Action.DELIVER, uuid.UUID(bytes=name))
            else:
                topic = topic_named(hub, principal, Action.DELIVER, name)
        except OnelogError as error:
            return None, error
        return topic, None

    def _send_on(self, readers: Readers) -> None:
        """Name nearer replicas for the partitions that have one."""
        for part in self._parts():
            part.send_to(readers)

    def _ask_again(self) -> None:
        """Refuse what the client may not have any more: rights changed while it waited."""
        self._rights = self._connection.hub.rights_changes
        for name, wanted in self._topics:
            refusal = self._find(name)[1]
            if refusal is not None:
                for part in wanted:
                    part.error = refusal

    def _parts(self) -> Iterator[Wanted]:
        for _name, wanted in self._topics:
            yield from wanted

    # -- in one pass

    def begin(self, topics: Topics) -> None:
        """Find the requested partitions. Answer now, or when there is something to send."""
        for name, rows in topics:
            found = self._find(name)
            from_any = self._from_any
            self._topics.append((name, [Wanted(row, *found, from_any) for row in rows]))
        if self._readers is not None:
            self._send_on(self._readers)
        if not self._try_answer(last_try=self.wait_ms <= 0):
            self._wait()

    def _try_answer(self, *, last_try: bool) -> bool:
        """Answer if there is enough. Returns whether the answer goes out."""
        if self._rights != self._connection.hub.rights_changes:
            self._ask_again()
        left, total, failed, rests, colds = self._max_bytes, 0, False, False, 0
        committed = self._committed
        for _name, wanted in self._topics:
            for part in wanted:
                # Of the first that has something one batch goes out, whatever the limit is.
                room = left if total or left > 0 else 1
                fetched = part.read(room, not total, committed, colds < COLD_AT_ONCE)
                colds += part.cold is not None
                failed = failed or part.error is not None
                total += fetched.size_bytes
                left -= fetched.size_bytes
                rests = rests or fetched.rest is not None
        if rests:
            self._connection.run(self._slot, self._look_and_send(total))
            return True
        if self._is_too_little(total, failed=failed, last_try=last_try):
            return False
        self._send(
            [(name, [part.row(committed) for part in wanted]) for name, wanted in self._topics]
        )
        return True

    def _is_too_little(self, total: int, *, failed: bool, last_try: bool) -> bool:
        """Whether an answer waits for more."""
        if last_try:
            if total or failed or not self._waits_for_disk:
                return False
            return any(part.cold is not None for part in self._parts())
        # A request without topics (a client ends its session) waits for nothing.
        return total < self._min_bytes and bool(self._topics) and not failed

    def _send(self, topics: list[tuple[str | bytes, list[Row]]]) -> None:
        slot, pacing = self._slot, self._connection.pacing
        if pacing is not None:
            slot.delay(pacing.fetch(sum([part.fetched.size_bytes for part in self._parts()])))
        slot.finish(
            encode_fetch_response(
                self._correlation_id,
                self._version,
                slot.throttle_ms,
                int(self.refusal),
                0,
                topics,
            )
        )

    def refuse(self) -> None:
        """Answer that the request as a whole cannot be served."""
        self._send([])

    # -- waiting

    def _wait(self) -> None:
        """Answer when there is news, or when `max_wait_ms` is over."""
        loop = self._connection.hub.loop
        self._slot.cancel = self._cancel
        self._timer = loop.call_later(self.wait_ms / 1000, self._time_is_over)
        self._listen()

    def _listen(self) -> None:
        """Be called for the next record in any requested partition."""
        self._woken = False
        for _name, wanted in self._topics:
            for part in wanted:
                part.listen(self._wake, committed=self._committed)

    def _wake(self, _error: OnelogError | None) -> None:
        if not self._woken:
            # All records that become visible in this pass go into one answer.
            self._woken = True
            self._connection.hub.loop.call_soon(self._look)

    def _look(self) -> None:
        if self._timer is None:
            return  # answered or cancelled meanwhile
        self._forget_waiters()
        if self._try_answer(last_try=self._is_late):
            self._timer.cancel()
            self._timer = None
        else:
            self._listen()

    def _time_is_over(self) -> None:
        self._timer = None
        self._forget_waiters()
        self._waits_for_disk = not self._is_late
        self._is_late = True
        if not self._try_answer(last_try=True):
            loop = self._connection.hub.loop
            self._timer = loop.call_later(self._cold_wait_s, self._time_is_over)
            self._listen()

    def _forget_waiters(self) -> None:
        for _name, wanted in self._topics:
            for part in wanted:
                part.hear()

    def _cancel(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget_waiters()

    # -- in turns

    async def learn_and_serve(self, topics: Topics) -> None:
        """The same where the client got ids of views from another node."""
        ids = [uuid.UUID(bytes=name) for name, _rows in topics if isinstance(name, bytes)]
        await self._connection.hub.elsewhere.learn(ids)
        await self.serve_in_turns(topics)

    async def serve_in_turns(self, topics: Topics) -> None:
        """The same for many partitions, while others have their turns."""
        loop, turns = self._connection.hub.loop, RequestTurns()
        ends_at = loop.time() + self.wait_ms / 1000
        self._is_late = self.wait_ms <= 0
        async for name, rows in turns.over(topics):
            found = self._find(name)
            from_any = self._from_any
            wanted = [Wanted(row, *found, from_any) async for row in turns.timed(rows)]
            self._topics.append((name, wanted))
        if self._readers is not None:
            self._send_on(self._readers)
        while not await self._answer_in_turns(turns, last_try=self._is_late):
            await self._wait_in_turns(turns, ends_at + (self._cold_wait_s if self._is_late else 0))
            self._is_late = loop.time() >= ends_at
            self._waits_for_disk = loop.time() < ends_at + self._cold_wait_s

    async def _answer_in_turns(self, turns: RequestTurns, *, last_try: bool) -> bool:
        """Answer if there is enough. Returns whether the answer went out."""
        if self._rights != self._connection.hub.rights_changes:
            self._ask_again()
        left, total, failed, rests, colds = self._max_bytes, 0, False, False, 0
        async for part in turns.timed(self._parts()):
            room = left if total or left > 0 else 1
            fetched = part.read_and_mark(room, not total, self._committed, colds < COLD_AT_ONCE)
            colds += part.cold is not None
            failed = failed or part.error is not None
            total += fetched.size_bytes
            left -= fetched.size_bytes + _ABORTED_BYTES * len(fetched.aborted)
            rests = rests or fetched.rest is not None
        if rests:
            await self._look_on(total, turns)
        elif self._is_too_little(total, failed=failed, last_try=last_try):
            return False
        await self._send_in_turns(turns)
        return True

    async def _wait_in_turns(self, turns: RequestTurns, ends_at: float) -> None:
        """Wait until there is news, or `max_wait_ms` is over."""
        woken = asyncio.Event()
        try:
            async for part in turns.timed(self._parts()):
                part.listen(lambda _error: woken.set(), committed=self._committed)
            async with asyncio.timeout_at(ends_at):
                await woken.wait()
        except TimeoutError:
            pass
        finally:
            async for part in turns.timed(self._parts()):
                part.hear()

    async def _look_and_send(self, total: int) -> None:
        turns = RequestTurns()
        await self._look_on(total, turns)
        await self._send_in_turns(turns)

    async def _look_on(self, total: int, turns: RequestTurns) -> None:
        """Go on with looks through views, each a part of the way."""
        rests: list[tuple[Wanted, Rest]] = [
            (part, part.fetched.rest)
            async for part in turns.timed(self._parts())
            if part.fetched.rest is not None
        ]
        if len(rests) > _LOOKS:  # others than the last time: the request's number decides
            first = self._correlation_id * _LOOKS % len(rests)
            rests = (rests + rests)[first : first + _LOOKS]
        share = LOOK_BYTES // len(rests)

        def work() -> None:
            room = self._max_bytes - total
            for part, rest in rests:
                before = part.fetched.size_bytes
                room -= rest.go_on(share, before + max(room, 1)) - before
                if room <= 0:
                    break

        await self._connection.hub.views.in_thread(work)
        for part, rest in rests:
            try:
                part.note(rest.fetched())
            except OnelogError as error:
                part.error = error

    async def _send_in_turns(self, turns: RequestTurns) -> None:
        topics: list[tuple[str | bytes, list[Row]]] = []
        async for name, wanted in turns.timed(self._topics):
            rows = [part.row(self._committed) async for part in turns.timed(wanted)]
            topics.append((name, rows))
        self._send(topics)


def begin_fetch(
    connection: Connection, slot: AnswerSlot, frame: Frame, version: int, correlation_id: int
) -> None:
    """Answer a Fetch request now, or when there is something to send."""
    buffer, start, end = frame
    request = parse_fetch(buffer, start, end, version)
    fetch = connection.hub.fetch(connection, slot, request, version, correlation_id)
    topics, lacks = request.topics, connection.hub.elsewhere.lacks_id
    if fetch.refusal is not ErrorCode.none:
        fetch.refuse()
    elif any(isinstance(name, bytes) and lacks(name) for name, _rows in topics):
        connection.run(slot, fetch.learn_and_serve(topics))
    elif len(topics) + sum([len(rows) for _name, rows in topics]) > AT_ONCE:
        connection.run(slot, fetch.serve_in_turns(topics))
    else:
        fetch.begin(topics)
