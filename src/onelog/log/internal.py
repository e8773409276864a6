"""Reading an internal stream as a whole: state that is kept in it is known, or it is an error.

Rules: damage is never taken for emptiness (I9). Whoever cannot read all of it raises StateUnknown,
which every protocol tells as "try again later"; what was kept stays on the disk as it is, and
nothing is written behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from onelog.base.errors import CorruptBatch, OnelogError, PartitionStopped, StateUnknown
from onelog.base.ids import Offset
from onelog.kernel import BatchInfo, Slices
from onelog.log.partition import Partition
from onelog.record.batch import iterate_batches

_READ_BYTES: Final = 4 * 1024 * 1024


def not_known(partition: Partition, error: OnelogError) -> StateUnknown:
    """The error of whoever needs what a damaged internal stream keeps."""
    return StateUnknown(
        f"what {partition.stream} keeps is not known, and nothing is guessed: {error}"
    )


def check_known(partition: Partition) -> None:
    """Raise StateUnknown when an internal stream is stopped."""
    if partition.stopped is not None:
        raise not_known(partition, partition.stopped)


async def kept_batches(partition: Partition) -> AsyncIterator[tuple[BatchInfo, Slices]]:
    """Every batch that is visible, checked; others have a turn in between.

    Raises StateUnknown where one is damaged, and stops the partition.
    """
    check_known(partition)
    offset = partition.start_offset
    while offset < partition.high_watermark:
        try:
            for info, slices in iterate_batches(partition.read(offset, _READ_BYTES)):
                yield info, slices
                offset = Offset(info.last_offset + 1)
        except CorruptBatch as error:
            raise not_known(partition, partition.stop_damaged(offset, error)) from error
        except PartitionStopped as error:
            raise not_known(partition, error) from error
        await asyncio.sleep(0)
