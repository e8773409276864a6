"""Operations on cursors of every kind: looking, seeking, purging, deleting."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    NOTHING,
    OPERATOR,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.admin.contract import CursorInfo
from onelog.admin.view import protocol_of
from onelog.base.errors import Conflict, CursorNotFound, NotFound
from onelog.base.ids import TimestampMs
from onelog.broker import LOCAL, Committed, OffsetCursor, PartitionHandle, QueueCursor

TAG = "cursors"
_PURGER: Final = "~purge"
_PURGED_AT_ONCE: Final = 200
_ADVICE: Final = {
    "tail": "it ends with its reader",
    "offset": "its program closes it",
    "session": "DELETE /api/v1/sessions/{client} ends the session",
    "queue": "a share group goes when it had no member for mqtt.shares.idle_expiry_ms",
    "routed": "DELETE /api/v1/amqp/queues/{vhost}/{queue} deletes the queue",
    "table": "the broker needs it",
}


class CursorQuery(SearchQuery, frozen=True, kw_only=True):
    """Which page of which cursors."""

    protocol: Annotated[
        Literal["", "mqtt", "amqp", "embedded"],
        Meta(description="Cursors of one protocol only."),
    ] = ""


class CursorSeek(ApiInput, frozen=True, kw_only=True):
    """Where a cursor is to go on."""

    to: Literal["earliest", "latest", "time", "offset"]
    value: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """The time in ms since the epoch, or the offset."""
    stream: Annotated[str, Meta(max_length=255)] | None = None
    """null: every stream that it reads."""
    partition: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """null: every partition."""


class CursorPurged(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were settled."""

    records: int


class CursorOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/cursors", role=VIEWER, tag=TAG,
                summary="Cursors by name, open or kept.", query=CursorQuery,
                answer=Page[CursorInfo], handler=self.cursors,
            ),
            ApiOperation(
                method="GET", path="/cursors/{cursor}", role=VIEWER, tag=TAG,
                summary="One cursor: where it stands, what it has not settled.",
                answer=CursorInfo, handler=self.cursor,
            ),
            ApiOperation(
                method="POST", path="/cursors/{cursor}/seek", role=OPERATOR, tag=TAG,
                summary="Let a cursor of kind offset go on elsewhere.", body=CursorSeek,
                answer=CursorInfo, handler=self.seek,
            ),
            ApiOperation(
                method="POST", path="/cursors/{cursor}/purge", role=OPERATOR, tag=TAG,
                summary="Settle all that waits in a queue; the log keeps the records.",
                answer=CursorPurged, handler=self.purge,
            ),
            ApiOperation(
                method="DELETE", path="/cursors/{cursor}", role=OPERATOR, tag=TAG,
                summary="Forget a cursor; the log keeps the records.", answer=NOTHING, status=204,
                handler=self.delete,
            ),
        ]  # fmt: skip
        return rows

    async def cursors(self, call: ApiCall[CursorQuery, None]) -> Page[CursorInfo]:
        """A page of cursors."""
        query, view, share = call.query, self._desk.view, self._desk.share

        def wanted(name: str) -> bool:
            return contains(query.search, name) and query.protocol in ("", protocol_of(name))

        names = await choose(
            share, view.cursor_names(), query, lambda name: name, kind=str, wanted=wanted
        )
        homes = view.homes()
        rows: list[CursorInfo] = []
        for name in names:
            if self._is_there(name):  # it may have gone while others had their turn
                rows.append(view.cursor(name, homes))
            await share.breathe()
        return full_page(query, rows, lambda row: row.name)

    def _is_there(self, name: str) -> bool:
        desk = self._desk.broker.cursors
        return desk.find(name) is not None or desk.kept(name) is not None

    async def cursor(self, call: ApiCall[NoQuery, None]) -> CursorInfo:
        """One cursor."""
        return self._desk.view.cursor(call.names["cursor"])

    async def seek(self, call: ApiCall[NoQuery, CursorSeek]) -> CursorInfo:
        """Go on elsewhere."""
        name, desk = call.names["cursor"], self._desk.broker.cursors
        info = self._desk.view.cursor(name)
        if info.kind != "offset":
            raise Conflict(
                f"the cursor {name!r} is a {info.kind} cursor: only a cursor of kind offset seeks."
                " A queue is purged (POST …/purge); what was read is read again with"
                " GET /api/v1/messages"
            )
        found = desk.find(name)
        if isinstance(found, OffsetCursor):
            await self._move(found, call.body)
            await desk.save(found)
            return self._desk.view.cursor(name)
        kept = desk.kept(name)
        if kept is None:
            raise CursorNotFound(f"there is no cursor {name!r}")
        opened = await desk.open_offset(name, kept.filters, principal=LOCAL)
        try:
            await self._move(opened, call.body)
        finally:
            await desk.close_cursor(opened)
        return self._desk.view.cursor(name)

    async def _move(self, cursor: OffsetCursor, asked: CursorSeek) -> None:
        moved = 0
        for source in cursor.reading.sources.sources:
            chosen = asked.stream in (None, source.stream.name)
            if not chosen or asked.partition not in (None, source.partition.id):
                continue
            offset = await _sought(source.partition, asked)
            cursor.seek(*source.key, offset)
            cursor.commit(Committed(*source.key, offset))
            moved += 1
            await self._desk.share.breathe()
        if not moved:
            raise NotFound(
                f"the cursor {cursor.name!r} reads no such partition: GET the cursor to see its"
                " positions"
            )

    async def purge(self, call: ApiCall[NoQuery, None]) -> CursorPurged:
        """Settle what waits."""
        name = call.names["cursor"]
        cursor = self._desk.broker.cursors.find(name)
        if isinstance(cursor, QueueCursor):
            return CursorPurged(records=await self._settle_all(cursor))
        info = self._desk.view.cursor(name)
        where = "POST /api/v1/amqp/queues/{vhost}/{queue}/purge" if info.kind == "routed" else ""
        raise Conflict(
            f"the cursor {name!r} is a {info.kind} cursor"
            + (f": use {where}" if where else " and no open queue: it holds nothing to settle")
        )

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

    async def delete(self, call: ApiCall[NoQuery, None]) -> None:
        """Forget a cursor."""
        name = call.names["cursor"]
        info = self._desk.view.cursor(name)
        if info.protocol != "embedded" or info.kind == "tail":
            raise Conflict(f"the cursor {name!r} belongs to {info.protocol}: {_ADVICE[info.kind]}")
        await self._desk.broker.cursors.delete(name)


async def _sought(partition: PartitionHandle, asked: CursorSeek) -> int:
    start, end = partition.start_offset, partition.high_watermark
    if asked.to == "earliest":
        return start
    if asked.to == "time":
        found = await partition.find_time(TimestampMs(asked.value))
        return end if found is None else found[0]
    return end if asked.to == "latest" else min(max(asked.value, start), end)
