"""Operations on quotas and bans: how much clients may do, and which addresses may not connect."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from onelog.admin.api.declaring import (
    ADMIN,
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
from onelog.admin.api.paging import Page, PageQuery, SearchQuery, choose, contains, full_page
from onelog.base.errors import NotFound
from onelog.security.bans import BanInfo, Bans
from onelog.security.quotas.commands import QuotaInfo, quota_info
from onelog.security.quotas.entities import Limit, parse_entity
from onelog.security.quotas.table import ClientQuotas

TAG = "quotas"

Value = Annotated[float, Meta(gt=0)]


class QuotaLimits(ApiInput, frozen=True, kw_only=True):
    """The limits of a quota; one that is left out or null is not bounded."""

    publish_bytes: Value | None = None
    publish_messages: Value | None = None
    fetch_bytes: Value | None = None
    requests: Value | None = None
    connects: Value | None = None
    connections: Value | None = None
    subscriptions: Value | None = None
    queues: Value | None = None


class QuotaOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/quotas", role=VIEWER, tag=TAG,
                summary="Quotas of users, clients, listeners and addresses.", query=SearchQuery,
                answer=Page[QuotaInfo], handler=self.quotas,
            ),
            ApiOperation(
                method="GET", path="/quotas/{entity}", role=VIEWER, tag=TAG,
                summary="One quota, by its entity, such as user:alice,client:pump.",
                answer=QuotaInfo, handler=self.quota,
            ),
            ApiOperation(
                method="PUT", path="/quotas/{entity}", role=ADMIN, tag=TAG,
                summary="Set all limits of an entity; it applies to open connections at once.",
                body=QuotaLimits, answer=QuotaInfo, handler=self.set_quota,
            ),
            ApiOperation(
                method="DELETE", path="/quotas/{entity}", role=ADMIN, tag=TAG,
                summary="Remove a quota.", answer=NOTHING, status=204, handler=self.remove_quota,
            ),
            ApiOperation(
                method="GET", path="/bans", role=VIEWER, tag=TAG,
                summary="Addresses that may not connect because their logins failed.",
                query=PageQuery, answer=Page[BanInfo], handler=self.bans,
            ),
            ApiOperation(
                method="DELETE", path="/bans/{address}", role=OPERATOR, tag=TAG,
                summary="Let an address connect again.", answer=NOTHING, status=204,
                handler=self.lift_ban,
            ),
        ]  # fmt: skip
        return rows

    @property
    def _quotas(self) -> ClientQuotas:
        return self._desk.broker.client_quotas

    @property
    def _bans(self) -> Bans:
        return self._desk.opened.authenticator.bans

    async def quotas(self, call: ApiCall[SearchQuery, None]) -> Page[QuotaInfo]:
        """A page of quotas."""
        query = call.query
        found = await choose(
            self._desk.share,
            map(quota_info, self._quotas.rows),
            query,
            lambda row: row.entity,
            kind=str,
            wanted=lambda row: contains(query.search, row.entity),
        )
        return full_page(query, found, lambda row: row.entity)

    async def quota(self, call: ApiCall[NoQuery, None]) -> QuotaInfo:
        """One quota."""
        name = call.names["entity"]
        row = self._quotas.find(parse_entity(name))
        if row is None:
            raise NotFound(f"there is no quota for {name[:80]!r}; GET /api/v1/quotas lists them")
        return quota_info(row)

    async def set_quota(self, call: ApiCall[NoQuery, QuotaLimits]) -> QuotaInfo:
        """Set the limits of an entity."""
        entity = parse_entity(call.names["entity"])
        given = {limit.value: getattr(call.body, limit.value) for limit in Limit}
        limits = {name: value for name, value in given.items() if value is not None}
        row = await self._quotas.replace(entity, limits)
        return quota_info(row)

    async def remove_quota(self, call: ApiCall[NoQuery, None]) -> None:
        """Remove a quota."""
        name = call.names["entity"]
        unreadable = name in self._quotas.unreadable
        await self._quotas.remove(name if unreadable else parse_entity(name).text)

    async def bans(self, call: ApiCall[PageQuery, None]) -> Page[BanInfo]:
        """A page of bans."""
        rows = self._bans.rows()
        found = await choose(self._desk.share, rows, call.query, lambda row: row.address, kind=str)
        return full_page(call.query, found, lambda row: row.address)

    async def lift_ban(self, call: ApiCall[NoQuery, None]) -> None:
        """Let an address connect again."""
        self._bans.lift(call.names["address"])
