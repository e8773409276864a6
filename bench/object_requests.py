"""How many requests the store gets, beside the model that the costs of the guide are made of.

Rules: writes and listings count, because they cost the same; deletions are free. The model of a
tier is 11 writes for a piece of 256 MiB: 8 parts, the beginning and the end of the upload, and its
manifest. That of a cold read is a get for each 4 MiB. That of the engine `object` is one write per
linger and one per settling. That of a commit to an Iceberg table is 3 objects of ours (file,
frames, manifest) and 3 of the format; of these, what lies in the store afterwards is counted.
First contacts come once, so the last of several counts.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.object_broker import pool_of
from bench.object_reads import cold
from bench.object_store import BUCKET, bench_server, moved, settings_of, store_of
from bench.report import Row, data_dir, row, say
from onelog.base.clock import SystemClock
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import scan_batches
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.cold import ColdRows, RunCache
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine, ObjectSettings
from onelog.storage.segment import SegmentEngine
from onelog.storage.tier import TierSettings
from onelog.storage.tiered import TieredEngine, TieredLog
from tests.batches import make_batch
from tests.support.lakehouses import LakeSite
from tests.support.s3_server import S3Server
from tests.support.tiers import Owner

BAR = 1.1
KEY = PartitionKey("requests", PartitionId(0))
PIECE_BYTES, PIECES, PIECE_WRITES = 256 << 20, 3, 11
READ_BYTES = 4 << 20
OBJECT_S, SETTLE_S, LINGER_S, BYTES_PER_S = 12.0, 4.0, 0.25, 1_000_000
COMMITS, COMMIT_WRITES, SEGMENT_BYTES = 4, 6, 2 << 20


def billed(store: ObjectStore) -> int:
    """Requests that cost what a write costs."""
    return store.counts.put + store.counts.list


def append_segment(log: TieredLog, batch: bytes, size_bytes: int) -> None:
    """So many bytes of batches, as one sealed segment."""
    for _ in range(size_bytes // len(batch)):
        data = moved(batch, log.end_offset)
        log.append(data, scan_batches(data, 0, False))
    log.roll()
    log.sync()


def tier(server: S3Server, folder: Path) -> list[Row]:
    """Pieces of 256 MiB go up; one of them is read."""
    store = open_store(settings_of(server))
    inner = SegmentEngine(folder / "data", SystemClock())
    cache = RunCache(folder / "cache")
    engine = TieredEngine(inner, store, cache, folder / "tiers", SystemClock())
    try:
        settings = LogSettings(topic_index=False, tier=TierSettings(format="log"))
        log = engine.open(KEY, settings)
        batch = make_batch(0, 1024, size=1000)
        writes = []
        rows = []
        for _ in range(PIECES):
            append_segment(log, batch, PIECE_BYTES - (2 << 20))
            before = billed(store)
            made = log.tier.upload(log.end_offset, Owner())
            assert made is not None
            rows.append(made)
            log.tier.trim_local(log.end_offset)
            writes.append(billed(store) - before)
        reader = ColdRows("requests", store, cache, rows[-1:], start=Offset(rows[-1].base))
        before = store.counts.get
        cold(reader)
        gets = store.counts.get - before
    finally:
        engine.close()
        cache.close()
    say(f"tier: {writes} requests a piece, {gets} gets to read one")
    return [
        _row("tier, a piece of 256 MiB", writes[-1], PIECE_WRITES),
        _row("cold read of 256 MiB", gets, PIECE_BYTES // READ_BYTES),
    ]


def chain(server: S3Server, folder: Path) -> Row:
    """1 MB/s into the engine `object`."""
    store = store_of(server)
    settings = ObjectSettings(settle_ms=int(SETTLE_S * 1000))
    engine = ObjectEngine(store, RunCache(folder / "cache-object"), settings)
    try:
        log = engine.open(KEY, LogSettings(topic_index=False))
        batch = make_batch(0, 50, size=1000)
        before, begun = billed(store), time.monotonic()
        done = 0
        while (now := time.monotonic()) - begun < OBJECT_S:
            if done < (now - begun) * BYTES_PER_S:
                data = moved(batch, log.end_offset)
                log.append(data, scan_batches(data, 0, False))
                done += len(data)
            time.sleep(0.01)
        asked = billed(store) - before
    finally:
        engine.close()
    model = OBJECT_S / LINGER_S + OBJECT_S / SETTLE_S
    say(f"object: {asked} requests in {OBJECT_S:.0f} s of {model:.0f}")
    return _row("object, 1 MB/s, linger 250 ms", asked, model)


def table(server: S3Server, folder: Path) -> Row:
    """Commits of one file each to an Iceberg table: the objects that each of them writes."""
    url, options = f"s3://{BUCKET}/requests", server.store_options
    store = open_store(StoreSettings(url=url, options=options))
    site = LakeSite(folder, "iceberg", url, options)
    words = {"table": "orders", "catalog": "", "commit_ms": "0", "topic": "orders"}
    settings = LogSettings(
        topic_index=False,
        segment_bytes=SEGMENT_BYTES,
        tier=TierSettings(format="iceberg", table=words),
    )
    seen: set[str] = set()
    writes = []
    try:
        log = site.engine().open(KEY, settings)
        batch = pool_of(1024)[0]
        for _ in range(COMMITS):
            append_segment(log, batch, SEGMENT_BYTES // 2)
            assert log.tier.upload(log.end_offset, Owner()) is not None
            names = {found.name for found in store.list("")}
            writes.append(len(names - seen))
            seen |= names
    finally:
        site.close()
    say(f"table: {writes} objects a commit")
    return _row("lakehouse, a commit of one file", writes[-1], COMMIT_WRITES)


def _row(name: str, asked: float, model: float) -> Row:
    said = ("the model, requests", model)
    return row(f"requests: {name}", asked / model, "ratio", BAR, low=True, peer=said)


def measure() -> list[Row]:
    """The rows of the table."""
    with data_dir("object-requests") as folder, bench_server(folder / "s3") as server:
        rows = tier(server, folder / "tier")
        rows.append(chain(server, folder / "object"))
        rows.append(table(server, folder / "table"))
    return rows
