"""SQL on the table of a lakehouse stream beside plain Parquet with the same columns: time and size.

Rules: the same rows lie in both, with the same codec (zstd) and one file each. The plain file is
written by pyarrow with its defaults. The engine is DuckDB with two threads; each query runs in
turns on both, and the median of the ratios of neighbours counts. Both files are warm in memory.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from bench.object_broker import pool_of
from bench.object_store import moved
from bench.report import Row, data_dir, median, row, say, seconds
from onelog.kernel import scan_batches
from tests.support.lake_jobs import LakeClient, lake_process, place_of

SIZES = {"1 KB JSON": (1024, 128 << 20), "100 B": (100, 64 << 20)}
ROUNDS = 9
TIME_BAR, SIZE_BAR = 1.15, 1.08
QUERIES = {
    "all values": 'SELECT count(*), sum(octet_length(value)), max("offset") FROM t',
    "group by key": "SELECT key, count(*), max(timestamp) FROM t GROUP BY key ORDER BY key",
}


def write_table(folder: Path, size: int, total_bytes: int) -> Path:
    """A segment as the lake process makes it a file of a table."""
    pool = pool_of(size)
    (info,) = scan_batches(pool[0], 0, False)
    base, parts = 0, []
    for number in range(total_bytes // len(pool[0])):
        parts.append(moved(pool[number % len(pool)], base))
        base += info.count
    process = lake_process(folder)
    try:
        made = LakeClient(process, place_of(folder, "iceberg"), folder).convert(b"".join(parts))
    finally:
        process.close()
    return Path(made.file.removeprefix("file://"))


def write_plain(table: Path, path: Path) -> Path:
    """The same rows as pyarrow writes them."""
    pq.write_table(pq.read_table(table), path, compression="zstd")
    return path


def ask_s(database: duckdb.DuckDBPyConnection, query: str, path: Path) -> float:
    """Seconds of a query."""
    text = query.replace("FROM t", f"FROM read_parquet('{path}')")
    return seconds(lambda: database.execute(text).fetchall())


def measure() -> list[Row]:
    """The rows of the table."""
    rows = []
    for name, (size, total_bytes) in SIZES.items():
        with data_dir("object-tables") as folder, duckdb.connect() as database:
            database.execute("SET threads = 2")
            table = write_table(folder, size, total_bytes)
            plain = write_plain(table, folder / "plain.parquet")
            for what, query in QUERIES.items():
                pairs = [
                    (ask_s(database, query, table), ask_s(database, query, plain))
                    for _ in range(ROUNDS + 1)
                ][1:]
                beside = median([theirs for _ours, theirs in pairs])
                ratio = median([ours / theirs for ours, theirs in pairs])
                say(f"{name}, {what}: {beside * 1e3:.1f} ms, the table {ratio:.2f} of it")
                rows.append(
                    row(f"SQL scan of a table, {what}, {name}", ratio, "ratio", TIME_BAR, low=True,
                        peer=("plain Parquet, ms", beside * 1e3))
                )  # fmt: skip
            sizes = [path.stat().st_size / 1e6 for path in (table, plain)]
            rows.append(
                row(f"size of a table, {name}", sizes[0] / sizes[1], "ratio", SIZE_BAR, low=True,
                    peer=("plain Parquet, MB", sizes[1]))
            )  # fmt: skip
    return rows
