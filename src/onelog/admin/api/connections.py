"""Operations on connections of every protocol: list, search, kick."""

from __future__ import annotations

from collections.abc import Iterator
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
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.base.errors import NotFound
from onelog.broker.showing import ConnectionRow

TAG = "connections"


class ConnectionQuery(SearchQuery, frozen=True, kw_only=True):
    """Which page of which connections."""

    protocol: Annotated[
        Literal["", "mqtt", "kafka", "amqp"], Meta(description="Of one protocol only.")
    ] = ""
    user: Annotated[
        str, Meta(max_length=256, description="Of one user only, by the exact name.")
    ] = ""


class KickAsked(ApiInput, frozen=True, kw_only=True):
    """Why a connection ends."""

    reason: Annotated[str, Meta(max_length=200)] = "ended by an operator"


class Kicked(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections were asked to close."""

    connections: int


class ConnectionOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        one = "/connections/{connection}"
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/connections", role=VIEWER, tag=TAG,
                summary="Connections of every protocol by their id.", query=ConnectionQuery,
                answer=Page[ConnectionRow], handler=self.connections,
            ),
            ApiOperation(
                method="GET", path=one, role=VIEWER, tag=TAG, summary="One connection.",
                answer=ConnectionRow, handler=self.connection,
            ),
            ApiOperation(
                method="POST", path=one + "/kick", role=OPERATOR, tag=TAG,
                summary="End a connection; its client may come again.", body=KickAsked,
                answer=Kicked, handler=self.kick,
            ),
        ]  # fmt: skip
        return rows

    async def connections(self, call: ApiCall[ConnectionQuery, None]) -> Page[ConnectionRow]:
        """A page of connections."""
        query = call.query

        def wanted(row: ConnectionRow) -> bool:
            if query.user and row.user != query.user:
                return False
            return contains(query.search, row.id, row.client_id, row.user, row.address)

        found = await choose(
            self._desk.share,
            self._all(query.protocol),
            query,
            lambda row: row.id,
            kind=str,
            wanted=wanted,
        )
        return full_page(query, found, lambda row: row.id)

    def _all(self, protocol: str) -> Iterator[ConnectionRow]:
        for name, desk in self._desk.desks().items():
            if protocol in ("", name):
                yield from desk.connections()

    async def connection(self, call: ApiCall[NoQuery, None]) -> ConnectionRow:
        """One connection."""
        wanted = call.names["connection"]
        for row in self._all(""):
            if row.id == wanted:
                return row
            await self._desk.share.breathe()
        raise _no_connection(wanted)

    async def kick(self, call: ApiCall[NoQuery, KickAsked]) -> Kicked:
        """End a connection."""
        wanted = call.names["connection"]
        reason = f"{call.body.reason} ({call.caller.name})"
        count = sum(desk.kick(wanted, reason) for desk in self._desk.desks().values())
        if not count:
            raise _no_connection(wanted)
        return Kicked(connections=count)


def _no_connection(wanted: str) -> NotFound:
    return NotFound(f"there is no connection {wanted[:200]!r}; GET /api/v1/connections lists them")
