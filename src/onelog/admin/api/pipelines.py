"""Operations on pipelines: what `onelog pipeline` runs on this data directory, and how far it is.

Rules: a pipeline is a process of its own and writes its status to a file; the broker reads these
files in a thread when somebody asks. What a pipeline reads and writes may name topics, so while
there are access rules only an administrator sees it.
"""

from __future__ import annotations

from onelog.admin.api.declaring import (
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiOperation,
    Caller,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.admin.contract import PipelineInfo
from onelog.base.errors import NotFound

TAG = "pipelines"


class PipelineOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        return [
            ApiOperation(
                method="GET", path="/pipelines", role=VIEWER, tag=TAG,
                summary="Pipelines that run or ran on this data directory, by name.",
                query=SearchQuery, answer=Page[PipelineInfo], handler=self.pipelines,
            ),
            ApiOperation(
                method="GET", path="/pipelines/{pipeline}", role=VIEWER, tag=TAG,
                summary="One pipeline: whether it runs, and how far each target is.",
                answer=PipelineInfo, handler=self.pipeline,
            ),
        ]  # fmt: skip

    async def _all(self, caller: Caller) -> list[PipelineInfo]:
        self._desk.sight(caller).need_all("a pipeline")
        return await self._desk.broker.in_thread(self._desk.opened.pipelines)

    async def pipelines(self, call: ApiCall[SearchQuery, None]) -> Page[PipelineInfo]:
        """A page of pipelines."""
        query = call.query
        found = await choose(
            self._desk.share,
            await self._all(call.caller),
            query,
            lambda row: row.name,
            kind=str,
            wanted=lambda row: contains(query.search, row.name, row.phase),
        )
        return full_page(query, found, lambda row: row.name)

    async def pipeline(self, call: ApiCall[NoQuery, None]) -> PipelineInfo:
        """One pipeline."""
        name = call.names["pipeline"]
        for row in await self._all(call.caller):
            if row.name == name:
                return row
        raise NotFound(f"no pipeline {name[:80]!r} has run here; GET /api/v1/pipelines lists them")
