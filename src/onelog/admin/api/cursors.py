"""Operations on cursors of every kind: look, seek, reset, purge, redrive, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from onelog.admin.api.cursor_moves import CursorMoves, seek_value
from onelog.admin.api.cursor_sight import CursorSight
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
from onelog.admin.view import GROUP_PREFIX, Homes, group_cursor, protocol_of
from onelog.base.errors import CursorNotFound
from onelog.broker import Redriven
from onelog.broker.showing import GroupDesk, QueueDesk

TAG = "cursors"

AnyCall = ApiCall[NoQuery, Any]


class CursorQuery(SearchQuery, frozen=True, kw_only=True):
    """Which page of which cursors."""

    protocol: Annotated[
        Literal["", "mqtt", "kafka", "amqp", "embedded"],
        Meta(description="Cursors of one protocol only."),
    ] = ""


class CursorSeek(ApiInput, frozen=True, kw_only=True):
    """Where a cursor is to go on."""

    to: Literal["earliest", "latest", "time", "offset"]
    value: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    """The time in ms since the epoch, or the offset; null for earliest and latest."""
    stream: Annotated[str, Meta(max_length=255)] | None = None
    """null: every stream that it reads. For a Kafka group: the topic."""
    partition: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """null: every partition."""


class CursorPurged(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were skipped."""

    records: int | None
    """null: it moved to the end, and nobody counted."""


class CursorOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk
        self._moves = CursorMoves(desk)

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        one = "/cursors/{cursor}"
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/cursors", role=VIEWER, tag=TAG,
                summary="Cursors of every kind by name, open or kept.", query=CursorQuery,
                answer=Page[CursorInfo], handler=self.cursors,
            ),
            ApiOperation(
                method="GET", path=one, role=VIEWER, tag=TAG,
                summary="One cursor: where it stands, what it has not settled.",
                answer=CursorInfo, handler=self.cursor,
            ),
            ApiOperation(
                method="POST", path=one + "/seek", role=OPERATOR, tag=TAG,
                summary="Let a cursor go on elsewhere; what consumers have stays with them.",
                body=CursorSeek, answer=CursorInfo, handler=self.seek,
            ),
            ApiOperation(
                method="POST", path=one + "/reset", role=OPERATOR, tag=TAG,
                summary="Let a cursor begin as a new one: queues and sessions at the end, others"
                " at the start.",
                answer=CursorInfo, handler=self.reset,
            ),
            ApiOperation(
                method="POST", path=one + "/purge", role=OPERATOR, tag=TAG,
                summary="Skip all that waits in a cursor; the log keeps the records.",
                answer=CursorPurged, handler=self.purge,
            ),
            ApiOperation(
                method="POST", path=one + "/redrive", role=OPERATOR, tag=TAG,
                summary="Let messages that a queue gave up come again.", answer=Redriven,
                handler=self.redrive,
            ),
            ApiOperation(
                method="DELETE", path=one, role=OPERATOR, tag=TAG,
                summary="Forget a cursor; the log keeps the records.", answer=NOTHING, status=204,
                handler=self.delete,
            ),
        ]  # fmt: skip
        return rows

    # -- looking

    async def cursors(self, call: ApiCall[CursorQuery, None]) -> Page[CursorInfo]:
        """A page of cursors."""
        query, share = call.query, self._desk.share
        seen = await CursorSight.open(self._desk, call.caller)

        def wanted(name: str) -> bool:
            found = contains(query.search, name) and query.protocol in ("", protocol_of(name))
            return found and seen.sees(name)

        names = await choose(
            share, self._names(), query, lambda name: name, kind=str, wanted=wanted
        )
        homes = self._desk.view.homes()
        rows: list[CursorInfo] = []
        for name in names:
            row = self._find(name, homes)  # it may have gone while others had their turn
            if row is not None:
                rows.append(seen.shown(row))
            await share.breathe()
        return full_page(query, rows, lambda row: row.name)

    def _names(self) -> Iterator[str]:
        yield from self._desk.view.cursor_names()
        groups = self._groups()
        for name in [] if groups is None else groups.group_names():
            yield GROUP_PREFIX + name

    def _groups(self) -> GroupDesk | None:
        return cast("GroupDesk | None", self._desk.desks().get("kafka"))

    def _find(self, name: str, homes: Homes | None = None) -> CursorInfo | None:
        view, groups = self._desk.view, self._groups()
        try:
            return self._used(view.cursor(name, homes))
        except CursorNotFound:
            group = name.removeprefix(GROUP_PREFIX)
            if groups is None or group == name or group not in groups.group_names():
                return None
            return group_cursor(groups.group(group))

    def _used(self, row: CursorInfo) -> CursorInfo:
        """The row of an AMQP queue says what feeds the queue, and who takes from it."""
        amqp = cast("QueueDesk | None", self._desk.desks().get("amqp"))
        use = None if row.kind != "routed" or amqp is None else amqp.use_of(row.name)
        if use is None:
            return row
        return msgspec.structs.replace(row, filter=", ".join(use.filters), connected=use.consumers)

    async def _seen(self, call: AnyCall) -> CursorInfo:
        """The cursor of a call, with everything; of a group, what the caller sees: its positions in
        other topics are not the caller's to move. Raises CursorNotFound."""
        name = call.names["cursor"]
        seen = await CursorSight.open(self._desk, call.caller)
        row = self._find(name)
        if row is None or not seen.sees(name):
            raise CursorNotFound(f"there is no cursor {name!r}; GET /api/v1/cursors lists them")
        return seen.shown(row) if row.kind == "group" else row

    async def cursor(self, call: AnyCall) -> CursorInfo:
        """One cursor."""
        row = await self._seen(call)
        return (await CursorSight.open(self._desk, call.caller)).shown(row)

    # -- moving

    async def seek(self, call: ApiCall[NoQuery, CursorSeek]) -> CursorInfo:
        """Go on elsewhere."""
        body, info = call.body, await self._seen(call)
        value = seek_value(body.to, body.value)
        if info.kind == "group" and body.stream is not None:
            (await CursorSight.open(self._desk, call.caller)).need_kafka_topic(body.stream)
        await self._moves.seek(info, body.to, value, body.stream, body.partition)
        return await self.cursor(call)

    async def reset(self, call: ApiCall[NoQuery, None]) -> CursorInfo:
        """Begin as a new one."""
        await self._moves.reset(await self._seen(call))
        return await self.cursor(call)

    async def purge(self, call: ApiCall[NoQuery, None]) -> CursorPurged:
        """Skip what waits."""
        return CursorPurged(records=await self._moves.purge(await self._seen(call)))

    async def redrive(self, call: ApiCall[NoQuery, None]) -> Redriven:
        """Let dead letters come again."""
        return await self._moves.redrive(await self._seen(call))

    async def delete(self, call: ApiCall[NoQuery, None]) -> None:
        """Forget a cursor."""
        await self._moves.delete(await self._seen(call))
