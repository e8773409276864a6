"""Requests with many rows: the broker serves others in between, and looks up each name once.

Rules: a request may name `PARTITIONS_PER_REQUEST_MAX` topics and partitions, and finding out that a
topic does not exist means a look at the log. So the code that goes through the rows of a request
lets others have their turn (I8), after so many rows or so much time, whichever comes first. A topic
that does not exist is looked up once per request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from onelog.base.errors import OnelogError
from onelog.broker import Action, Principal
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.rights import topic_named

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub
    from onelog.protocols.kafka.request import Request
    from onelog.protocols.kafka.topics import KafkaTopic

ROWS: Final = 50
"""Rows of a request that are served before others have their turn: a few milliseconds."""
TURN_S: Final = 0.005
"""Seconds after which others have their turn, however few rows that were."""

T = TypeVar("T")


class RequestTurns:
    """The turns of one request, counted over all of its rows, nested ones too."""

    __slots__ = ("_ends_at", "_rows")

    def __init__(self) -> None:
        self._rows = 0
        self._ends_at = perf_counter() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether the request has used up the time of its turn."""
        return perf_counter() > self._ends_at

    async def rest(self) -> None:
        """Let others have their turn."""
        await asyncio.sleep(0)
        self._ends_at = perf_counter() + TURN_S

    async def over(self, rows: Iterable[T]) -> AsyncIterator[T]:
        """Each row; others have their turn after every so many rows, or after so much time."""
        for row in rows:
            self._rows += 1
            if not self._rows % ROWS or perf_counter() > self._ends_at:
                await self.rest()
            yield row

    async def timed(self, rows: Iterable[T]) -> AsyncIterator[T]:
        """Each row; others have their turn only after so much time, because rows are mostly
        cheap."""
        for row in rows:
            if perf_counter() > self._ends_at:
                await self.rest()
            yield row


class Asked:
    """The topics that one request names, if its sender may act on them.

    The action None is to see them.
    """

    __slots__ = ("_action", "_hub", "_principal", "_refused")

    def __init__(self, hub: Hub, request: Request, action: Action | None) -> None:
        self._hub = hub
        self._principal: Principal | None = request.connection.principal
        self._action = action
        self._refused: dict[str, tuple[ErrorCode, str]] = {}

    def get(self, name: str) -> KafkaTopic:
        """The topic of a name. Raises OnelogError."""
        refused = self._refused.get(name)
        if refused is not None:
            raise KafkaError(*refused)
        try:
            topic = topic_named(self._hub, self._principal, self._action, name)
        except OnelogError as error:
            self._refused[name] = (code_of(error), str(error))  # itself it would hold its frames
            raise
        return topic
