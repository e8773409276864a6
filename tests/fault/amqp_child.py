"""A process that serves AMQP on a data directory until it is killed; prints its port.

Nothing is saved by a timer, so that only what the broker saves before it answers survives; a child
that is `tidy` has small segments and looks all the time whether something can leave. Its faults are
armed when the first client may come; SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec

from onelog.base import faults
from onelog.config.streams import StreamDefaults
from onelog.observe import configure_logging
from tests.support.amqp import serving
from tests.support.brokers import FAST

TIDY = msgspec.structs.replace(FAST, maintenance_interval_s=0.05)
SMALL = StreamDefaults(segment_bytes=64 * 1024)


async def _serve(data: Path, plan: str, tidy: bool) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings, streams = (TIDY, SMALL) if tidy else (FAST, StreamDefaults())
    async with serving(data, settings=settings, streams=streams) as node:
        faults.arm_from_environment(plan)
        print(node.port, flush=True)  # noqa: T201
        await stop.wait()


def run(data: Path, plan: str, tidy: bool) -> None:
    configure_logging("warning", "json")
    asyncio.run(_serve(data, plan, tidy))
