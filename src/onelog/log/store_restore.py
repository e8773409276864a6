"""Streams of a bucket that this broker does not have: made again from their manifests alone.

Rules: nothing is fetched but manifests and the state of each last piece; batches come when they are
read. A stream whose name exists here is left alone, except for a `main` that never held a record.
Transactions that were open where the bucket ends are aborted: nobody else could end them. What was
only on the lost disk is lost. A stream that another broker wrote to the bucket lately is left
alone, unless the caller takes it over: if that broker lives, its tier halts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from onelog.base.errors import ColdDamaged, OnelogError, StreamNotFound
from onelog.base.ids import Offset
from onelog.log.catalog import Catalog
from onelog.log.config import check_config
from onelog.log.stream import Stream, StreamRecord
from onelog.objects.manifest import Manifest
from onelog.record.batch import Marker
from onelog.storage.engine import PartitionKey

MAIN: Final = "main"
RECENT_MS: Final = 24 * 3600 * 1000
"""Who wrote to the bucket within this time may still live."""


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
    def written_ms(self) -> int:
        """When that was written, by the store's clock."""
        ...

    @property
    def stream(self) -> bytes:
        """The stream's record (JSON)."""
        ...


_IN_CHAIN: Final = (
    "its newest records are in the chain of the engine object: start a broker with this store and"
    " the metadata of that one (metadata.url = 'store'), and the stream is there"
)
_decoder: Final = msgspec.json.Decoder(StreamRecord)

RestoreOne = Callable[[Any], Offset]
"""In a thread: makes one partition; where it goes on."""
ListStored = Callable[[], Iterator[StoredPart]]
"""In a thread: the partitions of a bucket."""


RestoreOutcome = Literal["restored", "found", "exists", "owned", "damaged"]


class BucketStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a bucket, and what a restore did with it."""

    stream: str
    partitions: int
    """Of which the bucket holds something."""
    offsets: int
    """Offsets between their starts and ends."""
    cold_bytes: int
    outcome: RestoreOutcome
    """`found`: it would be restored; `exists`: a stream of this name is here; `owned`: another
    broker wrote it lately, and may still do so."""
    why: str = ""


class Stored(NamedTuple):
    """A stream of a bucket."""

    record: StreamRecord
    parts: Sequence[StoredPart]


class StoreRestore:
    """Restores streams of a bucket into a running broker."""

    def __init__(
        self,
        catalog: Catalog,
        listed: ListStored,
        restore_one: RestoreOne,
        *,
        store_now_ms: Callable[[], int],
        house: bytes,
    ) -> None:
        """`store_now_ms` asks the store for its clock, in a thread. `house` begins the nonce of
        every manifest that was written from this data directory."""
        self._catalog = catalog
        self._listed = listed
        self._restore_one = restore_one
        self._store_now_ms = store_now_ms
        self._house = house

    async def run(
        self, names: Sequence[str], *, dry_run: bool, take_over: bool = False
    ) -> list[BucketStream]:
        """Restore the streams with these names, or all that are not here. With `take_over` also
        those that another broker wrote lately."""
        chores = self._catalog.shared.syncer.chores
        stored = await chores.run(lambda: list(_streams(self._listed())))
        _check_names(names, stored)
        now_ms = await chores.run(self._store_now_ms) if stored else 0
        found: list[BucketStream] = []
        for one in stored:
            name = one.record.config.name
            if names and name not in names:
                continue
            there = self._catalog.find(name)
            if there is not None and not _is_untouched(there):
                found.append(_told(one, "exists"))
            elif one.record.config.engine == "object":
                found.append(_told(one, "owned", _IN_CHAIN))
            elif not take_over and (owner := self._owner_of(one, now_ms)):
                found.append(_told(one, "owned", owner))
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

    def _owner_of(self, stored: Stored, now_ms: int) -> str:
        """Words about another broker that wrote a stream lately; empty: none did."""
        written = [
            part.written_ms
            for part in stored.parts
            if not part.manifest.nonce.startswith(self._house)
        ]
        age_ms = now_ms - max(written, default=now_ms - RECENT_MS)
        if age_ms >= RECENT_MS:
            return ""
        return (
            f"another broker wrote it to the store {max(0, age_ms) // 60_000} minutes ago. If that"
            " broker runs, stop it, or its tier halts when this one goes on; then restore with"
            " --take-over"
        )

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


def _check_names(names: Sequence[str], stored: Sequence[Stored]) -> None:
    """Refuse names that the store does not have, before anything is made."""
    there = [one.record.config.name for one in stored]
    missing = [name for name in names if name not in there]
    if missing:
        known = ", ".join(there[:20]) + (" …" if len(there) > 20 else "")
        raise StreamNotFound(
            f"the object store has no stream {', '.join(map(repr, missing))}, only"
            f" {known or 'nothing'}: nothing was restored"
        )


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


def _told(stored: Stored, outcome: RestoreOutcome, why: str = "") -> BucketStream:
    manifests = [part.manifest for part in stored.parts]
    return BucketStream(
        stream=stored.record.config.name,
        partitions=len(manifests),
        offsets=sum(max(0, one.end - one.start) for one in manifests),
        cold_bytes=sum(row.log_bytes for one in manifests for row in one.rows),
        outcome=outcome,
        why=why,
    )
