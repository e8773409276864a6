"""Restores partitions from a bucket alone: the newest manifest names everything.

Rules: nothing is fetched but manifests and the state of the last piece; batches come when they are
read. The restored log is empty here and goes on behind the last piece. What was only on the lost
disk is lost. The stream's record is in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onelog.base.errors import ColdDamaged, NotFound
from onelog.base.ids import Offset, PartitionId
from onelog.objects import names
from onelog.objects.manifest import Manifest
from onelog.objects.piece import decode_footer, decode_state
from onelog.objects.rows import FOOTER_BYTES, Row
from onelog.objects.store import ObjectStore
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.tiered.copies import FIRST_NAME, copy_of, encode_copy
from onelog.storage.tiered.inner import LocalEngine


class StoredPartition(NamedTuple):
    """A partition that a bucket holds."""

    key: PartitionKey
    manifest: Manifest
    written_ms: int
    """When its newest manifest was written, by the store's clock."""

    @property
    def stream(self) -> bytes:
        """The stream's record (JSON)."""
        return self.manifest.stream


def stored_partitions(store: ObjectStore) -> Iterator[StoredPartition]:
    """Every partition that a bucket holds. Raises ColdDamaged where no manifest is whole."""
    key: PartitionKey | None = None
    for found in store.list(names.MANIFESTS):
        name = names.parse_manifest(found.name)
        if name is None:
            continue
        here = PartitionKey(name.stream_id, PartitionId(name.partition))
        if here != key:  # the newest is listed first
            key = here
            yield stored_partition(store, key)


def stored_partition(store: ObjectStore, key: PartitionKey) -> StoredPartition:
    """The newest manifest of a partition. Raises NotFound, ColdDamaged."""
    for found in store.list(names.manifests_of(*key), limit=1):
        name = f"{store.url}/{found.name}"
        manifest = Manifest.decode(store.get(found.name), name)
        return StoredPartition(key, manifest, found.modified_ms)
    raise NotFound(f"{store.url} holds no manifest of {key.stream_id}/{key.partition}")


def restore_partition(
    store: ObjectStore, engine: LocalEngine, found: StoredPartition, state_name: str
) -> Offset:
    """Make a partition that reads its history from the bucket. Returns where it goes on.

    `state_name` is the name under which the partition's owner keeps its derived state. Raises
    Conflict when the partition exists here.
    """
    manifest = found.manifest
    end = Offset(manifest.end)
    state = _state_of(store, manifest.rows[-1]) if manifest.rows else b""
    engine.begin(found.key, end, {FIRST_NAME: encode_copy(copy_of(manifest), 1)})
    log = engine.open(found.key, LogSettings())
    try:
        if state:
            log.save_state(state_name, end, state)
    finally:
        log.close()
    return end


def _state_of(store: ObjectStore, row: Row) -> bytes:
    """The derived state as of the end of a piece."""
    start = row.position + row.piece_bytes - FOOTER_BYTES
    footer = decode_footer(store.get_range(row.object, start, FOOTER_BYTES), row.object)
    if footer.end != row.end:
        raise ColdDamaged(f"the piece {row.object} ends at offset {footer.end}, not at {row.end}")
    section = footer.state
    if not section.size_bytes:
        return b""
    data = store.get_range(row.object, row.position + section.position, section.size_bytes)
    return decode_state(data, footer, row.object)
