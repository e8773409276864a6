"""A broker in a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.mqtt import DEADLINE_S, Client, connect

ROOT = Path(__file__).resolve().parents[2]
CHILD = ROOT / "tests" / "fault" / "mqtt_child.py"


class Server:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    async def client(self, client_id: str, **options) -> Client:
        return await connect(self.port, client_id, **options)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def running(path: Path, fault: str = "") -> AsyncIterator[Server]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "ONELOG_FAULTS": fault,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), str(path), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    server = Server(process, 0)
    try:
        async with asyncio.timeout(DEADLINE_S):
            server.port = int(await process.stdout.readline())
        yield server
    finally:
        await server.kill()
        # Its end of the pipe may come after it: a transport that is open when the loop closes is a
        # warning later, in a test that has nothing to do with it.
        async with asyncio.timeout(DEADLINE_S):
            await process.stdout.read()
        process._transport.close()
