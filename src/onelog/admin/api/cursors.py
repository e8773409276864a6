"""Operations on cursors of every kind: looking, seeking, purging, deleting."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from onelog.admin.api.declaring import VIEWER, AnyOperation, ApiCall, ApiOperation, NoQuery
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.admin.contract import CursorInfo
from onelog.admin.view import protocol_of

TAG = "cursors"


class CursorQuery(SearchQuery, frozen=True, kw_only=True):
    """Which page of which cursors."""

    protocol: Annotated[
        Literal["", "mqtt", "amqp", "embedded"],
        Meta(description="Cursors of one protocol only."),
    ] = ""


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
