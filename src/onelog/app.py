"""The composition root: puts the floors together and runs them until a signal says stop.

Rules: the only module that names the event loop. Start: lock the data directory, bind every port,
answer health probes, recover the broker, then say "ready". Stop: the same backwards, so that
everything acknowledged is on disk before the lock goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import onelog
from onelog import kernel
from onelog.admin.contract import BrokerView, ListenerInfo, ServerInfo
from onelog.admin.endpoints import Endpoints
from onelog.admin.server import AdminServer
from onelog.base.clock import Clock, SystemClock
from onelog.base.errors import ConfigError, DataDirLocked, StorageError, Unavailable
from onelog.base.faults import arm_from_environment
from onelog.config import Config, Loaded
from onelog.net import Listener, bind
from onelog.observe import Health, Registry, Sample, configure_logging, get_logger

_log = get_logger("app")

_EXIT_FORCED: Final = 130


class RunningBroker(BrokerView, Protocol):
    """The broker as the process sees it."""

    async def close(self) -> None:
        """Flush, write the clean marker, let go of the data."""
        ...


async def open_broker(config: Config, clock: Clock) -> RunningBroker | None:
    """Open the broker over its storage engines; None while the package has no broker."""
    del config, clock
    return None


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Hold the data directory for this process; a second holder is refused with the first's pid."""
    file = data_dir / "lock"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"data_dir = {str(data_dir)!r} cannot be used: {error.strerror}; choose another one "
            "with --data DIR"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise DataDirLocked(
                f"data directory {str(data_dir)!r} is in use by OneLog process {holder}; "
                "stop it, or choose another directory with --data DIR"
            ) from None
        except OSError as error:
            raise StorageError(f"{file} cannot be locked: {error.strerror}") from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # lets go of the lock; the file stays, deleting it would race


class Server:
    """One running process: its listeners, its broker, and what it says about itself."""

    def __init__(self, loaded: Loaded, clock: Clock) -> None:
        self._loaded = loaded
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._started_at = clock.monotonic()
        self._state = "starting"
        self._listeners: list[Listener] = []
        self._stop = asyncio.Event()
        self.health = Health()
        self.health.register("state", lambda: None if self._state == "running" else self._state)
        self.metrics = Registry()
        self.metrics.register("process", self._samples)

    def request_stop(self) -> None:
        """Begin a clean shutdown; the second request ends the process at once."""
        if self._stop.is_set():
            _log.warning("stopped by force")
            os._exit(_EXIT_FORCED)
        self._state = "stopping"
        self._stop.set()

    async def run(self, on_ready: Callable[[ServerInfo], None]) -> None:
        """Start, call `on_ready`, serve until `request_stop`, shut down cleanly."""
        with lock_data_dir(Path(self._loaded.config.data_dir)):
            endpoints = Endpoints(self.health, self.metrics, self.info)
            async with self._admin(endpoints) as admin_end, self._broker() as broker:
                if not self._stop.is_set():
                    endpoints.broker = broker
                    self._state = "running"
                    on_ready(self.info())
                    await self._until_stop_or(admin_end)
                    endpoints.broker = None
                if not self._stop.is_set():
                    raise Unavailable("the admin listener ended by itself")
                _log.info("stopping")
        _log.info("stopped", uptime_s=round(self._clock.monotonic() - self._started_at, 1))

    @contextlib.asynccontextmanager
    async def _admin(self, endpoints: Endpoints) -> AsyncIterator[asyncio.Future[None]]:
        settings = self._loaded.config.listeners.admin
        if not settings.enabled:
            yield asyncio.get_running_loop().create_future()
            return
        listener = bind("admin", settings.host, settings.port)
        self._listeners.append(listener)
        try:
            server = AdminServer(listener, endpoints, settings.connections_max)
            try:
                yield server.start()
            finally:
                await server.close()
        finally:
            listener.close()

    @contextlib.asynccontextmanager
    async def _broker(self) -> AsyncIterator[RunningBroker | None]:
        opening = asyncio.create_task(open_broker(self._loaded.config, self._clock))
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
            data_dir=config.data_dir,
            config_file=str(self._loaded.file) if self._loaded.file else None,
            started_ms=self._started_ms,
            uptime_s=round(self._clock.monotonic() - self._started_at, 3),
            listeners=tuple(
                ListenerInfo(name=item.name, address=item.address) for item in self._listeners
            ),
        )

    def _samples(self) -> Iterator[Sample]:
        info = self.info()
        labels = (("version", info.version), ("kernel", info.kernel))
        yield Sample("onelog_build_info", "What this process runs.", "gauge", 1, labels)
        yield Sample("onelog_uptime_seconds", "Seconds since the start.", "gauge", info.uptime_s)
        ready = float(self.health.ready().ok)
        yield Sample("onelog_ready", "Whether every readiness check passes.", "gauge", ready)


def serve(loaded: Loaded, on_ready: Callable[[ServerInfo], None]) -> None:
    """Run `onelog serve` in this process until SIGTERM or SIGINT."""
    configure_logging(loaded.config.log.level, loaded.config.log.format)
    arm_from_environment(os.environ.get("ONELOG_FAULTS", ""))
    raise_open_files_limit(loaded.config.limits.open_files_max)

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


def raise_open_files_limit(wanted: int) -> None:
    """Lift the soft limit of open files towards `wanted`: every open segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
