"""Operations on the object store: what it was asked and what that cost, whether it can be trusted,
and deleting what nothing names."""

from __future__ import annotations

from typing import Final

from onelog.admin.api.declaring import (
    ADMIN,
    OPERATOR,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.broker.objects import Probed, StoreStatus, Swept

TAG: Final = "store"


class SweepWanted(ApiInput, frozen=True, kw_only=True):
    """How to sweep."""

    dry_run: bool = False
    """Only look what would be deleted."""


class StoreOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/store", role=VIEWER, tag=TAG,
                summary="The object store: requests, bytes, dollars, errors.",
                answer=StoreStatus, handler=self.status,
            ),
            ApiOperation(
                method="POST", path="/store/check", role=OPERATOR, tag=TAG,
                summary="Try the object store: create-only writes under race, ranges, listings.",
                answer=Probed, handler=self.check,
            ),
            ApiOperation(
                method="POST", path="/store/sweep", role=ADMIN, tag=TAG,
                summary="Delete objects older than a day that nothing names.",
                body=SweepWanted, answer=Swept, handler=self.sweep,
            ),
        ]  # fmt: skip
        return rows

    async def status(self, _call: ApiCall[NoQuery, None]) -> StoreStatus:
        """What the store was asked."""
        return self._desk.broker.objects.status()

    async def check(self, _call: ApiCall[NoQuery, None]) -> Probed:
        """Try the store."""
        return await self._desk.broker.objects.check()

    async def sweep(self, call: ApiCall[NoQuery, SweepWanted]) -> Swept:
        """Delete what nothing names."""
        return await self._desk.broker.objects.sweep(dry_run=call.body.dry_run)
