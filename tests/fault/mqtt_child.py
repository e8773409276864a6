"""A process that serves MQTT on a data directory until it is killed; prints its port.

Nothing is saved by a timer, so that only what the broker saves before it answers survives. Its
faults are armed when the first client may come.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from onelog.base import faults
from onelog.observe import configure_logging
from tests.support.listening import ring_from
from tests.support.mqtt import serving


async def _serve(data: Path, plan: str, backend: str) -> None:
    async with serving(data, backend=backend) as node:
        faults.arm_from_environment(plan)
        print(node.port, flush=True)  # noqa: T201
        await asyncio.Event().wait()


def run(data: Path, plan: str, backend: str) -> None:
    configure_logging("warning", "json")
    with ring_from(1):
        asyncio.run(_serve(data, plan, backend))
