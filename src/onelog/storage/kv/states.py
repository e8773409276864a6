"""The derived states of a partition under keys of their own: the newest two of each name.

Rules: the caller holds the partition's lock, and syncs after a save.
"""

from __future__ import annotations

from typing import Final

from rocksdict import WriteBatch

from onelog.base.errors import InvalidRequest
from onelog.base.ids import Offset
from onelog.storage.kv import keys
from onelog.storage.kv.database import MAINTENANCE_STALL_S, KvDatabase, new_batch

KEPT: Final = 2


def save(db: KvDatabase, number: int, name: str, offset: Offset, blob: bytes) -> None:
    """Keep a state as of `offset`; older ones of the name may be dropped."""
    prefix = _prefix(number, name)
    held = [keys.offset_of(key) for key, _ in db.scan(prefix, keys.after(prefix))]
    kept = sorted({*held, offset})[-KEPT:]
    change = new_batch()
    for old in held:
        if old not in kept and old != offset:
            change.delete(keys.at_offset(prefix, old))
    change.put(keys.at_offset(prefix, offset), bytes(blob))
    db.write(change, stall_s=MAINTENANCE_STALL_S)


def load(db: KvDatabase, number: int, name: str, end: int) -> tuple[Offset, bytes] | None:
    """The newest state of a name whose offset is <= `end`."""
    prefix = _prefix(number, name)
    best: tuple[Offset, bytes] | None = None
    for key, blob in db.scan(prefix, keys.at_offset(prefix, end + 1)):
        best = (Offset(keys.offset_of(key)), blob)
    return best


def drop_after(db: KvDatabase, change: WriteBatch, number: int, end: int) -> None:
    """Add to a change the deletion of every state behind `end`."""
    prefix = keys.of_partition(number, keys.STATE)
    for key, _ in db.scan(prefix, keys.after(prefix)):
        if keys.offset_of(key) > end:
            change.delete(key)


def _prefix(number: int, name: str) -> bytes:
    if "\0" in name:
        raise InvalidRequest(f"{name!r} cannot name a state")
    return keys.of_partition(number, keys.STATE) + name.encode() + b"\0"
