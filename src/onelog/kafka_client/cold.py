"""The cold request: which objects of a store hold the records of a partition.

Rules: a broker that does not know the request closes the connection, as Kafka's do. That is an
answer, too: there are no objects to read. An answer comes in pages; the caller sees all rows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from onelog.base.errors import ProtocolViolation
from onelog.kafka_client.messages import Named
from onelog.kafka_client.wire import Reader
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.objects.shown import StoreWords


class ColdPage(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the broker (docs/reference/kafka.md, "The cold request")."""

    error: int
    message: str | None = None
    rows: tuple[Row, ...] = ()
    cold_end: int = 0
    next: int | None = None
    store: StoreWords | None = None
    filter: str | None = None
    named: tuple[str | None, int | None] = (None, None)
    lease: str = ""
    lease_ms: int = 0
    aborted: tuple[AbortedSpan, ...] = ()
    table: tuple[str, str] | None = None


class ColdPart(msgspec.Struct, frozen=True, kw_only=True):
    """The cold part of a partition."""

    rows: tuple[Row, ...]
    end: int
    """Records below it lie in the rows; what lies in none of them is fetched."""
    store: StoreWords
    filter: str | None
    """Of a view: the topics that it shows; the rows have records of other topics, too."""
    named: Named
    """Which topic the records have that do not carry it."""
    lease: str
    lease_ms: int
    """How long the objects stay, whatever becomes of them."""
    aborted: tuple[AbortedSpan, ...] = ()
    """Aborted transactions that the pieces do not list themselves."""
    table: tuple[str, str] | None = None
    """Format and name of the table that the records are, too; None: they are none."""


_decoder: Final = msgspec.json.Decoder(ColdPage)


def cold_request(topic: str, partition: int, start: int, end: int, lease: str) -> bytes:
    """Ask for the rows of offsets in [start, end)."""
    asked = {"topic": topic, "partition": partition, "from": start, "to": end, "lease": lease}
    return msgspec.json.encode(asked)


def read_cold(reader: Reader) -> ColdPage:
    """A page of rows."""
    try:
        return _decoder.decode(reader.rest())
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ProtocolViolation(
            "an answer of the broker is not the JSON that it should be"
        ) from None
