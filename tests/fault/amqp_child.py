"""A process that serves AMQP on a data directory until it is killed; prints its port.

Usage: python tests/fault/amqp_child.py <data>. Nothing is saved by a timer, so that only what the
broker saves before it answers survives. `ONELOG_FAULTS` is armed when the first client may come;
SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from onelog.base import faults
from tests.support.amqp import serving


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(Path(sys.argv[1])) as node:
        faults.arm_from_environment(os.environ.get("ONELOG_FAULTS", ""))
        print(node.port, flush=True)  # noqa: T201
        await stop.wait()


asyncio.run(main())
