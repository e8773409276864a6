"""The cold request: which objects of a store hold the records of a partition.

Rules:
- A client may ask that may read the topic, as for a fetch. It learns names of objects and where the
  store is, never a key: whoever reads the objects needs rights of the store itself.
- Rows ascend by offset. All records below `cold_end` that are still there lie in rows. An answer
  names only rows whose transactions are decided.
- An answer has `ROWS_MAX` rows at most; `next` says where the next request goes on.
- While a lease lasts, the objects of the answer stay, also those that retention or joining drops.
  It lasts `LEASE_MS`; the next request on the same partition begins another one.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset, TimestampMs
from onelog.broker import Action, PartitionHandle
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
    # The lease comes first: no object goes between the look at the rows and the answer.
    log.hold_cold(TimestampMs(hub.clock.now_ms() + LEASE_MS))
    stable = log.last_stable_offset
    start, end = max(asked.start, log.start_offset), min(asked.end, stable)

    look = partial(_look, log, start, end, stable)
    rows, more = await hub.broker.in_thread(look) if start < end else ((), False)
    return ColdAnswer(
        error=none,
        rows=rows,
        cold_end=rows[-1].end if rows else start,
        next=rows[-1].end if more else None,
        store=store.shown(),
        filter=topic.address if isinstance(topic, View) else None,
        named=named_row(topic, asked.partition),
        lease=asked.lease or secrets.token_hex(8),
        lease_ms=LEASE_MS,
        table=_table(topic, asked.partition),
    )


def _look(log: PartitionHandle, start: int, end: int, stable: int) -> tuple[tuple[Row, ...], bool]:
    """In a thread: the rows in [start, end), and whether there are more than an answer holds."""
    found: list[Row] = []
    at, span = start, _SPAN
    while at < end:
        upto = min(end, at + span)
        for row in log.cold_rows(Offset(at), Offset(upto)):
            if row.end > stable:
                return tuple(found), False
            if len(found) == ROWS_MAX:
                return tuple(found), True
            found.append(row)
        at = max(upto, found[-1].end if found else 0)
        span *= 4  # few rows so far: a partition of a hundred thousand is not read for each page
    return tuple(found), False


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
