"""`onelog serve` in a thread of the test, with every protocol, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from onelog.app import Server
from onelog.base.clock import SystemClock
from onelog.config import load

READY_S = 60.0


class Served:
    """A server for the length of a block."""

    def __init__(self, path: Path, *chosen: str) -> None:
        self.path = path
        self._chosen = chosen
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.url = ""
        """Of the admin listener."""
        self.ports: dict[str, int] = {}

    def _run(self) -> None:
        async def run() -> None:
            names = ("admin", "mqtt", "kafka", "amqp")
            chosen = [f"listeners.{name}.port=0" for name in names]
            chosen += [f'data_dir="{self.path}"', 'defaults.stream.durability="os"', *self._chosen]
            self._server = Server(load(None, {}, chosen), SystemClock())
            self._loop = asyncio.get_running_loop()
            await self._server.run(self._on_ready)

        asyncio.run(run())

    def _on_ready(self, info) -> None:
        self.ports = {row.name: int(row.address.rpartition(":")[2]) for row in info.listeners}
        self.url = f"http://127.0.0.1:{self.ports['admin']}"
        self._ready.set()

    def __enter__(self) -> Served:
        self.begin()
        self.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def begin(self) -> None:
        """Start; a node of a new cluster is ready only when others have started."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is ready."""
        assert self._ready.wait(READY_S)

    def stop(self) -> None:
        """End it in order. Idempotent."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._server.request_stop)
        self._thread.join(READY_S)
        assert not self._thread.is_alive()
