"""A process that serves MQTT on a data directory until it is killed; prints its port.

Usage: python tests/fault/mqtt_child.py <data>. Nothing is saved by a timer, so that only what the
broker saves before it answers survives. `ONELOG_FAULTS` is armed when the first client may come.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from onelog.base import faults
from tests.support.mqtt import serving


async def main() -> None:
    async with serving(Path(sys.argv[1])) as node:
        faults.arm_from_environment(os.environ.get("ONELOG_FAULTS", ""))
        print(node.port, flush=True)  # noqa: T201
        await asyncio.Event().wait()


asyncio.run(main())
