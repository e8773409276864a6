"""Streams of a bucket that this broker does not have: made again from their manifests alone.

Rules: nothing is fetched but manifests and the state of each last piece; batches come when they are
read. A stream whose name exists here is left alone, except for a `main` that never held a record.
Transactions that were open where the bucket ends are aborted: nobody else could end them. What was
only on the lost disk is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from onelog.base.errors import ColdDamaged, OnelogError
from onelog.base.ids import Offset
from onelog.log.catalog import Catalog
from onelog.log.config import check_config
from onelog.log.stream import Stream, StreamRecord
from onelog.objects.manifest import Manifest
from onelog.record.batch import Marker
from onelog.storage.engine import PartitionKey

MAIN: Final = "main"


class StoredPart(Protocol):
    """A partition that a bucket holds."""

    @property
    def key(self) -> PartitionKey:
        """Which partition."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Its newest manifest."""
        ...

    @property
    def stream(self) -> bytes:
        """The stream's record (JSON)."""
        ...


_decoder: Final = msgspec.json.Decoder(StreamRecord)

RestoreOne = Callable[[Any], Offset]
"""In a thread: makes one partition; where it goes on."""
ListStored = Callable[[], Iterator[StoredPart]]
"""In a thread: the partitions of a bucket."""


class BucketStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a bucket, and what a restore did with it."""

    stream: str
    partitions: int
    """Of which the bucket holds something."""
    offsets: int
    """Offsets between their starts and ends."""
    cold_bytes: int
    outcome: Literal["restored", "found", "exists", "damaged"]
    """`found`: it would be restored; `exists`: a stream of this name is here."""
    why: str = ""


class Stored(NamedTuple):
    """A stream of a bucket."""

    record: StreamRecord
    parts: Sequence[StoredPart]


class StoreRestore:
    """Restores streams of a bucket into a running broker."""

    def __init__(self, catalog: Catalog, listed: ListStored, restore_one: RestoreOne) -> None:
        self._catalog = catalog
        self._listed = listed
        self._restore_one = restore_one

    async def run(self, names: Sequence[str], *, dry_run: bool) -> list[BucketStream]:
        """Restore the streams with these names, or all that are not here."""
        chores = self._catalog.shared.syncer.chores
        stored = await chores.run(lambda: list(_streams(self._listed())))
        found: list[BucketStream] = []
        for one in stored:
            name = one.record.config.name
            if names and name not in names:
                continue
            there = self._catalog.find(name)
            if there is not None and not _is_untouched(there):
                found.append(_told(one, "exists"))
            elif dry_run:
                found.append(_told(one, "found"))
            else:
                try:
                    await self._restore(one, there)
                except OnelogError as error:
                    found.append(_told(one, "damaged", str(error)))
                else:
                    found.append(_told(one, "restored"))
        return found

    async def _restore(self, stored: Stored, there: Stream | None) -> None:
        record = msgspec.structs.replace(stored.record, moves=())
        check_config(record.config)

        def make() -> None:
            for part in stored.parts:
                self._restore_one(part)

        if there is not None:
            await self._catalog.delete(there.name)
        await self._catalog.shared.syncer.chores.run(make)
        stream = await self._catalog.take_in(record)
        for partition in stream.local:
            for producer_id in partition.open_transactions():
                known = partition.producers.entry(producer_id)
                epoch = 0 if known is None else known.epoch
                partition.end_transaction(Marker.ABORT, producer_id, epoch)


def _is_untouched(stream: Stream) -> bool:
    return stream.name == MAIN and all(row.end_offset == 0 for row in stream.partitions)


def _streams(parts: Iterable[StoredPart]) -> Iterator[Stored]:
    """In a thread: the streams of a bucket, each with its newest record; one for each name."""
    by_id: dict[str, list[StoredPart]] = defaultdict(list)
    for part in parts:
        by_id[part.key.stream_id].append(part)
    found: dict[str, Stored] = {}
    for rows in by_id.values():
        try:
            records = [_decoder.decode(row.stream) for row in rows]
        except msgspec.MsgspecError as error:
            raise ColdDamaged(f"a manifest of {rows[0].key.stream_id} names no stream") from error
        record = max(records, key=lambda one: (one.config.partitions, len(one.growth)))
        name, here = record.config.name, found.get(record.config.name)
        if here is None or here.record.created_ms < record.created_ms:
            found[name] = Stored(record, rows)
    yield from (found[name] for name in sorted(found))


def _told(
    stored: Stored, outcome: Literal["restored", "found", "exists", "damaged"], why: str = ""
) -> BucketStream:
    manifests = [part.manifest for part in stored.parts]
    return BucketStream(
        stream=stored.record.config.name,
        partitions=len(manifests),
        offsets=sum(max(0, one.end - one.start) for one in manifests),
        cold_bytes=sum(row.log_bytes for one in manifests for row in one.rows),
        outcome=outcome,
        why=why,
    )
