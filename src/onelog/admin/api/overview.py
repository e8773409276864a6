"""The whole at a glance: the process, its listeners, counts, rates, disk and alarms."""

from __future__ import annotations

import asyncio
import shutil
from typing import Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from onelog.admin.api.declaring import VIEWER, AnyOperation, ApiCall, ApiOperation, NoQuery
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page, PageQuery, choose, full_page
from onelog.admin.api.rates import RateBook, Totals, TrafficRates
from onelog.admin.api.sight import Sight
from onelog.admin.contract import ListenerInfo, ServerInfo, TroubleInfo
from onelog.broker.showing import GroupDesk
from onelog.cluster.seen import SeenNode
from onelog.observe import HealthReport, Trouble

TAG = "overview"
_DISK_TIMEOUT_S: Final = 1.0


class DiskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The disk that the data lies on."""

    total_bytes: int
    free_bytes: int
    full: bool
    """Whether the broker refuses writes because there is no room."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are."""

    streams: int
    """Without those of the broker itself."""
    partitions: int
    stopped_partitions: int
    cursors: int
    sessions: int
    sessions_attached: int
    views: int
    connections: int


class LoopInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How late the event loop was in the last minute; its timers are whole milliseconds."""

    lag_p99_ms: float
    lag_max_ms: float


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole at a glance."""

    server: ServerInfo
    status: str
    """`ok`, `degraded` when there are troubles, or `failing`."""
    checks: dict[str, str]
    alarms: list[TroubleInfo]
    """What lasts now."""
    incidents: list[TroubleInfo]
    """What went wrong, was isolated and is over; the newest last."""
    counts: Counts
    size_bytes: int
    """Bytes of records of all streams."""
    disk: DiskInfo | None
    """null: the disk did not answer in time."""
    loop: LoopInfo
    totals: Totals
    rates: TrafficRates


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster."""

    id: int
    name: str
    state: Literal["running", "starting", "draining", "down"]
    """`draining`: it runs, and others lead. `down`: it is not registered in the cluster."""
    version: str
    started_ms: int | None
    """null: it is another node, which says this itself."""
    listeners: tuple[ListenerInfo, ...]
    """Where clients reach it; of a node that is down nothing is known."""
    here: bool = True
    """Whether it is the one that answers."""


class OverviewOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk, rates: RateBook) -> None:
        self._desk = desk
        self._rates = rates

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/info", role=VIEWER, tag=TAG,
                summary="This process: version, uptime, kernel, listeners.", answer=ServerInfo,
                handler=self.info,
            ),
            ApiOperation(
                method="GET", path="/overview", role=VIEWER, tag=TAG,
                summary="The whole at a glance.", answer=Overview, handler=self.overview,
            ),
            ApiOperation(
                method="GET", path="/nodes", role=VIEWER, tag=TAG,
                summary="The nodes of the cluster; a node on its own is the only one.",
                query=PageQuery, answer=Page[NodeInfo], handler=self.nodes,
            ),
            ApiOperation(
                method="GET", path="/listeners", role=VIEWER, tag=TAG,
                summary="What listens where, by name.", query=PageQuery,
                answer=Page[ListenerInfo], handler=self.listeners,
            ),
        ]  # fmt: skip
        return rows

    async def info(self, _call: ApiCall[NoQuery, None]) -> ServerInfo:
        """This process."""
        return self._desk.info()

    async def nodes(self, call: ApiCall[PageQuery, None]) -> Page[NodeInfo]:
        """This node, and the others of its cluster."""
        info = self._desk.info()
        cluster = self._desk.opened.cluster if self._desk.is_open else None
        members = () if cluster is None else (await cluster.look()).nodes
        here = next((row for row in members if row.id == info.node_id), None)
        draining = here is not None and here.draining
        node = NodeInfo(
            id=info.node_id,
            name=info.node_name,
            state="starting" if not self._desk.is_open else "draining" if draining else "running",
            version=info.version,
            started_ms=info.started_ms,
            listeners=info.listeners,
        )
        found = [node, *(_other_node(row) for row in members if row.id != info.node_id)]
        rows = await choose(self._desk.share, found, call.query, lambda row: row.id, kind=int)
        return full_page(call.query, rows, lambda row: row.id)

    async def listeners(self, call: ApiCall[PageQuery, None]) -> Page[ListenerInfo]:
        """What listens where."""
        rows = await choose(
            self._desk.share, self._desk.info().listeners, call.query, _listener_key, kind=list[str]
        )
        return full_page(call.query, rows, _listener_key)

    async def overview(self, call: ApiCall[NoQuery, None]) -> Overview:
        """The whole broker at a glance."""
        desk, broker, desks = self._desk, self._desk.broker, self._desk.desks()
        sight = desk.sight(call.caller)
        streams = broker.streams.streams()
        size = partitions = own = 0
        for stream in streams:
            size += stream.size_bytes
            if not stream.config.internal:
                own += 1
                partitions += len(stream.partitions)
            await desk.share.breathe()
        cursors = 0
        for _name in desk.view.cursor_names():
            cursors += 1
            if cursors % 500 == 0:
                await desk.share.breathe()
        groups = cast("GroupDesk | None", desks.get("kafka"))
        cursors += 0 if groups is None else len(groups.group_names())
        await desk.share.breathe()
        totals, rates = self._rates.sample(broker, desks)
        await desk.share.breathe()
        disk = await self._disk()
        report = desk.health.ready()
        troubles = desk.troubles.rows()
        server = desk.info()
        await desk.share.breathe()
        return Overview(
            server=server,
            status="failing" if not report.ok else "degraded" if troubles else "ok",
            checks=shown_checks(report, sight),
            alarms=[trouble_info(row, sight) for row in troubles if row.standing],
            incidents=[trouble_info(row, sight) for row in troubles if not row.standing],
            counts=Counts(
                streams=own,
                partitions=partitions,
                stopped_partitions=len(broker.stopped_partitions()),
                cursors=cursors,
                sessions=broker.sessions.count(),
                sessions_attached=len(broker.sessions),
                views=len(broker.views.all()),
                connections=sum(row.connections for row in totals.protocols.values()),
            ),
            size_bytes=size,
            disk=disk,
            loop=loop_info(desk),
            totals=totals,
            rates=rates,
        )

    async def _disk(self) -> DiskInfo | None:
        place, broker = self._desk.info().data_dir, self._desk.broker
        try:
            async with asyncio.timeout(_DISK_TIMEOUT_S):
                usage = await broker.in_thread(lambda: shutil.disk_usage(place))
        except (TimeoutError, OSError):
            return None
        full = broker.streams.shared.room.is_full
        return DiskInfo(total_bytes=usage.total, free_bytes=usage.free, full=full)


def _listener_key(row: ListenerInfo) -> list[str]:
    return [row.name, row.address]


def loop_info(desk: AdminDesk) -> LoopInfo:
    """How late the event loop was."""
    lag = desk.lag
    return LoopInfo(lag_p99_ms=round(lag.p99_s * 1000, 1), lag_max_ms=round(lag.max_s * 1000, 1))


def shown_checks(report: HealthReport, sight: Sight) -> dict[str, str]:
    """The checks of a report; why one fails may name what a caller does not see."""
    return report.checks if sight.sees_all else hidden_checks(report)


def hidden_checks(report: HealthReport) -> dict[str, str]:
    """The checks of a report without the reasons, which may name streams."""
    return {name: "ok" if said == "ok" else "failing" for name, said in report.checks.items()}


def trouble_info(row: Trouble, sight: Sight) -> TroubleInfo:
    """A trouble as it is shown; its words may name what a caller does not see."""
    hidden = not sight.sees_all
    return TroubleInfo(
        kind=row.kind,
        place="" if hidden else row.place,
        error="" if hidden else row.error,
        count=row.count,
        first_ms=row.first_ms,
        last_ms=row.last_ms,
        standing=row.standing,
        facts={} if hidden else row.facts,
    )


def _other_node(row: SeenNode) -> NodeInfo:
    return NodeInfo(
        id=row.id,
        name=row.name,
        state="down" if not row.epoch else "draining" if row.draining else "running",
        version=row.version,
        started_ms=None,
        listeners=tuple(
            ListenerInfo(name=name, address=urlsplit(url).netloc, url=url)
            for name, url in sorted(row.listeners.items())
        ),
        here=False,
    )
