"""Which cursors a caller sees while there are access rules, and how much of each.

Rules: a cursor that rules have a name for is seen by whoever has a right on that name; an AMQP
queue also by the topic of its own messages, a session also by its owner. Any other cursor is seen
by whoever sees all of its filters. Filters and partitions that are not seen are left out of its
row.
"""

from __future__ import annotations

from typing import cast

import msgspec

from onelog.admin.api.declaring import Caller
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.sight import Sight
from onelog.admin.contract import CursorInfo
from onelog.admin.view import GROUP_PREFIX
from onelog.base.errors import NotFound
from onelog.broker.showing import GroupDesk, QueueDesk, QueueRow


class CursorSight:
    """The eyes of one caller. Made by `open`."""

    def __init__(self, desk: AdminDesk, caller: Caller, queues: dict[str, QueueRow]) -> None:
        self._desk = desk
        self.sight = desk.sight(caller)
        self._queues = queues

    @classmethod
    async def open(cls, desk: AdminDesk, caller: Caller) -> CursorSight:
        """Look up what names alone do not tell."""
        queues: dict[str, QueueRow] = {}
        amqp = desk.desks().get("amqp")
        if amqp is not None and not desk.sight(caller).sees_all:
            for row in cast("QueueDesk", amqp).queues():
                queues[row.cursor] = row
                await desk.share.breathe()
        return cls(desk, caller, queues)

    def sees(self, name: str) -> bool:
        """Whether the caller sees a cursor."""
        sight = self.sight
        if sight.sees_all:
            return True
        queue = self._queues.get(name)
        if queue is not None:
            return sees_queue(sight, queue)
        kind, _, rest = name.partition("/")
        if name.startswith(GROUP_PREFIX):
            return sight.cursor(f"group/{name.removeprefix(GROUP_PREFIX)}")
        if kind == "mqtt":
            session = self._desk.broker.sessions.get(rest)
            return sight.cursor(f"session/{rest}") or (
                session is not None and sight.owns(session.owner)
            )
        if kind == "share":  # its name holds its filter
            return sight.cursor(f"share/{rest.partition('/')[0]}") and self._sees_filters(name)
        return self._sees_filters(name)

    def _sees_filters_of(self, row: CursorInfo) -> bool:
        amqp = cast("QueueDesk | None", self._desk.desks().get("amqp"))
        use = None if row.kind != "routed" or amqp is None else amqp.use_of(row.name)
        return self._sees_filters(row.name) if use is None else self.sight.topics(use.filters)

    def _sees_filters(self, name: str) -> bool:
        desk = self._desk.broker.cursors
        cursor = desk.find(name) or desk.kept(name)
        return cursor is not None and self.sight.topics(cursor.filters)

    def shown(self, row: CursorInfo) -> CursorInfo:
        """The part of a row that the caller sees."""
        if self.sight.sees_all:
            return row
        is_group = row.name.startswith(GROUP_PREFIX)
        sees_place = self.sees_kafka_topic if is_group else self.sees_stream
        return msgspec.structs.replace(
            row,
            filter=row.filter if not is_group and self._sees_filters_of(row) else "",
            positions=tuple(place for place in row.positions if sees_place(place.stream)),
        )

    def sees_stream(self, name: str) -> bool:
        """Whether the caller sees a stream."""
        stream = self._desk.broker.streams.find(name)
        return self.sight.sees_all or (stream is not None and self._desk.sees(self.sight, stream))

    def sees_kafka_topic(self, name: str) -> bool:
        """Whether the caller sees what a Kafka topic shows."""
        if self.sight.sees_all:
            return True
        kafka = cast("GroupDesk | None", self._desk.desks().get("kafka"))
        address = None if kafka is None else kafka.address(name)
        return address is not None and self.sight.topic(address)

    def need_kafka_topic(self, name: str) -> None:
        """Raise NotFound for a Kafka topic that is hidden, as for one that is not there."""
        if not self.sees_kafka_topic(name):
            raise NotFound(f"there is no Kafka topic {name[:300]!r}")


def sees_queue(sight: Sight, row: QueueRow) -> bool:
    """Whether a caller sees an AMQP queue."""
    return sight.topic(row.topic) or sight.cursor(row.access)
