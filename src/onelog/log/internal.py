"""Internal streams that keep rows: read as a whole, partitioned by the name that a row belongs to.

Rules:
- Damage is never taken for emptiness (I9). A caller that cannot read all of the rows raises
  StateUnknown, which every protocol turns into "try again later". The rows stay on the disk as they
  are, and nothing is written behind them.
- All rows of one name (a client, a group, a cursor) lie in one partition, so that they are in order
  and can be written as one batch. The number of partitions, and the hash that gives a name its
  partition, are fixed when the data directory is made: otherwise names would change partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from onelog.base.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    CorruptBatch,
    NotLeader,
    NotOwner,
    OnelogError,
    PartitionStopped,
    StateUnknown,
    StorageError,
    StreamNotFound,
    Timeout,
)
from onelog.base.ids import Offset
from onelog.kernel import BatchInfo, Slices, topic_hash
from onelog.log.config import Cleanup, Retention, StreamConfig
from onelog.log.handle import PartitionHandle
from onelog.log.stream import Stream
from onelog.metadata.once import written_once
from onelog.metadata.store import MetadataStore
from onelog.record.batch import iterate_batches

if TYPE_CHECKING:
    from onelog.log.catalog import Catalog

_TRIES: Final = 5
"""Reads that fail in a way that may pass, one second apart, before a start gives up."""
_RETRY_S: Final = 0.1
_READ_BYTES: Final = 4 * 1024 * 1024
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_PARTITIONS: Final = "internal/partitions"


_MIXED: Final = b"mixed"
"""Beside the number: names are spread by `mixed_hash`."""
_OWNED: Final = b"owned"
"""Beside it: a cursor lies with the name that owns it, such as the client of a session."""


def mixed_hash(name: bytes) -> int:
    """A u32 in which each bit depends on each bit of a name.

    The topic's hash is a CRC: a few low bits of it say little about names that are much alike.
    """
    mixed = topic_hash(name)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return mixed ^ mixed >> 16


class Placement(NamedTuple):
    """In which partition of an internal stream the rows of a name lie."""

    partitions: int = 1
    hash: Callable[[bytes], int] = mixed_hash
    by_owner: bool = True
    """Whether a cursor lies in the shard of the name that owns it. False: in that of its own name,
    as an older version wrote it."""

    def shard(self, name: bytes) -> int:
        """The shard of a name: the number of its partition in every internal stream."""
        return 0 if self.partitions == 1 else self.hash(name) % self.partitions

    def home(self, stream: Stream, name: bytes) -> PartitionHandle:
        """The partition of a name."""
        handles = stream.partitions
        return handles[0] if len(handles) == 1 else handles[self.hash(name) % len(handles)]


async def fix_placement(store: MetadataStore, wanted: int, *, is_new: bool) -> Placement:
    """Where rows lie: in `wanted` partitions if the data directory is new.

    Raises ConfigError when the directory has another number.
    """
    # A version that wrote no number gave each stream one partition.
    fresh = b"%d %s %s" % (wanted, _MIXED, _OWNED) if is_new and wanted > 1 else b"1"
    number, *how = (await written_once(store, _PARTITIONS, fresh)).split(b" ")
    made = int(number)
    if made != wanted:
        raise ConfigError(
            f"internal.partitions = {wanted}, but this data directory was made with {made}, which"
            f" cannot change: set internal.partitions = {made}, or choose an empty data directory"
        )
    return Placement(
        made, mixed_hash if _MIXED in how else topic_hash, by_owner=made == 1 or _OWNED in how
    )


async def internal_stream(catalog: Catalog, name: str) -> Stream:
    """The internal stream of this name, compacted by key. It is created at the first start."""
    known = catalog.find(name)
    if known is not None:
        return known
    config = StreamConfig(
        name=name,
        partitions=catalog.placement.partitions,
        cleanup=Cleanup.COMPACT,
        retention=Retention(age_ms=-1),
        segment_bytes=_SEGMENT_BYTES,
    )
    return await made_once(catalog, config)


async def made_once(catalog: Catalog, config: StreamConfig) -> Stream:
    """A stream of the broker's own, made by whichever node is first."""
    while True:
        try:
            return await catalog.create(config)
        except (AlreadyExists, Conflict):  # another node was faster
            with contextlib.suppress(StreamNotFound):  # it could not carry it through
                stream = await catalog.adopted(config.name)
                with contextlib.suppress(Timeout):  # as for the node that made it
                    await catalog.hosting.until_led(stream.record)
                return stream
            await asyncio.sleep(_RETRY_S)


def not_known(partition: PartitionHandle, error: OnelogError) -> StateUnknown:
    """The error for a caller that needs the rows of a damaged internal stream."""
    return StateUnknown(
        f"what {partition.stream} keeps is not known, and nothing is guessed: {error}"
    )


def check_known(partition: PartitionHandle) -> None:
    """Raise StateUnknown when an internal stream is stopped, NotOwner when it lies elsewhere."""
    if isinstance(partition.stopped, NotLeader):
        raise NotOwner(str(partition.stopped))
    if partition.stopped is not None:
        raise not_known(partition, partition.stopped)


async def rows_there(partition: PartitionHandle) -> None:
    """Wait until everything that an earlier leader may have answered is visible here.

    A new leader has all of it, but knows a high watermark that may be older. Raises what a wait for
    visibility raises when the partition is lost meanwhile.
    """
    check_known(partition)
    end = partition.end_offset
    if partition.high_watermark < end:
        await partition.wait_visible(Offset(end - 1))


async def kept_batches(partition: PartitionHandle) -> AsyncIterator[tuple[BatchInfo, Slices]]:
    """Every visible batch, checked. Other tasks get a turn between batches.

    Raises StateUnknown at a damaged batch, and stops the partition.
    """
    check_known(partition)
    offset = partition.start_offset
    while offset < partition.high_watermark:
        try:
            data = await _read(partition, offset)
            for info, slices in iterate_batches(data):
                yield info, slices
                offset = Offset(info.last_offset + 1)
        except CorruptBatch as error:
            raise not_known(partition, partition.stop_damaged(offset, error)) from error
        except PartitionStopped as error:
            raise not_known(partition, error) from error
        await asyncio.sleep(0)


async def _read(partition: PartitionHandle, offset: Offset) -> memoryview:
    """Batches from an offset on; a failure that may pass is tried again some times."""
    for left in reversed(range(_TRIES)):
        try:
            return await partition.until_here(partial(partition.read_now, offset, _READ_BYTES))
        except StorageError as error:
            if isinstance(error, PartitionStopped) or not left:
                raise
    raise AssertionError("the last try returns or raises")
