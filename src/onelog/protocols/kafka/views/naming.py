"""The names request: the topic of records in a view's partition that do not carry it.

Rules: a record of a stream with many topics is stored with its topic. A record of a stream made for
one topic is not; the view of a filter writes the topic into each record on the way out. This
request returns it for a whole partition, without a look at records. It also says which partitions
of topics and views are those of a stream, so that a client reads a stream by its name. The answer
is as of now; a client asks again when it plans again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from onelog.base.errors import OnelogError
from onelog.base.names import to_dotted
from onelog.base.topics import covers, overlap
from onelog.broker import Principal
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import authorize, topic_named
from onelog.protocols.kafka.topics import KafkaTopic, kafka_name
from onelog.protocols.kafka.turns import RequestTurns
from onelog.protocols.kafka.views.topic import View

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


class NamesRequest(msgspec.Struct, frozen=True):
    """The partitions that are asked for: of a topic, or of a stream."""

    topic: str = ""
    stream: str = ""


async def names(hub: Hub, request: Request) -> bytes:
    """Serve the private request (docs/reference/kafka.md)."""
    none = int(ErrorCode.none)
    try:
        principal = request.connection.principal
        asked = _decode(request.body)
        if asked.stream:
            found = await _topics_of(hub, principal, asked.stream)
            return msgspec.json.encode({"error": none, "topics": found})
        topic = topic_named(hub, principal, None, asked.topic)
        numbers = RequestTurns().timed(range(topic.partition_count))
        rows = [named_row(topic, number) async for number in numbers]
    except OnelogError as error:
        return msgspec.json.encode({"error": int(code_of(error)), "message": str(error)})
    return msgspec.json.encode({"error": none, "partitions": rows})


async def _topics_of(
    hub: Hub, principal: Principal | None, name: str
) -> list[tuple[str, str, list[int]]]:
    """Kafka's names, addresses and partitions that show the records of a stream, each once."""
    stream = hub.broker.streams.find(name)
    if stream is None or stream.is_internal:
        authorize(hub, principal, None, name)  # who may not see it does not learn that it is not
        raise KafkaError(
            ErrorCode.unknown_topic_or_partition, f"there is no stream {name[:100]!r} here"
        )
    own = kafka_name(stream)
    if own is not None:
        topic = topic_named(hub, principal, None, own)
        return [(own, topic.address, list(range(topic.partition_count)))]
    found: list[tuple[str, str, list[int]]] = []
    async for text in RequestTurns().timed(_apart(name, stream.config.captures)):
        view = hub.topics.find(to_dotted(text))
        if view is None:
            continue  # one exact topic, of which there is no record
        authorize(hub, principal, None, view.address)
        if isinstance(view, View):
            numbers = range(view.partition_count)
            numbers_here = [n for n in numbers if view.partition(n).place.stream is stream]
            found.append((view.name, view.address, numbers_here))
    return found


def _apart(name: str, captures: Iterable[str]) -> list[str]:
    """Filters of a stream that show each topic once. Raises KafkaError when there are none."""
    texts = list(captures)
    kept = [
        one
        for one in texts
        if not any(
            other != one and covers(other, one) and (other.endswith("#") or "#" not in one)
            for other in texts
        )
    ]
    for at, one in enumerate(kept):
        for other in kept[at + 1 :]:
            if overlap(one, other):
                raise KafkaError(
                    ErrorCode.invalid_request,
                    f"the stream {name} captures {one} and {other}, and some topics match both:"
                    " read each of these filters instead",
                )
    return kept


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
        found = msgspec.json.decode(body, type=NamesRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KafkaError(
            ErrorCode.invalid_request, f"a names request cannot be read: {error}"
        ) from None
    if bool(found.topic) == bool(found.stream):
        raise KafkaError(
            ErrorCode.invalid_request, "a names request has either a topic or a stream"
        )
    return found
