"""A process that serves AMQP on a data directory until it is killed; prints its port.

Nothing is saved by a timer, so that only what the broker saves before it answers survives. Its
faults are armed when the first client may come; SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from onelog.base import faults
from tests.support.amqp import serving


async def _serve(data: Path, plan: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(data) as node:
        faults.arm_from_environment(plan)
        print(node.port, flush=True)  # noqa: T201
        await stop.wait()


def run(data: Path, plan: str) -> None:
    asyncio.run(_serve(data, plan))
