"""Operations on named views: filters that have a name."""

from __future__ import annotations

from typing import Annotated

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
from onelog.base.errors import NotAuthorized, NotFound
from onelog.broker import NamedView

TAG = "views"


class NewView(ApiInput, frozen=True, kw_only=True):
    """A view to be made."""

    name: Annotated[str, Meta(min_length=1, max_length=249)]
    filter: Annotated[str, Meta(min_length=1, max_length=65535)]


class ViewOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/views", role=VIEWER, tag=TAG,
                summary="Named views by name.", query=SearchQuery, answer=Page[NamedView],
                handler=self.views,
            ),
            ApiOperation(
                method="POST", path="/views", role=OPERATOR, tag=TAG,
                summary="Give a filter a name.", body=NewView, answer=NamedView, status=201,
                handler=self.create,
            ),
            ApiOperation(
                method="GET", path="/views/{view}", role=VIEWER, tag=TAG,
                summary="One named view.", answer=NamedView, handler=self.view,
            ),
            ApiOperation(
                method="DELETE", path="/views/{view}", role=OPERATOR, tag=TAG,
                summary="Take a name away; no record is deleted.", answer=NOTHING, status=204,
                handler=self.delete,
            ),
        ]  # fmt: skip
        return rows

    async def views(self, call: ApiCall[SearchQuery, None]) -> Page[NamedView]:
        """A page of views."""
        query, sight = call.query, self._desk.sight(call.caller)
        found = await choose(
            self._desk.share,
            self._desk.broker.views.all(),
            query,
            lambda row: row.name,
            kind=str,
            wanted=lambda row: (
                contains(query.search, row.name, row.filter) and sight.topic(row.filter)
            ),
        )
        return full_page(query, found, lambda row: row.name)

    async def view(self, call: ApiCall[NoQuery, None]) -> NamedView:
        """One view."""
        name = call.names["view"]
        found = self._desk.broker.views.find(name)
        if found is None or not self._desk.sight(call.caller).topic(found.filter):
            raise NotFound(f"there is no view {name!r}; GET /api/v1/views lists them")
        return found

    async def create(self, call: ApiCall[NoQuery, NewView]) -> NamedView:
        """Make a view."""
        if not self._desk.sight(call.caller).topic(call.body.filter):
            raise NotAuthorized(f"{call.caller.name} may not see {call.body.filter}")
        return await self._desk.broker.views.create(call.body.name, call.body.filter)

    async def delete(self, call: ApiCall[NoQuery, None]) -> None:
        """Take a name away."""
        await self._desk.broker.views.delete((await self.view(call)).name)
