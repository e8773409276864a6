"""Internal streams that keep rows: read as a whole, partitioned by what the rows belong to.

Rules:
- Damage is never taken for emptiness (I9). Whoever cannot read all of it raises StateUnknown, which
  every protocol tells as "try again later"; what was kept stays on the disk as it is, and nothing
  is written behind it.
- All that belongs to one name (a client, a group, a cursor) lies in one partition, so that it is in
  order and can be written as one batch. How many partitions there are is fixed when the data
  directory is made: with another number the names would lie elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final

from onelog.base.errors import (
    ConfigError,
    CorruptBatch,
    OnelogError,
    PartitionStopped,
    StateUnknown,
)
from onelog.base.ids import Offset
from onelog.kernel import BatchInfo, Slices
from onelog.log.config import Cleanup, Retention, StreamConfig
from onelog.log.handle import PartitionHandle
from onelog.log.stream import Stream
from onelog.metadata.once import written_once
from onelog.metadata.store import MetadataStore
from onelog.record.batch import iterate_batches

if TYPE_CHECKING:
    from onelog.log.catalog import Catalog

_READ_BYTES: Final = 4 * 1024 * 1024
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_PARTITIONS: Final = "internal/partitions"


async def fix_partitions(store: MetadataStore, wanted: int, *, is_new: bool) -> int:
    """How many partitions internal streams have: `wanted` if the data directory is new.

    Raises ConfigError when the directory has another number.
    """
    # A version that wrote no number made one partition each.
    made = int(await written_once(store, _PARTITIONS, b"%d" % (wanted if is_new else 1)))
    if made != wanted:
        raise ConfigError(
            f"internal.partitions = {wanted}, but this data directory was made with {made}, which"
            f" cannot change: set internal.partitions = {made}, or choose an empty data directory"
        )
    return wanted


async def internal_stream(catalog: Catalog, name: str) -> Stream:
    """The internal stream of a name, compacted by key; it is created on the first start."""
    return catalog.find(name) or await catalog.create(
        StreamConfig(
            name=name,
            partitions=catalog.internal_partitions,
            cleanup=Cleanup.COMPACT,
            retention=Retention(age_ms=-1),
            segment_bytes=_SEGMENT_BYTES,
        )
    )


def not_known(partition: PartitionHandle, error: OnelogError) -> StateUnknown:
    """The error of whoever needs what a damaged internal stream keeps."""
    return StateUnknown(
        f"what {partition.stream} keeps is not known, and nothing is guessed: {error}"
    )


def check_known(partition: PartitionHandle) -> None:
    """Raise StateUnknown when an internal stream is stopped."""
    if partition.stopped is not None:
        raise not_known(partition, partition.stopped)


async def kept_batches(partition: PartitionHandle) -> AsyncIterator[tuple[BatchInfo, Slices]]:
    """Every batch that is visible, checked; others have a turn in between.

    Raises StateUnknown where one is damaged, and stops the partition.
    """
    check_known(partition)
    offset = partition.start_offset
    while offset < partition.high_watermark:
        try:
            data = partition.in_place(partial(partition.read_now, offset, _READ_BYTES))
            for info, slices in iterate_batches(data):
                yield info, slices
                offset = Offset(info.last_offset + 1)
        except CorruptBatch as error:
            raise not_known(partition, partition.stop_damaged(offset, error)) from error
        except PartitionStopped as error:
            raise not_known(partition, error) from error
        await asyncio.sleep(0)
