"""Cold reads as couriers make them, beside raw ranged gets of the same sizes by as many threads.

Rules: each thread reads one partition from its beginning to its end. The cold read checks the CRC
of every batch and writes the run into the cache; the cache is empty at the beginning of each round.
Rounds of both take turns, and the medians are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.object_store import batches, bench_server, put_log, store_of
from bench.report import Row as Line
from bench.report import data_dir, median, row, say, seconds
from onelog.base.ids import Offset
from onelog.kernel import find_batch, scan_batches
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold import ColdRows, RunCache
from onelog.storage.cold.cache import RUN_BYTES
from onelog.storage.engine import in_place

PIECE_BATCHES = 4_000
"""About 64 MB a partition."""
RECORDS = 16
SURE_RECORDS = 980
"""A MiB of batches holds more, of 1 KB each."""
ROUNDS = 5
BARS = {1: 0.80, 4: 0.80}
"""By the number of threads."""


def raw(store: ObjectStore, piece: Row) -> None:
    """Get all batches of a piece, in ranges as long as a courier's for one reader."""
    start, sizes = 0, iter(RUN_BYTES)
    size = next(sizes)
    while start < piece.log_bytes:
        store.get_range(piece.object, start, min(size, piece.log_bytes - start))
        start += size
        size = next(sizes, size)


def cold(rows: ColdRows) -> None:
    """Read all batches of a partition, as a fetch does: nobody looks into them, only at their
    headers to know where to go on."""
    offset, end = rows.start_offset, rows.end_offset
    while offset < end:
        view = in_place(rows, partial(rows.read, offset, 1 << 20, end))
        near = find_batch(view, 0, len(view), offset + len(view) * SURE_RECORDS // (1 << 20))
        last = scan_batches(view, max(near, 0), False)[-1]
        offset = Offset(last.last_offset + 1)


def together(work: Callable[[Row], None], pieces: Sequence[Row]) -> None:
    """One thread for each piece."""
    with ThreadPoolExecutor(len(pieces)) as threads:
        for done in [threads.submit(work, piece) for piece in pieces]:
            done.result()


def cold_round(store: ObjectStore, folder: Path, pieces: Sequence[Row]) -> float:
    """Seconds of cold reads of all pieces, with an empty cache."""
    cache = RunCache(folder, cache_bytes=1 << 30)

    def work(piece: Row) -> None:
        cold(ColdRows(piece.object, store, cache, [piece], start=Offset(piece.base)))

    try:
        return seconds(lambda: together(work, pieces))
    finally:
        cache.close()


def measure() -> list[Line]:
    """The rows of the table."""
    lines = []
    with data_dir("object-reads") as folder, bench_server(folder / "s3") as server:
        store = store_of(server)
        made = batches(0, PIECE_BATCHES, records=RECORDS)
        end = PIECE_BATCHES * RECORDS
        pieces = [put_log(store, f"t/{number}", made, 0, end) for number in range(max(BARS))]
        for threads, bar in BARS.items():
            chosen, size_mb = pieces[:threads], threads * pieces[0].log_bytes / 1e6
            gets, reads = [], []
            for _ in range(ROUNDS):
                gets.append(seconds(lambda: together(partial(raw, store), chosen)))  # noqa: B023
                reads.append(cold_round(store, folder / "cache", chosen))
            say(f"{threads} threads: raw {size_mb / median(gets):.0f} MB/s, cold"
                f" {size_mb / median(reads):.0f} MB/s")  # fmt: skip
            lines.append(
                row(
                    f"cold read, {threads} readers", median(gets) / median(reads), "ratio", bar,
                    peer=("raw ranged gets, MB/s", size_mb / median(gets)),
                )
            )  # fmt: skip
    return lines
