"""The cold request: which objects of a store hold the records of a partition.

Rules:
- A client may ask that may read the topic, as for a fetch. It learns names of objects and where the
  store is, never a key: whoever reads the objects needs rights of the store itself.
- Rows ascend by offset. Records below `cold_end` lie in rows, with few exceptions. An answer
  names only rows whose transactions are decided.
- An answer has `ROWS_MAX` rows and `ABORTED_MAX` aborted transactions at most; `next` says where
  the next request goes on. A row with more aborted transactions than that is left out: whoever
  finds a gap between rows fetches it.
- A piece of a tier lists its aborted transactions. One of the engine `object` was made before they
  were decided: the answer lists them.
- While a lease lasts, the objects of the answer stay, also those that retention or joining drops.
  It lasts `LEASE_MS`, also across a restart of the broker; the next request on the same partition
  begins another one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset, TimestampMs
from onelog.broker import Action, PartitionHandle
from onelog.objects import names
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.objects.shown import StoreWords
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.rights import topic_named
from onelog.protocols.kafka.topics import KafkaTopic, TopicPartition
from onelog.protocols.kafka.views.naming import named_row
from onelog.protocols.kafka.views.topic import View

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub
    from onelog.protocols.kafka.request import Request

ROWS_MAX: Final = 2000
"""Rows of one answer: some 400 KB."""
LEASE_MS: Final = 3_600_000
ABORTED_MAX: Final = 20_000
"""Aborted transactions of one answer: some 600 KB."""
_SPAN: Final = 1 << 16
"""Offsets that are looked at first."""
_OFFSET_MAX: Final = (1 << 63) - 1


class ColdRequest(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """The offsets that are asked for."""

    topic: str
    partition: int
    start: int = 0
    end: int = _OFFSET_MAX
    lease: str = ""
    """The name of a plan that this request belongs to; empty: it begins one."""


class ColdAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What lies in the store."""

    error: int
    rows: tuple[Row, ...] = ()
    cold_end: int = 0
    next: int | None = None
    store: StoreWords | None = None
    filter: str | None = None
    """Of a view: which topics it shows; rows have those of other topics, too."""
    named: tuple[str | None, int | None] = (None, None)
    """As the names request has it."""
    lease: str = ""
    lease_ms: int = 0
    aborted: tuple[AbortedSpan, ...] = ()
    """Aborted transactions of rows whose pieces do not list them."""
    table: tuple[str, str] | None = None
    """Format and name of the table that the stream's history is; None: it is none."""


async def cold(hub: Hub, request: Request) -> bytes:
    """Serve the private request (docs/reference/kafka.md)."""
    try:
        asked = _decode(request.body)
        principal = request.connection.principal
        topic = topic_named(hub, principal, Action.DELIVER, asked.topic)
        answer = await _answer(hub, asked, topic, topic.partition(asked.partition))
    except OnelogError as error:
        return msgspec.json.encode({"error": int(code_of(error)), "message": str(error)})
    return msgspec.json.encode(answer)


async def _answer(
    hub: Hub, asked: ColdRequest, topic: KafkaTopic, partition: TopicPartition
) -> ColdAnswer:
    store = hub.broker.objects.store
    none = int(ErrorCode.none)
    if store is None:
        return ColdAnswer(error=none)
    log = partition.log
    if log.stopped is not None:
        raise log.stopped
    stable = log.last_stable_offset
    start, end = max(asked.start, log.start_offset), min(asked.end, stable)

    def look() -> _Found:
        # The lease comes first: no object goes between the look at the rows and the answer.
        log.hold_cold(TimestampMs(hub.clock.now_ms() + LEASE_MS))
        return _look(log, start, end, stable)

    found = await hub.broker.in_thread(look) if start < end else _Found()
    rows = tuple(found.rows)
    return ColdAnswer(
        error=none,
        rows=rows,
        cold_end=rows[-1].end if rows else start,
        next=rows[-1].end if found.is_full else None,
        store=store.shown(),
        filter=topic.address if isinstance(topic, View) else None,
        named=named_row(topic, asked.partition),
        lease=asked.lease or secrets.token_hex(8),
        lease_ms=LEASE_MS,
        aborted=tuple(found.aborted),
        table=_table(topic, asked.partition),
    )


class _Found:
    """Rows of an answer."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.aborted: dict[AbortedSpan, None] = {}
        """Each once: a long transaction has records in several rows."""
        self.is_full = False
        """Whether there are more than an answer holds."""

    def add(self, log: PartitionHandle, row: Row) -> bool:
        """Add the next row; False: the answer is full."""
        spans: list[AbortedSpan] = []
        if names.is_data(row.object):
            known = log.aborted_between(row.base, row.end)
            spans = [AbortedSpan(*msgspec.structs.astuple(txn)) for txn in known]
        if len(spans) > ABORTED_MAX:
            return True
        if len(self.rows) == ROWS_MAX or len(self.aborted) + len(spans) > ABORTED_MAX:
            self.is_full = True
            return False
        self.rows.append(row)
        self.aborted.update(dict.fromkeys(spans))
        return True


def _look(log: PartitionHandle, start: int, end: int, stable: int) -> _Found:
    """In a thread: the rows in [start, end)."""
    found = _Found()
    at, span = start, _SPAN
    while at < end:
        upto = min(end, at + span)
        for row in log.cold_rows(Offset(at), Offset(upto)):
            if row.end > stable or not found.add(log, row):
                return found
            upto = max(upto, row.end)
        at = upto
        span *= 4  # few rows so far: a partition of a hundred thousand is not read for each page
    return found


def _table(topic: KafkaTopic, partition: int) -> tuple[str, str] | None:
    stream = topic.partition(partition).place.stream if isinstance(topic, View) else topic.stream
    assert stream is not None, "a topic that is no view is a stream"
    tier = stream.config.tier
    return (tier.format.value, tier.table or stream.name) if tier.format.is_table else None


def _decode(body: bytes) -> ColdRequest:
    try:
        return msgspec.json.decode(body, type=ColdRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KafkaError(
            ErrorCode.invalid_request, f"a cold request cannot be read: {error}"
        ) from None
