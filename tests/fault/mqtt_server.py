"""A broker in a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.fault import mqtt_child
from tests.support.forks import Fork
from tests.support.mqtt import DEADLINE_S, Client, connect

BACKEND = "auto"
"""What serves plain TCP, as `net.backend` names it."""


class Server:
    def __init__(self, process: Fork) -> None:
        self._process = process
        self.port = 0
        self.clients: list[Client] = []

    async def client(self, client_id: str, **options) -> Client:
        """A connected client; it is dropped at the end, also of a test that failed."""
        self.clients.append(await connect(self.port, client_id, **options))
        return self.clients[-1]

    async def wait(self) -> None:
        """Until it has ended."""
        await asyncio.to_thread(self._process.wait, DEADLINE_S)

    async def kill(self) -> None:
        self._process.kill()
        await self.wait()


@contextlib.asynccontextmanager
async def running(path: Path, fault: str = "") -> AsyncIterator[Server]:
    process = await asyncio.to_thread(Fork, mqtt_child.run, path, fault, BACKEND)
    server = Server(process)
    try:
        async with asyncio.timeout(DEADLINE_S):
            server.port = int(await asyncio.to_thread(process.stdout.readline))
        yield server
    finally:
        await server.kill()
        process.stdout.close()
        for client in server.clients:
            await client.drop()
