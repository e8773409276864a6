"""Pieces of a partition in a store, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from onelog.kernel import scan_batches
from onelog.objects.piece import AbortedSpan
from onelog.objects.piece_building import PieceBuilder
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold import RunCache
from onelog.storage.topic_pairs import derive_pairs

SMALL_RUNS = (2048, 8192, 16384)


def put_piece(
    store: ObjectStore,
    name: str,
    base: int,
    end: int,
    batches: Sequence[bytes],
    *,
    index_topics: bool = True,
    aborted: Iterable[AbortedSpan] = (),
    before: bytes = b"",
) -> Row:
    """Write a piece of these batches as an object; `before` are other bytes at its beginning."""
    builder = PieceBuilder(base, index_topics=index_topics)
    data = b"".join(batches)
    if data:
        infos = scan_batches(data)
        builder.add(data, infos, derive_pairs(data, infos) if index_topics else None)
    piece = builder.finish(end, aborted=aborted)
    store.put(name, [before, *piece.parts] if before else piece.parts)
    return piece.row(name, created_ms=1, leader_epoch=0, position=len(before))


def small_cache(
    directory: Path,
    *,
    cache_bytes: int = 1 << 20,
    index_bytes: int = 1 << 20,
    run_bytes: tuple[int, ...] = SMALL_RUNS,
    couriers: int = 4,
) -> RunCache:
    """A cache with short runs."""
    return RunCache(
        directory,
        cache_bytes=cache_bytes,
        index_bytes=index_bytes,
        couriers=couriers,
        run_bytes=run_bytes,
    )
