"""Reading replicas after an election: what an earlier owner had seen is to be visible here, too.

Rules: a replica learns the high watermark a moment after its leader. An owner that acts before that
may hand out again what the earlier one had handed out and settled. Every record that anybody saw is
in each in-sync replica. So the wait is for what this node held when it was elected. It has an end:
a partition that lacks replicas would keep all names of a shard from being served, and to hand out
twice is better then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset

if TYPE_CHECKING:
    from onelog.log.handle import PartitionHandle
    from onelog.log.stream import Stream

WAIT_S: Final = 2.0
"""How long a shard waits at most."""


async def until_visible(streams: Iterable[Stream], timeout_s: float = WAIT_S) -> None:
    """Wait until all that these streams hold now is visible here, or was cut off."""
    behind = [
        asyncio.ensure_future(_until_visible(partition, int(partition.end_offset)))
        for stream in streams
        for partition in stream.partitions
        if partition.high_watermark < partition.end_offset
    ]
    if not behind:
        return
    try:
        await asyncio.wait(behind, timeout=timeout_s)
    finally:
        for task in behind:
            task.cancel()


async def _until_visible(partition: PartitionHandle, end: int) -> None:
    while partition.stopped is None:
        end = min(end, int(partition.end_offset))
        if partition.high_watermark >= end:
            return
        try:
            await partition.wait_visible(Offset(end - 1))
        except OnelogError:  # it was cut, or its leader changed: look again
            await asyncio.sleep(0)
