"""Whether a store can be trusted with a log: it is tried, not asked.

Rules: a create-only write that two writers win would lose answered records, so four writers race
for a name, several times. All objects of a try lie below `probe/` under a random tag, and go when
it is over. The error names what a store does wrong, and what to do.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Final

import msgspec

from onelog.base.errors import ColdDamaged, OnelogError, StorageError
from onelog.objects.store import ObjectStore, Taken

RACERS: Final = 4
RACES: Final = 8
_FOLDER: Final = "probe/"
_CLOCK_MS: Final = 5 * 60_000
"""Clocks that differ by more than this get advice: requests are refused at a quarter of an hour."""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What a store did when it was tried."""

    url: str
    create_ms: float
    """How long a small write took, the middle of several."""
    get_ms: float
    clock_ms: int
    """How far the clock of the store is ahead of ours, about."""
    advice: tuple[str, ...] = ()


def probe(store: ObjectStore) -> Probed:
    """Try a store. Raises ColdUnavailable when it cannot be used now, and StorageError when it must
    not be used for a log."""
    folder = f"{_FOLDER}{secrets.token_hex(8)}/"
    names: list[str] = []
    try:
        return _tried(store, folder, names)
    finally:
        with contextlib.suppress(OnelogError):
            store.delete(names)


def _tried(store: ObjectStore, folder: str, names: list[str]) -> Probed:
    creates, gets = [], []
    for number in range(RACES):
        name = f"{folder}{number:04}"
        names.append(name)
        begun = time.monotonic()
        _race(store, name)
        creates.append(time.monotonic() - begun)
        begun = time.monotonic()
        data = store.get(name)
        gets.append(time.monotonic() - begun)
        if store.get_range(name, 1, 4) != data[1:5] or store.get_suffix(name, 3) != data[-3:]:
            raise ColdDamaged(f"{store.url} answers a range with other bytes than it has")
    listed = list(store.list(folder))
    if [row.name for row in listed] != names:
        raise StorageError(
            f"{store.url} does not list names in order, or not those that were just written: a log"
            " needs both (directory buckets of S3 Express do not)"
        )
    behind = [row.name for row in store.list(folder, after=names[2], limit=2)]
    if behind != names[3:5]:
        raise StorageError(f"{store.url} does not list behind a name: a log needs that")
    store.delete(names[:1])
    if any(row.name == names[0] for row in store.list(folder)):
        raise StorageError(f"{store.url} lists a name that was deleted: a log needs it gone")
    clock_ms = listed[-1].modified_ms - int(time.time() * 1000)
    return Probed(
        url=store.url,
        create_ms=round(sorted(creates)[RACES // 2] * 1000, 1),
        get_ms=round(sorted(gets)[RACES // 2] * 1000, 1),
        clock_ms=clock_ms,
        advice=tuple(_advice(store.url, clock_ms)),
    )


def _race(store: ObjectStore, name: str) -> None:
    """Four writers create one name at the same time: one wins, and all the others hear of it."""
    winners: list[bytes] = []
    told: list[bytes] = []
    failures: list[OnelogError] = []
    gate = threading.Barrier(RACERS)

    def run(number: int) -> None:
        mine = b"writer %d " % number + secrets.token_bytes(16)
        gate.wait()
        try:
            store.create(name, [mine])
            winners.append(mine)
        except Taken as taken:
            told.append(taken.found)
        except OnelogError as error:
            failures.append(error)

    racers = [threading.Thread(target=run, args=(number,)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    if failures:
        raise failures[0]
    if len(winners) != 1 or set(told) != set(winners):
        raise StorageError(
            f"{store.url} lets {len(winners)} of {RACERS} writers create one name: it does not keep"
            " If-None-Match under race, and a log there would lose answered records. Use a newer"
            " version of it (SeaweedFS: 4.48 and later), or another store"
        )


def _advice(url: str, clock_ms: int) -> list[str]:
    rows = []
    if abs(clock_ms) > _CLOCK_MS:
        rows.append(f"the clock of the store differs by {abs(clock_ms) // 1000} s: use NTP on both")
    if url.startswith(("s3:", "s3a:")):
        rows.append(
            "uploads that were broken off cost money until they are deleted: give the bucket a"
            " lifecycle rule that aborts incomplete multipart uploads after a day"
        )
    return rows
