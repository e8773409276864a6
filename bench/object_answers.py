"""The engine `object` beside raw create-only writes: how much it writes, and how soon it answers.

Rules: throughput is of a round of 128 MiB in objects of 8 MiB, four on their way, into a chain of
its own, from the first append to the last answer; nothing is settled meanwhile. Answers are of ten
small messages a second that wait for nobody (`linger_ms=0`, ADR 61), and of two a second with the
default linger: each comes after silence and waits for its own write only. Raw writes have the same
sizes, by as many threads, in turns.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from bench.object_store import bench_server, moved, store_of
from bench.report import Row, data_dir, median, row, say, seconds
from onelog.base.ids import PartitionId
from onelog.kernel import scan_batches
from onelog.objects.store import ObjectStore
from onelog.storage.cold import RunCache
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine, ObjectSettings
from onelog.storage.object.partition import ObjectLog
from tests.batches import make_batch
from tests.support.s3_server import S3Server

ROUNDS = 5
OBJECT_BYTES, OBJECTS, IN_FLIGHT = 8 << 20, 16, 4
RATE_BAR, ANSWER_BAR = 0.90, 1.3
PACES = {"10 messages/s, linger 0": (10, 0, 60), "2 messages/s, default linger": (2, 250, 20)}
"""Messages a second, linger, and how many."""
NEVER_BYTES, NEVER_MS = 1 << 30, 3_600_000
_numbers = count()


def engine_of(store: ObjectStore, folder: Path, linger_ms: int = 250) -> ObjectEngine:
    """An engine that settles nothing."""
    cache = RunCache(folder / f"cache{next(_numbers)}")
    settings = ObjectSettings(
        linger_ms=linger_ms,
        settle_bytes=NEVER_BYTES,
        settle_ms=NEVER_MS,
        buffer_bytes=NEVER_BYTES,
    )
    return ObjectEngine(store, cache, settings)


def log_of(engine: ObjectEngine) -> ObjectLog:
    """Its one partition."""
    return engine.open(PartitionKey("bench", PartitionId(0)), LogSettings(topic_index=False))


def fill(log: ObjectLog, total_bytes: int) -> None:
    """Append batches of 1 MiB, as connections append what came in one pass."""
    made = make_batch(0, 1024, size=1000)
    for _ in range(total_bytes // len(made)):
        data = moved(made, log.end_offset)
        log.append(data, scan_batches(data, 0, False))


def write_s(store: ObjectStore, folder: Path) -> tuple[float, int]:
    """Seconds of writing by the engine, and its bytes."""
    engine = engine_of(store, folder)
    try:
        log = log_of(engine)

        def work() -> None:
            fill(log, OBJECTS * OBJECT_BYTES)
            log.sync()

        return seconds(work), log.size_bytes
    finally:
        engine.close()


def raw_s(store: ObjectStore, total_bytes: int) -> float:
    """Seconds of raw writes of as many bytes."""
    data = bytes(OBJECT_BYTES)
    prefix = uuid.uuid4().hex
    with ThreadPoolExecutor(IN_FLIGHT) as threads:

        def work() -> None:
            names = [f"raw/{prefix}/{number}" for number in range(total_bytes // OBJECT_BYTES)]
            list(threads.map(lambda name: store.create(name, [data]), names))

        return seconds(work)


def paced(each_s: float, number: int, act: Callable[[Callable[[], None]], object]) -> list[float]:
    """Let `act` begin so often at a pace, without waiting for its end; ms of each until then."""
    waits: list[float] = []
    over = threading.Semaphore(0)
    begun = time.perf_counter()
    for at in range(number):
        time.sleep(max(0.0, begun + at * each_s - time.perf_counter()))
        began = time.perf_counter()

        def done(began: float = began) -> None:
            waits.append((time.perf_counter() - began) * 1e3)
            over.release()

        act(done)
    for _ in range(number):
        assert over.acquire(timeout=30), "an answer did not come"
    return waits


def answer_ms(store: ObjectStore, folder: Path, per_s: int, linger_ms: int, number: int) -> float:
    """The median of the engine's answers."""
    engine = engine_of(store, folder, linger_ms)
    try:
        log = log_of(engine)
        made = make_batch(0, 1, size=200)

        def act(done: Callable[[], None]) -> None:
            data = moved(made, log.end_offset)
            log.append(data, scan_batches(data, 0, False))
            engine.core.chain.when_in(lambda _error: done())

        return median(paced(1 / per_s, number, act))
    finally:
        engine.close()


def raw_ms(store: ObjectStore, per_s: int, number: int) -> float:
    """The median of raw writes at the same pace."""
    data = bytes(400)
    with ThreadPoolExecutor(IN_FLIGHT) as threads:

        def put(done: Callable[[], None]) -> None:
            store.create(f"raw/{uuid.uuid4().hex}", [data])
            done()

        return median(paced(1 / per_s, number, lambda done: threads.submit(put, done)))


def _throughput(server: S3Server, folder: Path) -> Row:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        store = store_of(server)
        took, size_bytes = write_s(store, folder)
        ours.append(size_bytes / took / 1e6)
        raw_bytes = OBJECTS * OBJECT_BYTES
        theirs.append(raw_bytes / raw_s(store, raw_bytes) / 1e6)
    for name, rates in (("engine object", ours), ("raw writes", theirs)):
        say(f"{name}: {', '.join(f'{rate:.0f}' for rate in rates)} MB/s")
    return row(
        "object: write throughput", median(ours) / median(theirs), "ratio", RATE_BAR,
        peer=("raw create-only puts, MB/s", median(theirs)),
    )  # fmt: skip


def _answers(server: S3Server, folder: Path) -> list[Row]:
    rows = []
    for name, (per_s, linger_ms, number) in PACES.items():
        store = store_of(server)
        theirs = raw_ms(store, per_s, number)
        ours = answer_ms(store, folder, per_s, linger_ms, number)
        say(f"{name}: answer {ours:.2f} ms, raw put {theirs:.2f} ms")
        rows.append(
            row(f"object: answer p50, {name}", ours / theirs, "ratio", ANSWER_BAR, low=True,
                peer=("raw create-only put, ms", theirs))
        )  # fmt: skip
    waited = answer_ms(store_of(server), folder, 10, 250, 40)
    rows.append(row("object: answer p50, 10 messages/s, default linger", waited, "ms", low=True))
    return rows


def measure() -> list[Row]:
    """The rows of the table."""
    with data_dir("object-answers") as folder, bench_server(folder / "s3") as server:
        return [_throughput(server, folder), *_answers(server, folder)]
