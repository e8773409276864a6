"""The composition root: puts the floors together and runs them until a signal says stop.

Rules: the only module that names the event loop. Start: lock the data directory, bind every port,
answer health probes, recover the broker, then say "ready". Stop: the same backwards, so that
everything acknowledged is on disk before the lock goes. Protocols are known by their table
(`serving`); one that cannot recover is tried again, and the others are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onelog
from onelog import kernel
from onelog.admin.api.desk import AdminDesk, Opened
from onelog.admin.application import BODY, build_application
from onelog.admin.contract import ListenerInfo, ServerInfo
from onelog.admin.passes import SUBJECT as PASSES
from onelog.admin.passes import run_pass_command
from onelog.admin.samples import broker_samples
from onelog.admin.server import HttpServer
from onelog.assembly import broker_settings, open_broker, open_metadata, security_settings
from onelog.base.clock import Clock, SystemClock
from onelog.base.commands import Commands
from onelog.base.errors import ConfigError, Unavailable
from onelog.base.faults import arm_from_environment
from onelog.base.networks import is_loopback
from onelog.base.process import (
    keep_freed_memory,
    raise_open_files_limit,
    reserve_descriptors,
    share_the_interpreter,
    spare_the_collector,
)
from onelog.broker import (
    AppendSpans,
    AuditTrail,
    Broker,
    NotedPublisher,
    Spans,
    audit_reading,
    backup_commands,
    stream_commands,
    view_commands,
)
from onelog.broker.audited import AuditedCommands, take_kept
from onelog.config import Loaded
from onelog.config.cluster import is_meta_only
from onelog.config.listeners import reached_urls
from onelog.kernel.condition import kernel_warning
from onelog.metadata.store import MetadataStore
from onelog.net import Listener, bind
from onelog.net.binding import listener_tls
from onelog.net.control import ControlServer
from onelog.net.sockets import chosen_backend
from onelog.observe import Health, Registry, Sample, Troubles, configure_logging, get_logger
from onelog.security import ban_commands, token_commands
from onelog.security import commands as user_commands
from onelog.security.access import commands as access_commands
from onelog.security.api_tokens import ApiTokens
from onelog.security.authenticator import Authenticator
from onelog.security.quotas import commands as quota_commands
from onelog.serving import PROTOCOLS, ProtocolServer, Surroundings, served
from onelog.serving.pipelines import pipeline_rows
from onelog.storage.lock import lock_data_dir

if TYPE_CHECKING:
    from onelog.cluster.seen import ClusterDesk
    from onelog.cluster_assembly import ClusterNode

_log = get_logger("app")

_EXIT_FORCED: Final = 130


class Server:
    """One running process: its listeners, its broker, and what it says about itself."""

    def __init__(self, loaded: Loaded, clock: Clock) -> None:
        self._loaded = loaded
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._started_at = clock.monotonic()
        self._state = "starting"
        self._listeners: list[ListenerInfo] = []
        self._store: MetadataStore | None = None
        self._cluster: ClusterNode | None = None
        """None: this node is on its own."""
        self._stop = asyncio.Event()
        self.health = Health()
        self.health.register("state", lambda: None if self._state == "running" else self._state)
        self.troubles = Troubles(clock)
        self.health.register("troubles", self.troubles.problem)
        self.metrics = Registry(self.troubles)
        self.metrics.register("troubles", self.troubles.samples)
        self.metrics.register("process", self._samples)
        self.metrics.register("disk", self._disk_samples)

    def request_stop(self) -> None:
        """Begin a clean shutdown; the second request ends the process at once."""
        if self._stop.is_set():
            _log.warning("stopped by force")
            os._exit(_EXIT_FORCED)
        self._state = "stopping"
        self._stop.set()

    async def run(self, on_ready: Callable[[ServerInfo], None]) -> None:
        """Start, call `on_ready`, serve until `request_stop`, shut down cleanly."""
        desk = AdminDesk(self.health, self.info, self.troubles, self._clock)
        self.metrics.register("loop", desk.lag.samples)
        with lock_data_dir(Path(self._loaded.config.data_dir)), desk.lag.measured():
            if is_meta_only(self._loaded.config.node.roles):
                await self._run_meta(desk, on_ready)
                return
            async with (
                self._admin(desk) as admin_end,
                self._protocols() as protocols,
                self._clustered(),
                self._broker() as broker,
            ):
                if broker is not None and not self._stop.is_set():
                    cluster = self._sight()
                    async with (
                        self._audit(broker),
                        self._security(broker, desk) as (authenticator, tokens),
                        self._tracing(broker),
                        served(protocols, broker, authenticator, self.troubles),
                    ):
                        desk.open(
                            Opened(
                                broker=broker,
                                authenticator=authenticator,
                                tokens=tokens,
                                protocols={name: row.desk for name, row in protocols.items()},
                                loaded=self._loaded,
                                cluster=cluster,
                                pipelines=partial(
                                    pipeline_rows, Path(self._loaded.config.data_dir)
                                ),
                            )
                        )
                        self._watch(broker)
                        self._state = "running"
                        spare_the_collector()
                        on_ready(self.info())
                        await self._until_stop_or(admin_end)
                        if self._cluster is not None:
                            await self._cluster.leave()
                        await desk.close()
                if not self._stop.is_set():
                    raise Unavailable("the admin listener ended by itself")
                _log.info("stopping")
        _log.info("stopped", uptime_s=round(self._clock.monotonic() - self._started_at, 1))

    async def _run_meta(self, desk: AdminDesk, on_ready: Callable[[ServerInfo], None]) -> None:
        """A node that only runs a member of etcd: there is no broker, and no protocol."""
        async with self._admin(desk) as admin_end, self._clustered():
            self._state = "running"
            on_ready(self.info())
            await self._until_stop_or(admin_end)
        if not self._stop.is_set():
            raise Unavailable("the admin listener ended by itself")

    def _listening(self, listener: Listener, url: str) -> None:
        self._listeners.append(ListenerInfo(name=listener.name, address=listener.address, url=url))

    @contextlib.asynccontextmanager
    async def _admin(self, desk: AdminDesk) -> AsyncIterator[asyncio.Future[None]]:
        settings = self._loaded.config.listeners.admin
        if not settings.enabled:
            yield asyncio.get_running_loop().create_future()
            return
        listener = bind("admin", settings.host, settings.port)
        has_tls = bool(settings.tls.cert_file)
        self._listening(listener, f"http{'s' if has_tls else ''}://{listener.address}/")
        try:
            tls = (
                listener_tls(settings.tls, "listeners.admin.tls", self._clock) if has_tls else None
            )
            if tls is not None:
                tls.troubles = self.troubles
            server = HttpServer(
                listener,
                build_application(
                    desk,
                    self.metrics,
                    self._clock,
                    listener_is_loopback=listener.is_loopback,
                ),
                settings.connections_max,
                asks_who=True,
                tls=tls,
                body=BODY,
            )
            self.metrics.register("admin", server.samples)
            try:
                yield server.start()
            finally:
                await server.close()
        finally:
            listener.close()

    @contextlib.asynccontextmanager
    async def _protocols(self) -> AsyncIterator[dict[str, ProtocolServer]]:
        """The listeners of every protocol, bound; they are served once the broker is open."""
        servers: dict[str, ProtocolServer] = {}
        around = Surroundings(
            config=self._loaded.config,
            clock=self._clock,
            health=self.health,
            troubles=self.troubles,
            info=self.info,
        )
        async with contextlib.AsyncExitStack() as closing:
            for name, make in PROTOCOLS.items():
                server = make(around)
                closing.push_async_callback(server.close)
                server.bind()
                servers[name] = server
                for listener, url in server.listeners:
                    self._listening(listener, url)
                self.metrics.register(name, server.samples)
            yield servers

    @contextlib.asynccontextmanager
    async def _clustered(self) -> AsyncIterator[None]:
        """This node in its cluster, if there is one; it leaves after the broker has closed."""
        config = self._loaded.config
        if config.cluster.mode == "single":
            yield
            return
        from onelog.cluster_assembly import clustered  # noqa: PLC0415 - only where it is chosen

        def taken() -> None:
            if not self._stop.is_set():
                self.request_stop()

        async with clustered(config, self.troubles, taken) as self._cluster:
            yield

    def _sight(self) -> ClusterDesk | None:
        """What this node sees of its cluster, if there is one."""
        if self._cluster is None:
            return None
        sight = self._cluster.sight()
        self.metrics.register("cluster", sight.samples)
        return sight

    async def _open_broker(self) -> Broker:
        config, data_dir = self._loaded.config, Path(self._loaded.config.data_dir)
        settings = broker_settings(config)
        opening = (
            open_metadata(config, settings, self._clock, self.troubles)
            if self._cluster is None
            else self._cluster.open_metadata()
        )
        store = self._store = await opening
        try:
            nodes = None
            if self._cluster is not None:
                urls = {row.name: row.url for row in self._listeners}
                nodes = await self._cluster.nodes(reached_urls(config.listeners, urls))
            return await open_broker(
                data_dir,
                settings,
                self._clock,
                store=store,
                troubles=self.troubles,
                config=config,
                nodes=nodes,
            )
        except BaseException:
            await store.close()
            raise

    @contextlib.asynccontextmanager
    async def _broker(self) -> AsyncIterator[Broker | None]:
        opening = asyncio.create_task(self._open_broker())
        try:
            await self._until_stop_or(opening)
        finally:
            opening.cancel()  # does nothing when it is done
        broker = None
        try:
            broker = await opening
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            _log.info("stopped during recovery")
        try:
            yield broker
        finally:
            if broker is not None:
                await broker.close()
                if self._cluster is not None:
                    self._cluster.is_clean = True

    @contextlib.asynccontextmanager
    async def _audit(self, broker: Broker) -> AsyncIterator[None]:
        """The audit trail; it takes over what commands noted while no server ran."""
        chosen = self._loaded.config.audit
        trail = await AuditTrail.open(
            broker,
            self._clock,
            age_ms=chosen.retention_age_ms,
            size_bytes=chosen.retention_bytes,
        )
        self.metrics.register("audit", trail.samples)
        try:
            await take_kept(broker.store, trail)
            yield
        finally:
            await trail.close()

    @contextlib.asynccontextmanager
    async def _security(
        self, broker: Broker, desk: AdminDesk
    ) -> AsyncIterator[tuple[Authenticator, ApiTokens]]:
        """Who peers are, and the control socket, by which commands reach the running server."""
        assert self._store is not None
        chosen = self._loaded.config.security
        settings = security_settings(chosen)
        authenticator = await Authenticator.open(self._store, self._clock, settings, self.troubles)
        broker.access.know_users(authenticator)
        self.metrics.register("security", authenticator.samples)
        self.metrics.register("access", broker.access.samples)
        self.metrics.register("quotas", broker.client_quotas.samples)
        if not broker.access.rules:
            _log.info("there are no access rules: every user who is let in may do everything")
        tokens = ApiTokens(self._store, self._clock, self.troubles)

        defaults = self._loaded.config.defaults.stream
        commands = Commands(
            {
                user_commands.SUBJECT: partial(user_commands.run_command, authenticator.users),
                token_commands.SUBJECT: partial(token_commands.run_token_command, tokens),
                view_commands.SUBJECT: partial(view_commands.run_view_command, broker.views),
                stream_commands.SUBJECT: partial(
                    stream_commands.run_stream_command, broker, defaults
                ),
                access_commands.SUBJECT: partial(access_commands.run_access_command, broker.access),
                PASSES: partial(run_pass_command, desk.passes, self._admin_place),
                backup_commands.SUBJECT: partial(
                    backup_commands.run_backup_command, broker.backups
                ),
                quota_commands.SUBJECT: partial(
                    quota_commands.run_quota_command, broker.client_quotas
                ),
                ban_commands.SUBJECT: partial(ban_commands.run_ban_command, authenticator.bans),
                audit_reading.SUBJECT: partial(audit_reading.run_audit_command, broker),
            }
        )
        audited = AuditedCommands(commands, broker.audit)
        control = ControlServer(Path(self._loaded.config.data_dir), audited.run)
        try:
            await tokens.open()
            self._check_somebody(authenticator, tokens)
            await control.start()
            yield authenticator, tokens
        finally:
            await control.close()
            await tokens.close()
            await authenticator.close()

    @contextlib.asynccontextmanager
    async def _tracing(self, broker: Broker) -> AsyncIterator[None]:
        """Spans of traced messages, if the configuration names a collector."""
        config = self._loaded.config
        if not config.tracing.endpoint:
            yield
            return
        try:
            from onelog.observe.tracing import SpanSender  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError(
                f"tracing.endpoint is set, but OpenTelemetry is missing ({error}): install the "
                "extra, `pip install 'onelog[otel]'`, or leave the key empty"
            ) from error
        sender = SpanSender(
            config.tracing.endpoint, config.node.name, onelog.__version__, self.troubles
        )
        assert isinstance(broker.publisher, NotedPublisher)
        spans = broker.traces = Spans(sender, self._clock, self.troubles)
        live = broker.new_live("tracing")
        live.start(AppendSpans(spans, broker.publisher.write_times))
        self.metrics.register("tracing", spans.samples)
        self.metrics.register("trace export", sender.samples)
        try:
            yield
        finally:
            live.stop()
            await asyncio.to_thread(sender.close)

    def _admin_place(self) -> tuple[str, str]:
        """Where the admin API is, and the certificate that it shows."""
        url = next((row.url for row in self._listeners if row.name == "admin"), "")
        cert_file = self._loaded.config.listeners.admin.tls.cert_file
        return url, str(Path(cert_file).resolve()) if cert_file else ""

    def _check_somebody(self, authenticator: Authenticator, tokens: ApiTokens) -> None:
        """Refuse to be reachable by other machines when nobody could log in."""
        admin = self._loaded.config.listeners.admin
        if not admin.enabled or is_loopback(admin.host) or authenticator.has_users or len(tokens):
            return
        data_dir = self._loaded.config.data_dir
        raise ConfigError(
            f"listeners.admin.host = {admin.host!r} is reachable by other machines, and there is"
            " no user who could log in: make one first with"
            f" `onelog user add NAME --administrator --data {data_dir}`"
        )

    def _watch(self, broker: Broker) -> None:
        def stopped() -> str | None:
            names = [f"{row.stream}/{row.id}" for row in broker.stopped_partitions()]
            return f"stopped partitions: {', '.join(names[:10])}" if names else None

        self.health.register("partitions", stopped)
        self.metrics.register("broker", lambda: broker_samples(broker))
        self.metrics.register("store", broker.objects.samples)

    async def _until_stop_or(self, other: asyncio.Future[Any]) -> None:
        stop: asyncio.Future[bool] = asyncio.create_task(self._stop.wait())
        waiting: set[asyncio.Future[Any]] = {stop, other}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()

    def info(self) -> ServerInfo:
        """What this process is and where it listens."""
        config = self._loaded.config
        return ServerInfo(
            version=onelog.__version__,
            node_id=config.node.id,
            node_name=config.node.name,
            pid=os.getpid(),
            python=platform.python_version(),
            event_loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
            kernel="compiled" if kernel.COMPILED else "interpreted",
            kernel_warning=kernel_warning(),
            data_dir=config.data_dir,
            config_file=str(self._loaded.file) if self._loaded.file else None,
            started_ms=self._started_ms,
            uptime_s=round(self._clock.monotonic() - self._started_at, 3),
            listeners=tuple(self._listeners),
        )

    def _samples(self) -> Iterator[Sample]:
        info = self.info()
        sockets = chosen_backend(self._loaded.config.net.backend)
        labels = (("version", info.version), ("kernel", info.kernel), ("sockets", sockets))
        yield Sample("onelog_build_info", "What this process runs.", "gauge", 1, labels)
        yield Sample("onelog_uptime_seconds", "Seconds since the start.", "gauge", info.uptime_s)
        ready = float(self.health.ready().ok)
        yield Sample("onelog_ready", "Whether every readiness check passes.", "gauge", ready)

    def _disk_samples(self) -> Iterator[Sample]:
        disk = os.statvfs(self._loaded.config.data_dir)
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        yield Sample("onelog_disk_size_bytes", "Size of the data's disk.", "gauge", size)
        yield Sample("onelog_disk_free_bytes", "Free on the data's disk.", "gauge", free)


def serve(loaded: Loaded, on_ready: Callable[[ServerInfo], None]) -> None:
    """Run `onelog serve` in this process until SIGTERM or SIGINT."""
    configure_logging(loaded.config.log.level, loaded.config.log.format)
    if kernel_warning():
        _log.warning(kernel_warning())
    arm_from_environment(os.environ.get("ONELOG_FAULTS", ""))
    raise_open_files_limit(loaded.config.limits.open_files_max)
    reserve_descriptors()
    keep_freed_memory()
    share_the_interpreter()

    async def run() -> None:
        server = Server(loaded, SystemClock())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.request_stop)
        await server.run(on_ready)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  the server also runs where it cannot be built
    except ImportError:
        _log.warning("uvloop is not installed: the slower asyncio loop is used")
        return None
    return uvloop.new_event_loop
