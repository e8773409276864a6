"""What operators do to cursors, whatever their kind: seek, reset, purge, redrive, delete.

Rules: a cursor that a protocol owns is moved by that protocol, under the same name. In all of them,
messages that consumers have stay with them (`broker/seeking.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, cast

from onelog.admin.api.desk import AdminDesk
from onelog.admin.contract import CursorInfo
from onelog.admin.view import GROUP_PREFIX
from onelog.base.errors import Conflict, InvalidRequest, NotFound
from onelog.broker import EARLIEST, LATEST, QueueCursor, Redriven, Source, Start, redrive, seek
from onelog.broker.showing import GroupDesk, QueueDesk, QueueRow, RetainingDesk

_PURGER: Final = "~purge"
_PURGED_AT_ONCE: Final = 200
_SESSION_PREFIX: Final = "mqtt/"
_SHARE_PREFIX: Final = "share/"

Where = Literal["earliest", "latest", "time", "offset"]


def seek_value(to: Where, value: int | None) -> int:
    """The value of a seek, which a time or an offset needs. Raises InvalidRequest.

    Without this a forgotten value would be 0: everything would come again.
    """
    if to in ("earliest", "latest"):
        if value is not None:
            raise InvalidRequest(f"value goes with a time or an offset only, and this is {to!r}")
        return 0
    if value is None:
        what = "the time in ms since the epoch" if to == "time" else "the offset"
        raise InvalidRequest(f"a seek to {to!r} needs a value: {what}")
    return value


class CursorMoves:
    """Acts on one cursor after the other."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    async def seek(
        self, info: CursorInfo, to: Where, value: int, stream: str | None, partition: int | None
    ) -> None:
        """Let a cursor go on elsewhere. Raises NotFound, Conflict, InvalidRequest."""
        start, chosen = Start(to, value), _chosen(stream, partition)
        match info.kind:
            case "routed":
                if stream is not None or partition is not None:
                    raise InvalidRequest(
                        "an AMQP queue seeks as a whole: leave stream and partition out"
                    )
                row = await self.queue_of(info.name)
                await self._amqp.seek_queue(row.vhost, row.name, start)
            case "session" if info.protocol == "mqtt":
                client = info.name.removeprefix(_SESSION_PREFIX)
                await self._mqtt.seek_session(client, start, chosen)
            case "group":
                await self._seek_group(info, to, value, stream, partition)
            case "offset" | "session" | "queue":
                await seek(self._desk.broker.cursors, info.name, start, chosen)
            case _:
                raise Conflict(f"the cursor {info.name!r} is a {info.kind} cursor: it cannot seek")

    async def _seek_group(
        self, info: CursorInfo, to: Where, value: int, topic: str | None, partition: int | None
    ) -> None:
        name = info.name.removeprefix(GROUP_PREFIX)
        topics = {row.stream for row in info.positions} if topic is None else {topic}
        if not topics:
            raise NotFound(f"the group {name!r} has committed nothing: name a topic as `stream`")
        for text in sorted(topics):
            await self._kafka.seek_group(name, text, partition, to, value)

    async def reset(self, info: CursorInfo) -> None:
        """Let a cursor begin as a new one of its kind does."""
        fresh = LATEST if info.kind in ("session", "queue", "routed") else EARLIEST
        await self.seek(info, fresh.at, 0, None, None)

    async def purge(self, info: CursorInfo) -> int | None:
        """Skip all that waits; how many records that were, where they are counted."""
        cursor = self._desk.broker.cursors.find(info.name)
        if info.kind == "routed":
            row = await self.queue_of(info.name)
            return self._amqp.purge(row.vhost, row.name)
        if isinstance(cursor, QueueCursor):
            return await self._settle_all(cursor)
        if info.kind not in ("queue", "session", "offset"):
            raise Conflict(f"the cursor {info.name!r} is a {info.kind} cursor: nothing waits in it")
        await self.seek(info, "latest", 0, None, None)
        return None

    async def _settle_all(self, cursor: QueueCursor) -> int:
        count = 0
        while self._desk.broker.cursors.find(cursor.name) is cursor:
            found = cursor.acquire(_PURGER, _PURGED_AT_ONCE)
            for row in found:
                cursor.ack(row.token)
            count += len(found)
            if not found and not (cursor.has_returned or cursor.reading.may_go_on()):
                break
            await self._desk.share.turn()
        return count

    async def redrive(self, info: CursorInfo) -> Redriven:
        """Let messages that were given up come again. Raises NotFound, Conflict."""
        if info.kind == "routed":
            row = await self.queue_of(info.name)
            return await self._amqp.redrive(row.vhost, row.name)
        if info.kind != "queue":
            raise Conflict(
                f"the cursor {info.name!r} is a {info.kind} cursor: it has no dead letters"
            )
        broker = self._desk.broker
        return await redrive(broker.cursors, broker.streams, info.name, self._desk.share.turn)

    async def delete(self, info: CursorInfo) -> None:
        """Forget a cursor; the log keeps the records. Raises NotFound, Conflict."""
        name = info.name
        if info.kind in ("tail", "table"):
            why = "it ends with its reader" if info.kind == "tail" else "the broker needs it"
            raise Conflict(f"the cursor {name!r} is a {info.kind} cursor: {why}")
        if info.kind == "routed":
            row = await self.queue_of(name)
            await self._amqp.delete_queue(row.vhost, row.name)
        elif info.kind == "group":
            await self._kafka.delete_group(name.removeprefix(GROUP_PREFIX))
        elif info.protocol == "mqtt" and info.kind == "session":
            await self._desk.broker.sessions.end(name.removeprefix(_SESSION_PREFIX))
        elif info.protocol == "mqtt" and name.startswith(_SHARE_PREFIX):
            await self._mqtt.delete_share(name)
        elif info.protocol != "embedded":
            raise Conflict(f"the cursor {name!r} belongs to {info.protocol}, which needs it")
        else:
            await self._desk.broker.cursors.delete(name)

    async def queue_of(self, cursor: str) -> QueueRow:
        """The AMQP queue of a cursor. Raises NotFound."""
        for row in self._amqp.queues():
            if row.cursor == cursor:
                return row
            await self._desk.share.breathe()
        raise NotFound(f"the queue of the cursor {cursor!r} is gone")

    @property
    def _amqp(self) -> QueueDesk:
        return cast("QueueDesk", self._desk.desk("amqp"))

    @property
    def _mqtt(self) -> RetainingDesk:
        return cast("RetainingDesk", self._desk.desk("mqtt"))

    @property
    def _kafka(self) -> GroupDesk:
        return cast("GroupDesk", self._desk.desk("kafka"))


def _chosen(stream: str | None, partition: int | None) -> Callable[[Source], bool]:
    def chosen(source: Source) -> bool:
        named = stream in (None, source.stream.name)
        return named and partition in (None, source.partition.id)

    return chosen
