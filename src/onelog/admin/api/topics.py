"""Operations on topics: search them, and one picture of a topic with everybody who reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    Caller,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import PageQuery, contains, decode_key, encode_key
from onelog.admin.api.peeking import MessageShown, Peek, shown
from onelog.admin.api.survey import TopicSurvey
from onelog.admin.view import protocol_of
from onelog.base.clock import Clock
from onelog.base.errors import OnelogError
from onelog.base.ids import Offset, TimestampMs
from onelog.base.topics import check_filter, check_topic, is_exact, matches
from onelog.broker import Action, Cursor, CursorState, PartitionHandle, Position

TAG = "topics"
SURVEY_WAIT_S: Final = 2.0
RATE_SPAN_MS: Final = 60_000
RATE_COUNT_MAX: Final = 10_000
READERS_MAX: Final = 1000
VALUE_BYTES: Final = 1024
_LEVELS_MAX: Final = 1000


class TopicQuery(PageQuery, frozen=True, kw_only=True):
    """Which page of which topics."""

    filter: Annotated[str, Meta(min_length=1, max_length=4096, description="Topic or filter.")] = (
        "#"
    )
    search: Annotated[str, Meta(max_length=1024, description="A part of the topic.")] = ""
    last: Annotated[
        bool, Meta(description="Whether to show the last message of each; pages of 100 then.")
    ] = False


class ListedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic."""

    topic: str
    stream: str
    partition: int
    last: MessageShown | None
    """null: not asked for, or nothing is left of it."""


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of topics, in the order in which they were found."""

    items: list[ListedTopic]
    next_cursor: str | None
    complete: bool
    """Whether the whole log was looked at; false: the survey goes on, or old parts are left out."""
    known: int
    """Topics that are known by now."""


class TreeQuery(ApiInput, frozen=True, kw_only=True):
    """Which part of the tree."""

    prefix: Annotated[
        str, Meta(max_length=4096, description="Levels above, such as `a/b`; empty: the root.")
    ] = ""


class TreeLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One level below a prefix."""

    name: str
    topic: str
    """The whole address up to this level."""
    is_topic: bool
    """Whether messages were sent to exactly this address."""
    below: int
    """Topics further down."""


class TopicTree(msgspec.Struct, frozen=True, kw_only=True):
    """The levels below a prefix, by name."""

    items: list[TreeLevel]
    complete: bool
    """False: the survey goes on, or there are more levels than are shown."""


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor that reads a topic, and where it stands in the topic's partition."""

    cursor: str
    kind: str
    protocol: str
    filter: str
    offset: int | None
    """null: it has no position here; it follows the end."""
    lag: int
    """Offsets of the partition after it, of other topics too."""
    open: bool


class TopicPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, its place in the log, and everybody who reads it."""

    topic: str
    stream: str
    partition: int
    start_offset: int
    end_offset: int
    per_minute: int | None
    """Messages of the last minute; null: they are not counted, because no index is kept."""
    per_minute_capped: bool
    last: MessageShown | None
    readers: list[Reader]
    readers_capped: bool


class TopicOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._survey = TopicSurvey(desk.share)
        desk.on_close.append(self._survey.close)

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/topics", role=VIEWER, tag=TAG,
                summary="Topics by filter, in the order in which they were found.",
                query=TopicQuery, answer=TopicPage, handler=self.topics,
            ),
            ApiOperation(
                method="GET", path="/topic-tree", role=VIEWER, tag=TAG,
                summary="The levels of topics below a prefix.", query=TreeQuery,
                answer=TopicTree, handler=self.tree,
            ),
            ApiOperation(
                method="GET", path="/topics/{topic}", role=VIEWER, tag=TAG,
                summary="One topic: where it lies, its last message, every cursor that reads it.",
                answer=TopicPicture, handler=self.topic,
            ),
        ]  # fmt: skip
        return rows

    async def topics(self, call: ApiCall[TopicQuery, None]) -> TopicPage:
        """A page of topics."""
        query, broker = call.query, self._desk.broker
        check_filter(query.filter)
        done = await self._survey.refresh(broker, SURVEY_WAIT_S)
        limit = min(query.limit, 100) if query.last else query.limit
        after = decode_key(query.cursor, int)
        items: list[ListedTopic] = []
        more = None
        number = -1 if after is None else min(after, 2**62)
        for following, topic in self._survey.find(query.filter, number):
            await self._desk.share.breathe()
            if not (contains(query.search, topic) and self._may_see(call.caller, topic)):
                continue
            if len(items) == limit:
                more = encode_key(number)
                break
            items.append(await self._row(call.caller, topic, last=query.last))
            number = following
        complete = done and self._survey.complete
        return TopicPage(items=items, next_cursor=more, complete=complete, known=len(self._survey))

    def _may_see(self, caller: Caller, topic: str) -> bool:
        return self._desk.broker.authorizer.allows(caller.principal, Action.DELIVER, topic)

    async def _row(self, caller: Caller, topic: str, *, last: bool) -> ListedTopic:
        stream = self._desk.broker.streams.home(topic)
        partition = stream.partition_of(topic.encode())
        found = await self._last(caller, topic) if last else None
        return ListedTopic(topic=topic, stream=stream.name, partition=partition.id, last=found)

    async def _last(self, caller: Caller, topic: str) -> MessageShown | None:
        look = Peek(self._desk.broker, self._desk.share, caller, topic)
        records, _complete = await look.newest(1)
        return shown(records[0], VALUE_BYTES) if records else None

    async def tree(self, call: ApiCall[TreeQuery, None]) -> TopicTree:
        """Levels below a prefix."""
        prefix, broker = call.query.prefix.rstrip("/"), self._desk.broker
        text = check_filter(f"{prefix}/#" if prefix else "#")
        done = await self._survey.refresh(broker, SURVEY_WAIT_S)
        depth = prefix.count("/") + 1 if prefix else 0
        found: dict[str, tuple[bool, int]] = {}
        capped = False
        for _number, topic in self._survey.find(text, -1):
            await self._desk.share.breathe()
            levels = topic.split("/")
            if len(levels) <= depth or not self._may_see(call.caller, topic):
                continue
            name, is_topic = levels[depth], len(levels) == depth + 1
            if name not in found and len(found) >= _LEVELS_MAX:
                capped = True
                continue
            was, below = found.get(name, (False, 0))
            found[name] = (was or is_topic, below + (not is_topic))
        rows = [
            TreeLevel(
                name=name,
                topic=f"{prefix}/{name}" if prefix else name,
                is_topic=is_topic,
                below=below,
            )
            for name, (is_topic, below) in sorted(found.items())
        ]
        return TopicTree(items=rows, complete=done and self._survey.complete and not capped)

    async def topic(self, call: ApiCall[NoQuery, None]) -> TopicPicture:
        """One topic."""
        topic, broker = check_topic(call.names["topic"]), self._desk.broker
        stream = broker.streams.home(topic)
        partition = stream.partition_of(topic.encode())
        ends = partition.ends()
        readers: list[Reader] = []
        capped = False
        for reader in self._readers(topic, stream.record.id, partition):
            await self._desk.share.breathe()
            if reader is None:
                continue
            if len(readers) >= READERS_MAX:
                capped = True
                break
            readers.append(reader)
        count = await self._per_minute(topic, partition)
        return TopicPicture(
            topic=topic,
            stream=stream.name,
            partition=partition.id,
            start_offset=ends.start,
            end_offset=ends.high_watermark,
            per_minute=count,
            per_minute_capped=count is not None and count >= RATE_COUNT_MAX,
            last=await self._last(call.caller, topic),
            readers=readers,
            readers_capped=capped,
        )

    async def _per_minute(self, topic: str, partition: PartitionHandle) -> int | None:
        since = self._clock.now_ms() - RATE_SPAN_MS
        try:
            first = await partition.find_time(TimestampMs(since))
            if first is None:
                return 0
            end = partition.high_watermark
            if self._desk.broker.streams.home(topic).record.fixed_topic is not None:
                return min(end - first[0], RATE_COUNT_MAX)
            offsets = await partition.until_here(
                lambda: partition.topic_offsets_now(
                    topic.encode(), first[0], Offset(end), RATE_COUNT_MAX
                )
            )
        except OnelogError:
            return None
        return None if offsets is None else len(offsets)

    def _readers(
        self, topic: str, stream_id: str, partition: PartitionHandle
    ) -> Iterator[Reader | None]:
        """Every cursor on the topic; None for each one that is not, so that others get a turn."""
        desk = self._desk.broker.cursors
        seen = set()
        for cursor in desk.open_cursors():
            seen.add(cursor.name)
            if reads(cursor.filters, topic):
                yield _reader(cursor, cursor.positions(), stream_id, partition, is_open=True)
            else:
                yield None
        for name in desk.kept_names():
            kept = desk.kept(name)
            if name in seen or kept is None or not reads(kept.filters, topic):
                yield None
            else:
                yield _reader(kept, kept.positions, stream_id, partition, is_open=False)
        for served in self._desk.desks().values():
            # What one protocol cannot tell hides nothing of the others.
            with contextlib.suppress(OnelogError):
                for row in served.readers(topic, partition):
                    yield Reader(
                        cursor=row.name,
                        kind=row.kind,
                        protocol=row.protocol,
                        filter=row.topic,
                        offset=row.offset,
                        lag=max(0, partition.high_watermark - row.offset),
                        open=row.connected > 0,
                    )


def reads(filters: tuple[str, ...], topic: str) -> bool:
    """Whether one of the filters matches a topic."""
    return any(text == topic if is_exact(text) else matches(text, topic) for text in filters)


def _reader(
    row: Cursor | CursorState,
    positions: list[Position],
    stream_id: str,
    partition: PartitionHandle,
    *,
    is_open: bool,
) -> Reader:
    place = next(
        (
            at.offset
            for at in positions
            if (at.stream_id, at.partition) == (stream_id, partition.id)
        ),
        None,
    )
    return Reader(
        cursor=row.name,
        kind=row.kind.value,
        protocol=protocol_of(row.name),
        filter=", ".join(row.filters),
        offset=place,
        lag=0 if place is None else max(0, partition.high_watermark - place),
        open=is_open,
    )
