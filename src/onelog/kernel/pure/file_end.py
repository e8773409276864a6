"""The end of a log that grows, interpreted: where the next batch goes, and whether it may.

Rules: `append_built` writes a batch if nothing else has to come first: a new segment, an index that
is loaded, a file that is opened, space that is reserved, a fault that a test injects. Otherwise it
returns None with nothing changed, and the caller takes the long way, which does all of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from onelog.base import faults
from onelog.base.clock import Clock
from onelog.base.errors import PartitionStopped
from onelog.kernel.types import RAW_TOPIC_BYTES_MAX, RAW_TOPICS_MAX, REL_MAX

if TYPE_CHECKING:
    from onelog.kernel.pure.build import BatchBuilder


class FileEnd:
    """Where the next batch of a log file goes."""

    __slots__ = (
        "base_offset", "created_ms", "indexes", "last_batch_at", "max_timestamp_ms", "note_at",
        "reserved_bytes", "settings", "size_bytes", "writer",
    )  # fmt: skip

    base_offset: int
    size_bytes: int
    last_batch_at: int
    max_timestamp_ms: int
    created_ms: int
    reserved_bytes: int
    note_at: int
    """From this size on, a sync has more to do than to sync."""
    indexes: Any
    """`live` gets an entry for each batch from `live.next_at` on; `tail.raw` gets the topics, if
    there is a `tail`. If one of them is full, `save` writes both."""
    settings: Any
    """The bounds of the file, as `LogSettings` has them."""
    writer: Any
    """Has the open `file`, and notes that the file was used and is dirty."""

    def append_built(
        self,
        builder: BatchBuilder,
        base_offset: int,
        leader_epoch: int,
        index_topics: bool,
        at_ms: int,
    ) -> bytes | None:
        """Seal, write and note the staged records; None, with nothing done: take the long way."""
        indexes, writer, settings = self.indexes, self.writer, self.settings
        live, topics = indexes.live, indexes.tail
        at, rel, size = self.size_bytes, base_offset - self.base_offset, builder.size_bytes
        if at == 0 or live is None or writer is None or faults.armed:
            return None
        file = writer.file
        if (
            file is None
            or (topics is not None and not index_topics)
            or at + size > self.reserved_bytes
            or at + size > settings.segment_bytes
            or rel + builder.count > REL_MAX
            or not 0 <= at_ms - self.created_ms < settings.segment_age_ms
        ):
            return None
        pairs = b"" if topics is None else builder.topics()
        highest = max(self.max_timestamp_ms, builder.max_timestamp_ms)
        data = builder.seal(base_offset, leader_epoch)
        writer.used = writer.dirty = True
        try:
            file.write(data, at)
        except OSError:
            # Recovery must not find half of a failed append behind a later, shorter one.
            file.cut(at)
            self.reserved_bytes = at
            raise
        is_full = at >= live.next_at and live.add(rel, at, highest, settings.index_interval_bytes)
        if pairs:
            topics.raw.append((pairs, rel))
            waiting = sum(len(row[0]) for row in topics.raw)
            if len(topics.raw) >= RAW_TOPICS_MAX or waiting > RAW_TOPIC_BYTES_MAX:
                is_full |= topics.absorb()
        if is_full:
            indexes.save()
        self.max_timestamp_ms = highest
        self.last_batch_at = at
        self.size_bytes = at + size
        return data


class LogEnd:
    """Where the next batch of a partition's log goes."""

    __slots__ = (
        "active", "clock", "closed", "directory_dirty", "durable", "end", "frozen", "lock",
        "maintenance", "stopped", "unsaved_bytes", "unsynced",
    )  # fmt: skip

    lock: Any
    """Guards this state; never held while the disk syncs."""
    stopped: PartitionStopped | None
    closed: bool
    frozen: bool
    """A truncation is running: nothing may be appended."""
    end: int
    durable: int
    """Every record below it survives power loss."""
    unsynced: list[Any]
    """Segments that were sealed since the last sync."""
    directory_dirty: bool
    """A segment's file was made since the last sync."""
    maintenance: Any
    """The gate that is closed while a sync is under way."""
    unsaved_bytes: int
    """Bytes that were appended since the checkpoint was written."""
    active: Any
    """The `FileEnd` of the segment that grows."""
    clock: Clock

    def append_built(
        self, builder: BatchBuilder, leader_epoch: int, index_topics: bool
    ) -> bytes | None:
        """Append the staged records as one batch; None, with nothing done: take the long way."""
        with self.lock:
            if self.stopped is not None or self.closed or self.frozen:
                return None
            count, at_ms = builder.count, self.clock.now_ms()
            try:
                data: bytes | None = self.active.append_built(
                    builder, self.end, leader_epoch, index_topics, at_ms
                )
            except OSError as error:
                self.failed("append", error)
            if data is not None:
                self.unsaved_bytes += len(data)
                self.end += count
            return data

    def failed(self, what: str, error: OSError) -> NoReturn:
        """Turn an error of the system into one of ours."""
        raise NotImplementedError

    def sync_failed(self, error: int) -> None:
        """Stop, because a sync failed with this error number."""
        raise NotImplementedError
