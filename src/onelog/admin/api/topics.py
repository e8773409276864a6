"""Operations on topics: search them, and walk down their levels."""

from __future__ import annotations

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
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import PageQuery, contains, decode_key, encode_key
from onelog.admin.api.peeking import MessageShown, Peek, shown
from onelog.admin.api.survey import TopicSurvey
from onelog.base.topics import check_filter
from onelog.broker import Action

TAG = "topics"
SURVEY_WAIT_S: Final = 2.0
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


async def last_of(desk: AdminDesk, caller: Caller, topic: str) -> MessageShown | None:
    """The last message of a topic; None: nothing is left of it, or the caller may not have it."""
    if not desk.broker.authorizer.allows(caller.principal, Action.DELIVER, topic):
        return None  # it is seen, and not read
    look = Peek(desk.broker, desk.share, caller, topic)
    records, _complete = await look.newest(1)
    return shown(records[0], VALUE_BYTES) if records else None


class TopicOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk
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
        sight = self._desk.sight(call.caller)
        for following, topic in self._survey.find(query.filter, number):
            await self._desk.share.breathe()
            if topic is None or not (contains(query.search, topic) and sight.topic(topic)):
                continue
            if len(items) == limit:
                more = encode_key(number)
                break
            items.append(await self._row(call.caller, topic, last=query.last))
            number = following
        complete = done and self._survey.complete
        return TopicPage(items=items, next_cursor=more, complete=complete, known=len(self._survey))

    async def _row(self, caller: Caller, topic: str, *, last: bool) -> ListedTopic:
        stream = self._desk.broker.streams.home(topic)
        partition = stream.partition_of(topic.encode())
        found = await last_of(self._desk, caller, topic) if last else None
        return ListedTopic(topic=topic, stream=stream.name, partition=partition.id, last=found)

    async def tree(self, call: ApiCall[TreeQuery, None]) -> TopicTree:
        """Levels below a prefix."""
        prefix, broker = call.query.prefix.rstrip("/"), self._desk.broker
        text = check_filter(f"{prefix}/#" if prefix else "#")
        done = await self._survey.refresh(broker, SURVEY_WAIT_S)
        depth = prefix.count("/") + 1 if prefix else 0
        found: dict[str, tuple[bool, int]] = {}
        capped, sight = False, self._desk.sight(call.caller)
        for _number, topic in self._survey.find(text, -1):
            await self._desk.share.breathe()
            levels = [] if topic is None else topic.split("/")
            if topic is None or len(levels) <= depth or not sight.topic(topic):
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
