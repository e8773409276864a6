"""The audit trail: who changed what, and who failed to log in, as records of the stream `~audit`.

Rules:
- One request is one record, whether it was carried out, refused or failed. Requests that were not
  carried out are gathered (`gathering.py`), so that a flood of them is a few records with counts.
- `write` returns at once and never raises: no request waits for its record, and none fails because
  of it. Records of one pass of the loop are one batch.
- While the stream cannot be written, a trouble stands, `WAITING_MAX` records wait in memory, and
  further ones are lost: they are counted, and told in the process's log.
- Nobody writes to the stream but this module (`publish.py` refuses internal streams). Its records
  leave by retention only, and no cursor holds that back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotLeader, OnelogError
from onelog.base.topics import AUDIT_ROOT
from onelog.broker.audit_event import LOGIN_FAILED, AuditEvent, encode_event, login_failed
from onelog.broker.gathering import RefusalGatherer
from onelog.broker.nodes import ClusterNodes
from onelog.kernel import BatchBuilder
from onelog.log.config import Retention, StreamConfig
from onelog.log.stream import Stream
from onelog.observe.logging import get_logger
from onelog.observe.metrics import Sample
from onelog.record.headers import CONTENT_TYPE
from onelog.security.bans import AddressBanned

if TYPE_CHECKING:
    from onelog.broker.broker import Broker

AUDIT_STREAM: Final = "~audit"
AUDIT_FILTER: Final = f"{AUDIT_ROOT}/#"
"""The topics of all records: `$audit/<subject>/<verb>`."""
AUDIT_TROUBLE: Final = "audit"
"""Standing: records of the audit trail cannot be written."""
WAITING_MAX: Final = 1_000
RETRY_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_HEADERS: Final = ((CONTENT_TYPE, b"application/json"),)

_log = get_logger("audit")


class AuditSink(Protocol):
    """What takes the events of doors."""

    def write(self, event: AuditEvent) -> None:
        """Note an event; returns at once, and never raises."""
        ...


def note_failed_login(
    audit: AuditSink, door: str, address: str | None, user: str, error: BaseException
) -> None:
    """Note that a peer did not prove who it is.

    An attempt of an address that is banned is not noted: nobody looked at it, and a peer that goes
    on trying must not fill the trail.
    """
    if not isinstance(error, AddressBanned):
        audit.write(login_failed(door, address, user, error))


class NoAudit:
    """Notes nothing: for a broker inside a program, which has no doors."""

    def write(self, event: AuditEvent) -> None:
        """Nothing happens."""


class AuditTrail:
    """Writes the stream. Made by `open`, ended by `close`."""

    def __init__(self, broker: Broker, stream: Stream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._nodes = broker.nodes
        self._troubles = broker.troubles
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[AuditEvent] = deque()
        self._unwritten: set[asyncio.Future[None]] = set()
        self._next: asyncio.Handle | None = None
        """The next time that what waits is written."""
        self._is_closed = False
        self._refusals = RefusalGatherer(self._loop, self.take)
        self._failures = 0
        """Tries that failed since the last record that was written. Batches that were under way
        together are one try."""
        self.written = 0
        self.lost = 0
        self.failed_logins = 0

    @classmethod
    async def open(
        cls, broker: Broker, clock: Clock, *, age_ms: int, size_bytes: int
    ) -> AuditTrail:
        """Make the stream at the first start, and give it the retention that is configured."""
        retention = Retention(age_ms=age_ms, bytes=size_bytes, pin_bytes_max=0)
        stream = await broker.own_stream(
            StreamConfig(
                name=AUDIT_STREAM,
                captures=(AUDIT_FILTER,),
                retention=retention,
                segment_bytes=_SEGMENT_BYTES,
            )
        )
        if stream.config.retention != retention:
            changed = msgspec.structs.replace(stream.config, retention=retention)
            stream = await broker.streams.alter(changed)
        trail = cls(broker, stream, clock)
        broker.audit = trail
        return trail

    async def flush(self) -> None:
        """Write what waits now; it is durable when this returns, if the disk works."""
        self._flush()
        if self._unwritten:
            await asyncio.wait(self._unwritten, timeout=CLOSE_TIMEOUT_S)

    async def close(self) -> None:
        """Write everything, also counts whose window is open. Idempotent."""
        self._refusals.close()
        self._is_closed = True
        await self.flush()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def write(self, event: AuditEvent) -> None:
        """Note an event; returns at once, and never raises."""
        if self._is_closed:
            return
        if event.action == LOGIN_FAILED:
            self.failed_logins += event.count
        if event.outcome == "ok":
            self.take(event)
        else:
            self._refusals.add(event)

    def take(self, event: AuditEvent) -> None:
        """Note an event that is not gathered with others."""
        if not event.time_ms:
            event = msgspec.structs.replace(event, time_ms=self._clock.now_ms())
        self._keep((event,))
        if self._next is None:
            self._next = self._loop.call_soon(self._flush)

    # -- writing

    def _keep(self, events: Iterable[AuditEvent]) -> None:
        for event in events:
            if len(self._waiting) < WAITING_MAX:
                self._waiting.append(event)
                continue
            self.lost += 1
            _log.error("a record of the audit trail is lost", record=encode_event(event).decode())

    def _flush(self) -> None:
        """Append everything that waits as one batch."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if not self._waiting:
            return
        events = list(self._waiting)
        self._waiting.clear()
        stream, tries = self._stream, self._failures
        builder = BatchBuilder(stream.tags_topics)
        for event in events:
            topic = f"{AUDIT_ROOT}/{event.action.replace('.', '/')}".encode()
            builder.add(topic, topic, encode_event(event), _HEADERS, event.time_ms)
        partition = stream.partitions[0]
        if self._nodes is not None and isinstance(partition.refusal, NotLeader):
            self._send(self._nodes, events, builder.seal(0, 0), tries)
            return
        try:
            appended = partition.append_built(builder, stream.tags_topics)
        except OnelogError as error:
            self._failed(events, error, tries)
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._unwritten.add(done)

        def visible(error: OnelogError | None) -> None:
            self._unwritten.discard(done)
            if not done.done():
                done.set_result(None)
            if error is None:
                self._succeeded(len(events))
            else:
                self._failed(events, error, tries)

        partition.when_visible(appended.last_offset, visible)

    def _send(self, nodes: ClusterNodes, events: list[AuditEvent], data: bytes, tries: int) -> None:
        """Have another node write a batch. One whose outcome is not known may be written twice."""

        async def send() -> None:
            try:
                await nodes.append(self._stream, 0, data)
            except OnelogError as error:
                self._failed(events, error, tries)
            else:
                self._succeeded(len(events))

        sending = self._loop.create_task(send())
        self._unwritten.add(sending)
        sending.add_done_callback(self._unwritten.discard)

    def _succeeded(self, count: int) -> None:
        self.written += count
        self._failures = 0
        if not self._waiting:
            self._troubles.clear(AUDIT_TROUBLE, AUDIT_STREAM)

    def _failed(self, events: Sequence[AuditEvent], error: OnelogError, tries: int) -> None:
        """Events were not written, which were sent after so many tries had failed."""
        later = list(self._waiting)
        self._waiting.clear()
        self._keep((*events, *later))
        if tries >= self._failures:
            self._failures += 1
        # Among several nodes, one failure is an election: the next try finds the leader.
        if self._nodes is None or self._failures > 1:
            self._troubles.stand(
                AUDIT_TROUBLE,
                AUDIT_STREAM,
                f"the audit trail cannot be written, requests go on without it: {error}",
                blocks=False,
            )
        if not self._is_closed and self._next is None:
            self._next = self._loop.call_later(RETRY_S, self._flush)

    def samples(self) -> tuple[Sample, ...]:
        """Numbers for the metrics."""
        return (
            Sample("onelog_audit_records_total", "Audit records.", "counter", self.written),
            Sample(
                "onelog_audit_lost_total",
                "Audit records that could not be written.",
                "counter",
                self.lost,
            ),
            Sample(
                "onelog_failed_logins_total",
                "Logins that were refused.",
                "counter",
                self.failed_logins,
            ),
        )
