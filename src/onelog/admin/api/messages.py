"""Operations on messages: look at them by filter, offset or time, and publish one.

Rules: a publish counts for the quotas of its caller and of the listener `admin`, and is refused
while one is in debt: there is no connection that could be held back.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    OPERATOR,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import CURSOR_CHARS_MAX, decode_key, encode_key
from onelog.admin.api.peeking import MessageShown, Peek, shown
from onelog.base.errors import InvalidRequest, NotAuthorized, NotFound
from onelog.base.topics import check_filter, check_topic
from onelog.broker import Message, Record
from onelog.queues.addresses import is_writable
from onelog.record.headers import CONTENT_TYPE, RETAIN

TAG = "messages"
LISTENER = "admin"
"""The listener of this API, as quotas name it."""
_POSITIONS_MAX = 100
"""Partitions whose positions fit into the token of a next page."""

Positions = list[tuple[str, int, int]]


class MessageQuery(ApiInput, frozen=True, kw_only=True):
    """Which messages."""

    filter: Annotated[str, Meta(min_length=1, max_length=4096, description="Topic or filter.")] = (
        "#"
    )
    start: Annotated[
        Literal["newest", "earliest", "time", "offset"],
        Meta(
            description="The newest ones, newest first; or from the start, a time or an offset on,"
            " in the order of each partition."
        ),
    ] = "newest"
    time_ms: (
        Annotated[int, Meta(ge=0, le=2**62, description="For start=time: since the epoch.")] | None
    ) = None
    stream: (
        Annotated[str, Meta(min_length=1, max_length=255, description="For start=offset.")] | None
    ) = None
    partition: Annotated[int, Meta(ge=0, le=2**31, description="For start=offset.")] | None = None
    offset: Annotated[int, Meta(ge=0, le=2**62, description="For start=offset.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=500, description="How many, at most.")] = 50
    value_bytes: Annotated[
        int, Meta(ge=0, le=1_048_576, description="Bytes of each value that are shown.")
    ] = 4096
    cursor: Annotated[
        str,
        Meta(max_length=CURSOR_CHARS_MAX, description="`next_cursor` of the answer before."),
    ] = ""


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that were found."""

    items: list[MessageShown]
    complete: bool
    """Whether everything there is was looked at; false: more may follow, or the look was long."""
    next_cursor: str | None
    """Where to go on; null: at the end, or of start=newest."""


class HeaderGiven(ApiInput, frozen=True, kw_only=True):
    """A header to send."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    value: str


class NewMessage(ApiInput, frozen=True, kw_only=True):
    """A message to publish."""

    topic: Annotated[str, Meta(min_length=1, max_length=65535)]
    text: str | None = None
    """The value as text; or give `base64`."""
    base64: str | None = None
    key: str | None = None
    """null: the topic, as for MQTT."""
    headers: Annotated[tuple[HeaderGiven, ...], Meta(max_length=100)] = ()
    content_type: Annotated[str, Meta(max_length=255)] | None = None
    retain: bool = False
    """Whether MQTT keeps it for later subscribers; an empty value clears what was kept."""


class PublishedAt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message lies now, durably."""

    stream: str
    partition: int
    offset: int


class MessageOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/messages", role=VIEWER, tag=TAG,
                summary="Messages of a filter, by offset or time; reading them changes nothing.",
                query=MessageQuery, answer=Messages, handler=self.peek,
            ),
            ApiOperation(
                method="POST", path="/messages", role=OPERATOR, tag=TAG,
                summary="Publish a message; answered when it is durable.", body=NewMessage,
                answer=PublishedAt, status=201, handler=self.publish,
            ),
        ]  # fmt: skip
        return rows

    async def peek(self, call: ApiCall[MessageQuery, None]) -> Messages:
        """Show messages of a filter."""
        query = call.query
        check_filter(query.filter)
        _check_start(query)
        look = Peek(self._desk.broker, self._desk.share, call.caller, query.filter)
        await self._desk.share.breathe()
        if query.start == "newest" and not query.cursor:
            records, complete = await look.newest(query.limit)
            rows = await self._shown(records, query.value_bytes)
            return Messages(items=rows, complete=complete, next_cursor=None)
        reading = look.reading(await self._starts(look, call))
        try:
            records, at_end = await look.forward(reading, query.limit)
            after = [(row.stream_id, row.partition, row.offset) for row in reading.positions()]
        finally:
            reading.close()
        more = not at_end and len(after) <= _POSITIONS_MAX
        return Messages(
            items=await self._shown(records, query.value_bytes),
            complete=at_end,
            next_cursor=encode_key(after) if more else None,
        )

    async def _shown(self, records: list[Record], value_bytes: int) -> list[MessageShown]:
        rows: list[MessageShown] = []
        for record in records:
            rows.append(shown(record, value_bytes))
            await self._desk.share.breathe()
        return rows

    async def _starts(self, look: Peek, call: ApiCall[MessageQuery, None]) -> list[int]:
        query, sight = call.query, self._desk.sight(call.caller)
        known = decode_key(query.cursor, Positions)
        if known is not None:
            places = {(stream, partition): offset for stream, partition, offset in known}
            return [min(max(places.get(source.key, 0), 0), 2**62) for source in look.sources]
        if query.start == "time":
            return await look.starts(query.time_ms or 0)
        if query.start == "earliest":
            return [source.partition.start_offset for source in look.sources]
        wanted = (query.stream, query.partition or 0)
        if not any(
            (row.stream.name, row.partition.id) == wanted and self._desk.sees(sight, row.stream)
            for row in look.sources
        ):
            raise NotFound(
                f"no topic of the filter {query.filter!r} lies in partition {wanted[1]} of"
                f" the stream {query.stream!r}; GET /api/v1/streams lists streams"
            )
        return [
            query.offset or 0
            if (row.stream.name, row.partition.id) == wanted
            else row.partition.high_watermark
            for row in look.sources
        ]

    async def publish(self, call: ApiCall[NoQuery, NewMessage]) -> PublishedAt:
        """Publish a message."""
        body = call.body
        check_topic(body.topic)
        if not is_writable(body.topic):
            raise NotAuthorized(f"topics that begin with $ are the broker's own: {body.topic!r}")
        headers = [(row.name.encode(), row.value.encode()) for row in body.headers]
        if any(name.startswith(b"~") for name, _value in headers):
            raise InvalidRequest("names of headers that begin with ~ are OneLog's own")
        if body.content_type is not None:
            headers.append((CONTENT_TYPE, body.content_type.encode()))
        if body.retain:
            headers.append((RETAIN, b"1"))
        value = _value(body)
        key = None if body.key is None else body.key.encode()
        message = Message(body.topic, value, key, tuple(headers))
        size_bytes = len(body.topic.encode()) + len(value)
        quotas = self._desk.broker.client_quotas
        quotas.charge("admin", call.caller.name, LISTENER, 1, size_bytes)
        done = await self._desk.broker.publish(message, principal=call.caller.principal)
        return PublishedAt(stream=done.stream, partition=done.partition, offset=done.offset)


def _check_start(query: MessageQuery) -> None:
    """Refuse parameters that the start does not use. Raises InvalidRequest."""
    used = {"time": {"time_ms"}, "offset": {"stream", "partition", "offset"}}
    known = used.get(query.start, set())
    for name in ("time_ms", "stream", "partition", "offset"):
        if getattr(query, name) is not None and name not in known:
            needed = "time" if name == "time_ms" else "offset"
            raise InvalidRequest(
                f"{name} goes with start={needed} only, and this is start={query.start}"
            )
    if query.start == "offset" and query.stream is None:
        raise InvalidRequest("start=offset needs a stream; GET /api/v1/streams lists streams")
    if query.start == "time" and query.time_ms is None:
        raise InvalidRequest("start=time needs time_ms, the time in ms since the epoch")


def _value(body: NewMessage) -> bytes:
    if body.base64 is None:
        return (body.text or "").encode()
    if body.text is not None:
        raise InvalidRequest("give the value as `text` or as `base64`, not as both")
    try:
        return base64.b64decode(body.base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("`base64` is no base64") from None
