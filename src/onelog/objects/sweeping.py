"""Deletes objects that nothing names: what failed uploads left behind.

Rules: an object goes if it is older than a day by the store's own clock, and its keeper does not
know it. A keeper answers for one folder and is asked after the listing, so that it never knows less
than what was listed. A folder without a keeper is left alone, and a keeper that fails ends the
sweep: nothing is deleted on a guess. Listing is paced.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from onelog.objects.store import ObjectStore, StoredObject

Keeper = Callable[[Sequence[str]], Collection[str]]
"""Gets names of objects, and returns those that are needed or may be named yet. It may block and
raise."""

AGE_MS: Final = 24 * 3600 * 1000
PROBES: Final = "probe/"
_GROUP: Final = 1000
_NAMES: Final = 100
"""Names that are told."""


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep found."""

    seen: int = 0
    """Objects that were listed."""
    young: int = 0
    """Those that are too young to be judged."""
    deleted: int = 0
    """Those that nothing named; with `dry_run` they are still there."""
    deleted_bytes: int = 0
    names: tuple[str, ...] = ()
    """The first of them."""
    dry_run: bool = False


def together(sweeps: Iterable[Swept]) -> Swept:
    """What several sweeps found."""
    parts = list(sweeps)
    return Swept(
        seen=sum(part.seen for part in parts),
        young=sum(part.young for part in parts),
        deleted=sum(part.deleted for part in parts),
        deleted_bytes=sum(part.deleted_bytes for part in parts),
        names=tuple(itertools.chain.from_iterable(part.names for part in parts))[:_NAMES],
        dry_run=all(part.dry_run for part in parts),
    )


def sweep(
    store: ObjectStore,
    keepers: Mapping[str, Keeper],
    *,
    dry_run: bool = False,
    age_ms: int = AGE_MS,
    pause_s: float = 0.0,
) -> Swept:
    """Sweep the folders that have keepers. Raises ColdUnavailable, and what a keeper raises."""
    now_ms = store_now_ms(store)
    found = Swept(dry_run=dry_run)
    for folder, keeper in {PROBES: _keep_none, **keepers}.items():
        for group in _groups(store.list(folder)):
            old = [row for row in group if row.modified_ms < now_ms - age_ms]
            needed = set(keeper([row.name for row in old])) if old else set()
            doomed = [row for row in old if row.name not in needed]
            if not dry_run:
                store.delete([row.name for row in doomed])
            found = Swept(
                seen=found.seen + len(group),
                young=found.young + len(group) - len(old),
                deleted=found.deleted + len(doomed),
                deleted_bytes=found.deleted_bytes + sum(row.size_bytes for row in doomed),
                names=(*found.names, *(row.name for row in doomed))[:_NAMES],
                dry_run=dry_run,
            )
            time.sleep(pause_s)
    return found


def store_now_ms(store: ObjectStore) -> int:
    """The clock of a store, by an object that is written now: ages never mix two clocks."""
    folder = f"{PROBES}{secrets.token_hex(8)}/"
    name = f"{folder}now"
    store.put(name, [b"now"])
    try:
        return next(iter(store.list(folder))).modified_ms
    finally:
        store.delete([name])


def _keep_none(_names: Sequence[str]) -> Collection[str]:
    return ()


def _groups(rows: Iterator[StoredObject]) -> Iterator[list[StoredObject]]:
    while group := list(itertools.islice(rows, _GROUP)):
        yield group
