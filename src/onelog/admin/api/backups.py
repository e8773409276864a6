"""Operations on backups: begin one, see how far it is, end it; look what a store holds, prune it.

Rules: a backup holds everything, users and messages alike, and goes wherever its URL says: only
administrators begin one or look into a store, which is as this machine sees it. Options may hold
secrets and are not shown again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    ADMIN,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page
from onelog.backup.stored import (
    ListStored,
    PrunedBackups,
    PruneStored,
    StoredBackups,
    VerifiedBackups,
    VerifyStored,
)
from onelog.broker import BackupRun

TAG = "backups"
_Option = Annotated[str, Meta(max_length=4096)]
_Options = Annotated[dict[_Option, _Option], Meta(max_length=64)]


class NewBackup(ApiInput, frozen=True, kw_only=True):
    """A backup to be made."""

    url: Annotated[str, Meta(min_length=1, max_length=4096)]
    """A folder by its whole path, or s3://BUCKET/PREFIX."""
    options: _Options = msgspec.field(default_factory=dict)
    """Of the object storage, as obstore has them."""
    bytes_per_s: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """How fast files are read at most; 0: as fast as it goes."""


class StoreAsked(ApiInput, frozen=True, kw_only=True):
    """How to reach a store."""

    options: _Options = msgspec.field(default_factory=dict)
    """Of the object storage, as obstore has them."""


class StoreVerify(StoreAsked, frozen=True, kw_only=True):
    """Which backups to check."""

    id: Annotated[str, Meta(max_length=64)] = ""
    """One backup; empty: all."""


class StorePrune(StoreAsked, frozen=True, kw_only=True):
    """Which backups go."""

    keep: Annotated[int, Meta(ge=1, le=2**31)] = 1
    """The newest so many stay."""
    older_than_ms: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Only those of before so long go; null: whatever their age."""
    dry_run: bool = False
    """Only look what would go."""


class BackupOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/backups", role=VIEWER, tag=TAG,
                summary="Backups since the broker started, the newest first.",
                answer=Page[BackupRun], handler=self.backups,
            ),
            ApiOperation(
                method="POST", path="/backups", role=ADMIN, tag=TAG,
                summary="Begin a backup; one runs at a time.",
                body=NewBackup, answer=BackupRun, status=202, handler=self.start,
            ),
            ApiOperation(
                method="GET", path="/backups/{backup}", role=VIEWER, tag=TAG,
                summary="How far a backup is.", answer=BackupRun, handler=self.backup,
            ),
            ApiOperation(
                method="DELETE", path="/backups/{backup}", role=ADMIN, tag=TAG,
                summary="End a backup that is under way.", answer=BackupRun, handler=self.cancel,
            ),
        ]  # fmt: skip
        return rows + self._store_table()

    def _store_table(self) -> list[AnyOperation]:
        store = "/stored-backups/{url}"
        return [
            ApiOperation(
                method="POST", path=store + "/list", role=ADMIN, tag=TAG,
                summary="The backups in a folder or bucket, the oldest first.",
                body=StoreAsked, answer=StoredBackups, handler=self.stored,
            ),
            ApiOperation(
                method="POST", path=store + "/verify", role=ADMIN, tag=TAG,
                summary="Read everything that backups need and compare every checksum.",
                body=StoreVerify, answer=VerifiedBackups, handler=self.verify,
            ),
            ApiOperation(
                method="POST", path=store + "/prune", role=ADMIN, tag=TAG,
                summary="Delete old backups, and what only they needed.",
                body=StorePrune, answer=PrunedBackups, handler=self.prune,
            ),
        ]  # fmt: skip

    async def backups(self, _call: ApiCall[NoQuery, None]) -> Page[BackupRun]:
        """All runs that are remembered."""
        return Page(items=self._desk.broker.backups.all(), next_cursor=None)

    async def backup(self, call: ApiCall[NoQuery, None]) -> BackupRun:
        """One run."""
        return self._desk.broker.backups.find(call.names["backup"])

    async def start(self, call: ApiCall[NoQuery, NewBackup]) -> BackupRun:
        """Begin a backup."""
        wanted = call.body
        return self._desk.broker.backups.start(wanted.url, wanted.options, wanted.bytes_per_s)

    async def cancel(self, call: ApiCall[NoQuery, None]) -> BackupRun:
        """End a backup that runs."""
        return await self._desk.broker.backups.cancel(call.names["backup"])

    # -- what lies in a store

    async def stored(self, call: ApiCall[NoQuery, StoreAsked]) -> StoredBackups:
        """The backups of a store."""
        question = ListStored(url=call.names["url"], options=call.body.options)
        return await self._desk.broker.backups.looks.ask(question, StoredBackups)

    async def verify(self, call: ApiCall[NoQuery, StoreVerify]) -> VerifiedBackups:
        """Check backups of a store."""
        body = call.body
        question = VerifyStored(url=call.names["url"], options=body.options, id=body.id)
        return await self._desk.broker.backups.looks.ask(question, VerifiedBackups)

    async def prune(self, call: ApiCall[NoQuery, StorePrune]) -> PrunedBackups:
        """Delete old backups."""
        body = call.body
        question = PruneStored(
            url=call.names["url"],
            options=body.options,
            keep=body.keep,
            older_than_ms=body.older_than_ms,
            dry_run=body.dry_run,
        )
        return await self._desk.broker.backups.looks.ask(question, PrunedBackups)
