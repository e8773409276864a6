"""Freezes the log for a backup: one cut across all partitions, and links to the files below it.

Rules:
- The cut is made in one pass of the event loop: each partition ends at its high watermark of that
  moment. Everything visible then is in, nothing else. So no cursor, group, queue or transaction in
  the internal streams can know of a record that is not in the backup.
- Among several nodes the cut is made where one node leads every partition: copies are behind their
  leaders, each by another lag, and a cursor's state could name records that the cut has not.
  Elsewhere a backup is refused (I9).
- The metadata is copied before the cut, and the copy is made again while it changed in between. If
  it keeps changing, the older copy stays: metadata may be behind the log, never ahead of it.
- Nothing leaves the log from before the cut until every link is made (`log/holding.py`).
- Streams of the engine `object` have no files here: a copy of the bucket is their backup. They are
  left out, and named.
- Streams in memory have no files; they begin empty after a restore as after any start. A stopped
  partition is left out, and named.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from onelog.backup.manifest import BackupPartition
from onelog.base.errors import Conflict, NotLeader
from onelog.base.ids import Offset, PartitionId
from onelog.log.catalog import Catalog
from onelog.log.partition import Partition
from onelog.log.stream import Stream
from onelog.metadata.store import MetadataStore
from onelog.storage.engine import Engine, PartitionKey, lies_in_store

METADATA: Final = "metadata.db"
_TRIES: Final = 5


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """The log as of one moment."""

    point_ms: int
    streams: int
    partitions: tuple[BackupPartition, ...]
    files: dict[str, int]
    """Names below the folder, and how many bytes of each count."""
    left_out: tuple[str, ...]


class _Cut(msgspec.Struct, frozen=True):
    point_ms: int
    streams: int
    rows: list[BackupPartition]
    left_out: list[str]


async def freeze(
    catalog: Catalog, engines: Mapping[str, Engine], store: MetadataStore, into: Path
) -> Frozen:
    """Let the data directory as of now appear in a new folder on the same file system."""
    hold = catalog.shared.hold
    await asyncio.to_thread(partial(into.mkdir, parents=True))
    await asyncio.to_thread(hold.hold)
    try:
        cut = await _stable_cut(catalog, engines, store, into)
        files = await asyncio.to_thread(partial(_link, engines, cut.rows, into))
    finally:
        hold.release()
    return Frozen(
        point_ms=cut.point_ms,
        streams=cut.streams,
        partitions=tuple(cut.rows),
        files=files,
        left_out=tuple(cut.left_out),
    )


async def _stable_cut(
    catalog: Catalog, engines: Mapping[str, Engine], store: MetadataStore, into: Path
) -> _Cut:
    """A cut at which the metadata was as its copy is, or a little later."""
    for tries_left in reversed(range(_TRIES)):
        revision = await store.snapshot(into / METADATA)
        cut = _cut(catalog, engines)
        if not tries_left or (await store.range(METADATA, 1)).revision == revision:
            return cut
    raise AssertionError("the last try returns")


def _cut(catalog: Catalog, engines: Mapping[str, Engine]) -> _Cut:
    """On the loop, without a wait: where every partition ends."""
    cut = _Cut(catalog.shared.clock.now_ms(), 0, [], [])
    streams = [row for row in catalog.streams() if not engines[row.record.config.engine].volatile]
    if catalog.hosting.is_shared:
        _check_led(streams)
    for stream in streams:
        if lies_in_store(engines[stream.record.config.engine]):
            cut.left_out.append(f"{stream.name}: it lies in the object store; copy the bucket")
            continue
        for partition in stream.local:
            if partition.stopped is not None:
                cut.left_out.append(f"{partition.place}: {partition.stopped}")
                continue
            cut.rows.append(
                BackupPartition(
                    stream.name,
                    stream.record.id,
                    int(partition.id),
                    stream.record.config.engine,
                    stream.is_internal,
                    int(partition.start_offset),
                    int(partition.high_watermark),
                )
            )
    return msgspec.structs.replace(cut, streams=len(streams))


def _check_led(streams: Sequence[Stream]) -> None:
    """Raise Conflict unless this node leads every partition."""
    logs = [log for stream in streams for log in stream.local]
    elsewhere = [log for log in logs if not _is_led(log)]
    if not elsewhere:
        return
    missing = [log for log in elsewhere if isinstance(log.stopped, NotLeader)]
    if missing:
        raise Conflict(
            f"this node has no copy of {len(missing)} partitions, such as {missing[0].place}: a"
            " backup of a cluster is made at a node that has one of each"
            " (`onelog cluster partitions`)"
        )
    raise Conflict(
        f"this node does not lead {len(elsewhere)} of {len(logs)} partitions, such as"
        f" {elsewhere[0].place}: a backup of a cluster is made at a node that leads all of them."
        " Drain the others with `onelog cluster drain`, make the backup, then `drain --undo`"
    )


def _is_led(log: Partition) -> bool:
    is_leader = log.stopped is None and not isinstance(log.refusal, NotLeader)
    return is_leader and log.is_fresh and log.is_settled


def _link(engines: Mapping[str, Engine], rows: list[BackupPartition], into: Path) -> dict[str, int]:
    cuts: defaultdict[str, dict[PartitionKey, Offset]] = defaultdict(dict)
    for row in rows:
        key = PartitionKey(row.stream_id, PartitionId(row.partition))
        cuts[row.engine][key] = Offset(row.end)
    files = {METADATA: (into / METADATA).stat().st_size}
    for name, engine in engines.items():
        if cuts[name]:
            for path, size_bytes in engine.freeze(cuts[name], into / name).items():
                files[f"{name}/{path}"] = size_bytes
    return files
