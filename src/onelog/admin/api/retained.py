"""Clearing retained messages of a filter, as a client does it: by an empty message to each topic.

Rules: what the caller may not have is left as it is, as if it were not there. It needs the right to
publish to every topic that it clears: without one of them nothing is cleared. The empty messages
count for the caller's quotas, which may end a large clearing half way; asking again goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final, cast

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import OPERATOR, AnyOperation, ApiCall, ApiInput, ApiOperation
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.messages import LISTENER
from onelog.admin.api.peeking import Peek
from onelog.base.errors import NotAuthorized
from onelog.base.topics import check_filter
from onelog.broker import Action, Message
from onelog.broker.showing import RetainingDesk
from onelog.record.headers import RETAIN

PIECE: Final = 200
"""Topics that are cleared by one write."""
_MARK: Final = ((RETAIN, b"1"),)


class RetainedGone(ApiInput, frozen=True, kw_only=True):
    """Which retained messages go."""

    filter: Annotated[str, Meta(min_length=1, max_length=4096, description="Topic or filter.")]


class RetainedCleared(msgspec.Struct, frozen=True, kw_only=True):
    """How many topics have no retained message any more."""

    topics: int


class RetainedOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        return [
            ApiOperation(
                method="DELETE", path="/mqtt/retained", role=OPERATOR, tag="mqtt",
                summary="Clear the retained messages of a filter; the log keeps the records.",
                query=RetainedGone, answer=RetainedCleared, handler=self.clear,
            ),
        ]  # fmt: skip

    async def clear(self, call: ApiCall[RetainedGone, None]) -> RetainedCleared:
        """Publish an empty retained message to each topic."""
        text, caller = call.query.filter, call.caller
        check_filter(text)
        look = Peek(self._desk.broker, self._desk.share, caller, text)
        if not self._desk.sight(caller).sees_all:
            allows, who = self._desk.broker.authorizer.allows, caller.principal
            async for topic in self._topics(look, text):
                if not allows(who, Action.PUBLISH, topic):
                    raise NotAuthorized(
                        f"{caller.name} may not publish to {topic!r}, and so not clear what is"
                        " retained there: nothing was cleared"
                    )
        count, piece = 0, list[str]()
        async for topic in self._topics(look, text):
            piece.append(topic)
            if len(piece) == PIECE:
                count += await self._publish(call, piece)
                piece = []
        return RetainedCleared(topics=count + await self._publish(call, piece))

    async def _topics(self, look: Peek, text: str) -> AsyncIterator[str]:
        """The topics of retained messages that the caller may have."""
        desk = cast("RetainingDesk", self._desk.desk("mqtt"))
        for number in desk.retained(text):
            record = await desk.retained_record(number)
            if record is not None and look.may_have(record):
                yield record.topic
            await self._desk.share.breathe()

    async def _publish(self, call: ApiCall[RetainedGone, None], topics: list[str]) -> int:
        if topics:
            size_bytes = sum(len(topic.encode()) for topic in topics)
            quotas, name = self._desk.broker.client_quotas, call.caller.name
            quotas.charge("admin", name, LISTENER, len(topics), size_bytes)
            empty = [Message(topic, b"", None, _MARK) for topic in topics]
            await self._desk.broker.publish_many(empty, principal=call.caller.principal)
        return len(topics)
