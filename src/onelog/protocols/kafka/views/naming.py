"""The names request: the topic of records in a view's partition that do not carry it.

Rules: a record of a stream with many topics is stored with its topic. A record of a stream made for
one topic is not; the view of a filter writes the topic into each record on the way out. This
request returns it for a whole partition, without a look at records. The answer is as of now; a
client asks again when it plans again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import topic_named
from onelog.protocols.kafka.topics import KafkaTopic
from onelog.protocols.kafka.turns import RequestTurns
from onelog.protocols.kafka.views.topic import View

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


class NamesRequest(msgspec.Struct, frozen=True):
    """The partitions that are asked for."""

    topic: str


async def names(hub: Hub, request: Request) -> bytes:
    """Serve the private request (docs/reference/kafka.md)."""
    try:
        principal = request.connection.principal
        topic = topic_named(hub, principal, None, _decode(request.body).topic)
        numbers = RequestTurns().timed(range(topic.partition_count))
        rows = [named_row(topic, number) async for number in numbers]
    except OnelogError as error:
        return msgspec.json.encode({"error": int(code_of(error)), "message": str(error)})
    return msgspec.json.encode({"error": int(ErrorCode.none), "partitions": rows})


def named_row(topic: KafkaTopic, number: int) -> tuple[str | None, int | None]:
    """The topic of records that carry none, and the offset from which they do."""
    if not isinstance(topic, View):
        return topic.address, None
    place = topic.partition(number).place
    record = place.stream.record
    until = record.fixed_until
    if record.fixed_topic is None or until is None:
        return record.fixed_topic, None
    return record.fixed_topic, until[place.log.id] if place.log.id < len(until) else 0


def _decode(body: bytes) -> NamesRequest:
    try:
        return msgspec.json.decode(body, type=NamesRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KafkaError(
            ErrorCode.invalid_request, f"a names request cannot be read: {error}"
        ) from None
