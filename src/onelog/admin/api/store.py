"""Operations on the object store: what it was asked and what that cost, whether it can be trusted,
and deleting what nothing names."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

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
from onelog.admin.api.paging import choose, contains, full_page
from onelog.admin.api.streams import StreamQuery
from onelog.broker import StoredStream, Stream
from onelog.broker.objects import BucketStream, Probed, StoreStatus, Swept

TAG: Final = "store"


class SweepWanted(ApiInput, frozen=True, kw_only=True):
    """How to sweep."""

    dry_run: bool = False
    """Only look what would be deleted."""


class RestoreWanted(ApiInput, frozen=True, kw_only=True):
    """Which streams to restore."""

    streams: Annotated[tuple[str, ...], Meta(max_length=10_000)] = ()
    """By name; empty: all that this broker does not have."""
    dry_run: bool = False
    """Only look what is there."""
    take_over: bool = False
    """Also streams that another broker wrote within the last day: it must not run any more."""


class BucketStreams(msgspec.Struct, frozen=True, kw_only=True):
    """The streams of a bucket, and what was done with them."""

    streams: tuple[BucketStream, ...]


class StoredStreams(msgspec.Struct, frozen=True, kw_only=True):
    """A page of streams with history in the object store."""

    items: list[StoredStream]
    next_cursor: str | None
    store: str
    """The URL of the store; empty: this broker has none."""


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
                method="GET", path="/store/streams", role=VIEWER, tag=TAG,
                summary="Streams with history in the object store, and how far it is there.",
                query=StreamQuery, answer=StoredStreams, handler=self.streams,
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
            ApiOperation(
                method="POST", path="/store/restore", role=ADMIN, tag=TAG,
                summary="Restore streams that lie in the store, and that this broker has not.",
                body=RestoreWanted, answer=BucketStreams, handler=self.restore,
            ),
        ]  # fmt: skip
        return rows

    async def status(self, _call: ApiCall[NoQuery, None]) -> StoreStatus:
        """What the store was asked."""
        return self._desk.broker.objects.status()

    async def streams(self, call: ApiCall[StreamQuery, None]) -> StoredStreams:
        """A page of streams that have something in the store."""
        query, desk = call.query, self._desk
        sight, tiers = desk.sight(call.caller), desk.broker.tiers

        def wanted(stream: Stream) -> bool:
            if stream.config.internal and not query.internal:
                return False
            is_shown = tiers.is_stored(stream) and desk.sees(sight, stream)
            return is_shown and contains(query.search, stream.name)

        rows = desk.broker.streams.streams()
        found = await choose(desk.share, rows, query, lambda row: row.name, kind=str, wanted=wanted)
        infos = []
        for row in found:
            infos.append(tiers.stored(row))
            await desk.share.breathe()
        page = full_page(query, infos, lambda row: row.stream)
        return StoredStreams(
            items=page.items, next_cursor=page.next_cursor, store=desk.broker.objects.url
        )

    async def check(self, _call: ApiCall[NoQuery, None]) -> Probed:
        """Try the store."""
        return await self._desk.broker.objects.check()

    async def restore(self, call: ApiCall[NoQuery, RestoreWanted]) -> BucketStreams:
        """Restore streams."""
        wanted = call.body
        found = await self._desk.broker.objects.restore(
            wanted.streams, dry_run=wanted.dry_run, take_over=wanted.take_over
        )
        return BucketStreams(streams=tuple(found))

    async def sweep(self, call: ApiCall[NoQuery, SweepWanted]) -> Swept:
        """Delete what nothing names."""
        return await self._desk.broker.objects.sweep(dry_run=call.body.dry_run)
