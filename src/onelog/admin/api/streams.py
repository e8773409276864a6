"""Operations on streams, their partitions and segments."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
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
from onelog.admin.api.paging import (
    Page,
    PageQuery,
    SearchQuery,
    choose,
    contains,
    decode_key,
    full_page,
)
from onelog.admin.api.sight import Sight
from onelog.admin.contract import PartitionInfo, StoredSegment, StreamInfo
from onelog.base.errors import InvalidRequest, NotAuthorized, StreamNotFound
from onelog.base.topics import check_filter
from onelog.broker import Adopted, Cleanup, Durability, Offloaded, Stream, TierInfo, TierTask
from onelog.broker.stream_commands import (
    AlterStream,
    CreateStream,
    DeleteStream,
    ShowStream,
    StreamChoice,
    StreamCommand,
    captures_of,
    run_stream,
)

TAG = "streams"

LocalBound = Annotated[int, Meta(ge=-2, le=2**62)]
Filters = Annotated[tuple[str, ...], Meta(max_length=1000)]


class StreamQuery(SearchQuery, frozen=True, kw_only=True):
    """Which page of which streams."""

    internal: Annotated[
        bool, Meta(description="Whether to show the streams of the broker itself, too.")
    ] = False


ReplicaCount = Annotated[int, Meta(ge=0, le=32)]


class StreamSettings(ApiInput, frozen=True, kw_only=True):
    """What may be chosen of a stream; what is left out is the default, or stays as it is."""

    partitions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    durability: Durability | None = None
    replicas: ReplicaCount | None = None
    """On a cluster: nodes that hold each partition; 0: as the cluster gives."""
    min_insync: ReplicaCount | None = None
    """On a cluster: replicas that must have a record before it is answered; 0: as the cluster
    gives."""
    retention_age_ms: Annotated[int, Meta(ge=-1, le=2**62)] | None = None
    """-1: not by age."""
    retention_bytes: Annotated[int, Meta(ge=-1, le=2**62)] | None = None
    """-1: not by size."""
    cleanup: Cleanup | None = None
    tier: Annotated[str, Meta(max_length=2000)] | None = None
    """How history goes to the object store: `log`, `iceberg`, `delta`, `none`, or the URL of the
    broker's store (as `log`)."""
    tier_copy: bool | None = None
    """Whether sealed segments are copied; if not, what was copied stays readable."""
    tier_delete_when_off: bool | None = None
    """Whether the copies go when the tier becomes `none`."""
    local_age_ms: LocalBound | None = None
    """Copied records older than this leave the disk; -1: not by age, -2: as retention."""
    local_bytes: LocalBound | None = None
    """Bytes of copied records that stay on the disk; -1: no bound, -2: as retention."""
    tier_commit_ms: Annotated[int, Meta(ge=1000, le=2**62)] | None = None
    """How often a table gets new rows at most."""
    tier_columns: Annotated[str, Meta(max_length=32_767)] | None = None
    """Typed columns of a table, such as `json: temp double`."""
    tier_table: Annotated[str, Meta(max_length=512)] | None = None
    """The name of the table; empty: the stream's name."""
    tier_catalog: Annotated[str, Meta(max_length=512)] | None = None
    """The catalog of the table; empty: that of the configuration."""
    tier_snapshot_age_ms: Annotated[int, Meta(ge=-1, le=2**62)] | None = None
    """Snapshots of a table older than this are forgotten; -1: never."""
    tier_table_age_ms: LocalBound | None = None
    """How long a table keeps rows; -1: for ever, -2: as long as the log."""


class NewStream(StreamSettings, frozen=True, kw_only=True):
    """A stream to be made."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    captures: Filters | None = None
    """Filters of the topics that live in it; null: the topic that the name means."""
    engine: str | None = None


class ChangedStream(StreamSettings, frozen=True, kw_only=True):
    """What changes of a stream."""

    capture: Filters = ()
    """Filters that it captures from now on, too."""
    release: Filters = ()
    """Filters that it captures no more; what it holds of them stays readable."""


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One stream with every setting."""

    stream: StreamInfo
    settings: dict[str, Any]
    """Each setting in force by its dotted name; -1 is no bound."""


class TrimAsked(ApiInput, frozen=True, kw_only=True):
    """Up to where records go."""

    before: Annotated[int, Meta(ge=0, le=2**62)]
    """Records below this offset are deleted; at most the high watermark."""


class StreamOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        one, many = "/streams/{stream}", "/streams"
        parts = "/streams/{stream}/partitions"
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path=many, role=VIEWER, tag=TAG, summary="Streams by name.",
                query=StreamQuery, answer=Page[StreamInfo], handler=self.streams,
            ),
            ApiOperation(
                method="POST", path=many, role=OPERATOR, tag=TAG, summary="Make a stream.",
                body=NewStream, answer=StreamDetails, status=201, handler=self.create,
            ),
            ApiOperation(
                method="GET", path=one, role=VIEWER, tag=TAG,
                summary="One stream with every setting.", answer=StreamDetails,
                handler=self.stream,
            ),
            ApiOperation(
                method="PATCH", path=one, role=OPERATOR, tag=TAG,
                summary="Change a stream while it runs.", body=ChangedStream,
                answer=StreamDetails, handler=self.alter,
            ),
            ApiOperation(
                method="DELETE", path=one, role=OPERATOR, tag=TAG,
                summary="Delete a stream and its records.", answer=NOTHING, status=204,
                handler=self.delete,
            ),
            ApiOperation(
                method="GET", path=parts, role=VIEWER, tag=TAG,
                summary="Partitions of a stream by number.", query=PageQuery,
                answer=Page[PartitionInfo], handler=self.partitions,
            ),
            ApiOperation(
                method="GET", path=parts + "/{partition}/segments", role=VIEWER, tag=TAG,
                summary="Segments of a partition by offset.", query=PageQuery,
                answer=Page[StoredSegment], handler=self.segments,
            ),
            ApiOperation(
                method="GET", path=one + "/tier", role=VIEWER, tag=TAG,
                summary="How far the history of a stream is in the object store.",
                query=PageQuery, answer=Page[TierInfo], handler=self.tier,
            ),
            ApiOperation(
                method="POST", path=one + "/tier/offload", role=OPERATOR, tag=TAG,
                summary="Seal the segments of a stream and move its history to the store now.",
                answer=Offloaded, handler=self.offload,
            ),
            ApiOperation(
                method="POST", path=one + "/tier/adopt", role=OPERATOR, tag=TAG,
                summary="Take rows of a stream's table over that another writer rewrote.",
                answer=Adopted, handler=self.adopt,
            ),
            ApiOperation(
                method="POST", path=one + "/tier/bring-back", role=OPERATOR, tag=TAG,
                summary="Turn a tier off and fetch its history from the object store.",
                answer=TierTask, status=202, handler=self.bring_back,
            ),
            ApiOperation(
                method="POST", path=one + "/tier/delete-cold", role=ADMIN, tag=TAG,
                summary="Turn a tier off and delete what is in the object store.",
                answer=TierTask, status=202, handler=self.delete_cold,
            ),
            ApiOperation(
                method="POST", path=parts + "/{partition}/trim", role=OPERATOR, tag=TAG,
                summary="Delete the records of a partition below an offset.", body=TrimAsked,
                answer=PartitionInfo, handler=self.trim,
            ),
        ]  # fmt: skip
        return rows

    async def streams(self, call: ApiCall[StreamQuery, None]) -> Page[StreamInfo]:
        """A page of streams."""
        query, sight = call.query, self._desk.sight(call.caller)

        def wanted(stream: Stream) -> bool:
            if stream.config.internal and not query.internal:
                return False
            if not self._desk.sees(sight, stream):
                return False
            captures = filter(sight.topic, stream.config.captures)
            return contains(query.search, stream.name, *captures)

        rows = self._desk.broker.streams.streams()
        found = await choose(
            self._desk.share, rows, query, lambda row: row.name, kind=str, wanted=wanted
        )
        infos = []
        for row in found:
            infos.append(self._shown(sight, row.name))
            await self._desk.share.breathe()
        return full_page(query, infos, lambda row: row.name)

    def _shown(self, sight: Sight, name: str) -> StreamInfo:
        """The part of a stream's row that a caller sees."""
        info = self._desk.view.stream(name)
        captures = tuple(filter(sight.topic, info.captures))
        return info if sight.sees_all else msgspec.structs.replace(info, captures=captures)

    def _seen(self, call: ApiCall[Any, Any]) -> str:
        """The name of the stream of a call. Raises StreamNotFound when the caller sees none."""
        name = call.names["stream"]
        stream = self._desk.broker.streams.get(name)
        if not self._desk.sees(self._desk.sight(call.caller), stream):
            raise StreamNotFound(f"there is no stream {name!r}")
        return name

    def _changed(self, call: ApiCall[Any, Any]) -> str:
        """The name of the stream that a call changes. Raises NotAuthorized.

        A change holds for every topic in the stream. Who sees some of them may not, for example,
        delete the others.
        """
        name = self._seen(call)
        captures = self._desk.broker.streams.get(name).config.captures
        if not self._desk.sight(call.caller).whole(captures):
            raise NotAuthorized(
                f"{call.caller.name} has no right to all topics of the stream {name!r}, and so may"
                " not change it"
            )
        return name

    def _may_capture(self, call: ApiCall[Any, Any], filters: tuple[str, ...]) -> None:
        """Raise NotAuthorized unless the caller has a right to every topic of these filters."""
        sight = self._desk.sight(call.caller)
        if sight.sees_all:
            return
        for one in filters:
            check_filter(one)
            if not sight.whole((one,)):
                raise NotAuthorized(
                    f"{call.caller.name} has no right to all topics of {one!r}, and so may not"
                    " capture them"
                )

    async def stream(self, call: ApiCall[NoQuery, None]) -> StreamDetails:
        """One stream."""
        return await self._details(call, self._seen(call))

    async def _details(self, call: ApiCall[Any, Any], name: str) -> StreamDetails:
        answer = await self._run(ShowStream(name=name))
        assert answer.detail is not None
        info = self._shown(self._desk.sight(call.caller), name)
        settings = answer.detail.settings | {"captures": list(info.captures)}
        return StreamDetails(stream=info, settings=settings)

    async def _run(self, command: StreamCommand) -> Any:
        defaults = self._desk.opened.loaded.config.defaults.stream
        return await run_stream(self._desk.broker, defaults, command)

    async def create(self, call: ApiCall[NoQuery, NewStream]) -> StreamDetails:
        """Make a stream."""
        body = call.body
        captures = captures_of(body.name, body.captures)
        self._may_capture(call, captures)
        await self._run(
            CreateStream(name=body.name, captures=captures, chosen=_choice(body, body.engine))
        )
        return await self._details(call, body.name)

    async def alter(self, call: ApiCall[NoQuery, ChangedStream]) -> StreamDetails:
        """Change a stream."""
        body, name = call.body, self._changed(call)
        self._may_capture(call, body.capture)
        await self._run(
            AlterStream(
                name=name,
                capture=body.capture,
                release=body.release,
                chosen=_choice(body, None),
            )
        )
        return await self._details(call, name)

    async def delete(self, call: ApiCall[NoQuery, None]) -> None:
        """Delete a stream."""
        await self._run(DeleteStream(name=self._changed(call)))

    async def partitions(self, call: ApiCall[PageQuery, None]) -> Page[PartitionInfo]:
        """A page of partitions."""
        after = after_number(call.query)
        rows = self._desk.view.partitions(self._seen(call), after, call.query.limit + 1)
        return full_page(call.query, rows, lambda row: row.partition)

    async def segments(self, call: ApiCall[PageQuery, None]) -> Page[StoredSegment]:
        """A page of segments."""
        rows = self._desk.view.segments(
            self._seen(call),
            as_number(call.names["partition"], "a partition"),
            after_number(call.query),
            call.query.limit + 1,
        )
        return full_page(call.query, rows, lambda row: row.base_offset)

    async def tier(self, call: ApiCall[PageQuery, None]) -> Page[TierInfo]:
        """A page of partitions and their history in the object store."""
        after = after_number(call.query)
        rows = self._desk.broker.tiers.rows(self._seen(call), after, call.query.limit + 1)
        return full_page(call.query, rows, lambda row: row.partition)

    async def offload(self, call: ApiCall[NoQuery, None]) -> Offloaded:
        """Move history now."""
        return await self._desk.broker.tiers.offload(self._changed(call))

    async def adopt(self, call: ApiCall[NoQuery, None]) -> Adopted:
        """Prove and take over what was rewritten."""
        return await self._desk.broker.tiers.adopt(self._changed(call))

    async def bring_back(self, call: ApiCall[NoQuery, None]) -> TierTask:
        """Begin to fetch history."""
        return await self._desk.broker.tiers.bring_back(self._changed(call))

    async def delete_cold(self, call: ApiCall[NoQuery, None]) -> TierTask:
        """Begin to delete history."""
        return await self._desk.broker.tiers.delete_cold(self._changed(call))

    async def trim(self, call: ApiCall[NoQuery, TrimAsked]) -> PartitionInfo:
        """Delete records."""
        name, number = self._changed(call), as_number(call.names["partition"], "a partition")
        stream = self._desk.broker.streams.get(name)
        if stream.config.internal:
            raise InvalidRequest(f"the stream {name!r} belongs to the broker: leave it alone")
        self._desk.view.segments(name, number, -1, 0)  # raises when there is no such partition
        await self._desk.broker.delete_records(name, number, call.body.before)
        return self._desk.view.partitions(name, number - 1, 1)[0]


def _choice(given: StreamSettings, engine: str | None) -> StreamChoice:
    return StreamChoice(
        partitions=given.partitions,
        engine=engine,
        durability=given.durability,
        replicas=given.replicas,
        min_insync=given.min_insync,
        retention_age_ms=given.retention_age_ms,
        retention_bytes=given.retention_bytes,
        cleanup=given.cleanup,
        tier=given.tier,
        tier_copy=given.tier_copy,
        tier_delete_when_off=given.tier_delete_when_off,
        local_age_ms=given.local_age_ms,
        local_bytes=given.local_bytes,
        tier_commit_ms=given.tier_commit_ms,
        tier_columns=given.tier_columns,
        tier_table=given.tier_table,
        tier_catalog=given.tier_catalog,
        tier_snapshot_age_ms=given.tier_snapshot_age_ms,
        tier_table_age_ms=given.tier_table_age_ms,
    )


def as_number(text: str, what: str) -> int:
    """A number in a path. Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidRequest(f"{what} is a number, not {text[:40]!r}")
    return int(text)


def after_number(query: PageQuery) -> int:
    """The number that a page goes on after; -1 for the first page."""
    found = decode_key(query.cursor, int)
    return -1 if found is None else min(found, 2**62)
