"""Are slices from objects, gaps from the broker and bounds anywhere the same rows as all from it?

Tasks run in this process: no JVM, a folder as the store, a broker beside them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest

from onelog.kafka_client import LATEST, Client
from onelog.kernel import ATTR_TRANSACTIONAL, WITH_KEYS, WITH_OFFSETS, WITH_TIMESTAMPS, WITH_VALUES
from onelog.objects.piece import AbortedSpan
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.record.batch import build_batch
from onelog.spark import worker
from onelog.spark.source import cold_planning, cold_runs
from onelog.spark.source.cold_planning import ColdPlanner
from onelog.spark.source.options import source_options
from onelog.spark.source.planning import Sampler, Slice, plan
from onelog.spark.source.reading import read_task
from tests.conformance.kafka_brokers import unique
from tests.spark.topics import access, append, make_topic, row, servers
from tests.support.cold_rows import NamingEngine, NamingLog, make_naming
from tests.support.pieces import put_piece
from tests.support.served import Served

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("topic", pa.string()),
    ]
)
WANT = WITH_OFFSETS | WITH_KEYS | WITH_VALUES | WITH_TIMESTAMPS


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture(scope="module")
def engines(patch) -> list[NamingEngine]:
    return make_naming(patch)


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    return f"file://{tmp_path_factory.mktemp('store')}"


@pytest.fixture(scope="module")
def served(tmp_path_factory, engines, url) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served"), f'store.url="{url}"') as running:
        yield running
        while worker._idle:  # tasks leave their connections to the next
            worker._idle.popitem()[1].close()


@pytest.fixture(scope="module")
def store(url) -> ObjectStore:
    return open_store(StoreSettings(url=url))


def rows_of(served: Served, topic: str, how: str, start: int, end: int, **more: str):
    """The rows of a slice as tasks make them, and how many tasks that took."""
    given = {"servers": servers(served), "subscribe": topic, "coldReads": how, **more}
    options = source_options(given, streaming=False)
    with Client(options.access) as client:
        planner = ColdPlanner(options.cold, with_headers=False)
        slices = planner.cut(client, [Slice(topic, topic, 0, start, end)])
        tasks = plan(slices, options, Sampler(), client)
    found = [
        tuple(one.values())
        for task in tasks
        for batch in read_task(task, options, SCHEMA, WANT, None)
        for one in batch.to_pylist()
    ]
    return sorted(found), len(tasks)


def until_decided(client: Client, topic: str, end: int) -> None:
    """Wait for the marker of a transaction."""
    deadline = time.monotonic() + 10
    while client.offsets({(topic, 0): LATEST})[topic, 0] < end:
        assert time.monotonic() < deadline


def random_log(served: Served, topic: str, log: NamingLog, store: ObjectStore, seed: int) -> int:
    """Batches of all kinds, transactions that end either way, and pieces with gaps; the end."""
    chosen = random.Random(seed)
    bounds, spans = [0], []
    with Client(access(served)) as client:
        while bounds[-1] < 2500:
            at, count = bounds[-1], chosen.randrange(1, 120)
            made = [
                row(f"{at + n}" * chosen.randrange(1, 40), time_ms=at + n) for n in range(count)
            ]
            if chosen.random() < 0.3:
                name = unique("txn")
                producer = client.init_producer(name, 60_000)
                client.add_partitions(name, producer, [(topic, 0)])
                data = build_batch(made, attributes=ATTR_TRANSACTIONAL, producer=(*producer, 0))
                client.produce({(topic, 0): data}, name)
                commit = chosen.random() < 0.5
                client.end(name, producer, commit=commit)
                until_decided(client, topic, at + count + 1)
                append(served, topic, 0, [row("behind the marker", time_ms=1)])
                if not commit:
                    spans.append(AbortedSpan(producer.id, at, at + count, at))
                bounds += [at + count + 1, at + count + 2]
            else:
                append(served, topic, 0, made, codec=chosen.choice((0, 0, 1, 2, 3, 4)))
                bounds.append(at + count)
    cuts = sorted({0, *chosen.sample(bounds, 8)})
    for start, end in pairwise(cuts):
        if chosen.random() < 0.8:
            held = [span for span in spans if span.first < end and span.last >= start]
            log.put(store, start, end, aborted=held, before=b"?" * chosen.randrange(50))
    return bounds[-1]


@pytest.mark.parametrize("seed", range(6))
def test_the_same_rows_come_from_objects_and_from_the_broker(
    served, engines, store, monkeypatch, seed
) -> None:
    monkeypatch.setattr(cold_planning, "OFFSETS_MIN", 1)
    monkeypatch.setattr(cold_runs, "RUN_BYTES", 20_000)
    topic = make_topic(served, unique("slices"), 1)
    log = engines[0].newest()
    end = random_log(served, topic, log, store, seed)
    chosen = random.Random(seed)
    for _ in range(8):
        first, last = sorted(chosen.sample(range(end + 1), 2))
        wanted, _one = rows_of(served, topic, "broker", first, last)
        split = str(chosen.choice((1024, 20_000, 1 << 30)))
        found, _tasks = rows_of(served, topic, "store", first, last, splitBytes=split)
        assert found == wanted
    whole, _ = rows_of(served, topic, "store", 0, end)
    assert len({one[0] for one in whole}) == len(whole) > 1000


def test_a_folder_is_read_by_the_broker_unless_told_otherwise(served, engines, store) -> None:
    topic = make_topic(served, unique("folder"), 1)
    log = engines[0].newest()
    for first in range(0, 2000, 100):
        append(served, topic, 0, [row(f"{n}") for n in range(first, first + 100)])
    log.put(store, 0, 2000)
    log.reads.clear()
    by_broker, _ = rows_of(served, topic, "auto", 0, 2000)
    assert log.reads
    log.reads.clear()
    by_tasks, _ = rows_of(served, topic, "store", 0, 2000)
    assert not log.reads
    assert by_broker == by_tasks
    assert len(by_tasks) == 2000


def test_what_retention_took_is_reported_as_ever(served, engines, store) -> None:
    topic = make_topic(served, unique("gone"), 1)
    log = engines[0].newest()
    for first in range(0, 2000, 100):
        append(served, topic, 0, [row(f"{n}") for n in range(first, first + 100)])
    gone = log.put(store, 0, 1000)
    log.put(store, 1000, 2000)
    given = {"servers": servers(served), "subscribe": topic, "coldReads": "store"}
    lenient = source_options(given | {"failOnDataLoss": "false"}, streaming=False)
    strict = source_options(given, streaming=False)
    with Client(strict.access) as client:
        slices = ColdPlanner(strict.cold, with_headers=False).cut(
            client, [Slice(topic, topic, 0, 0, 2000)]
        )
        (task,) = plan(slices, strict, Sampler(), client)
    log.trim(1000)
    del log.rows[0]
    store.delete([gone.object])
    with pytest.raises(Exception, match=f"{topic}-0: offsets 0 to 999 are gone"):
        list(read_task(task, strict, SCHEMA, WANT, None))
    batches = read_task(task, lenient, SCHEMA, WANT, None)
    assert sum(batch.num_rows for batch in batches) == 1000


def test_a_broker_without_a_store_is_asked_once() -> None:
    asked: list[tuple[object, ...]] = []

    class Storeless:
        def cold(self, *words: object) -> None:
            asked.append(words)

    planner = ColdPlanner(cold_planning.ColdReads(), with_headers=False)
    slices = [Slice("t", "t", number, 0, 10_000) for number in range(5)]
    for _ in range(3):
        assert planner.cut(Storeless(), slices) == slices  # type: ignore[arg-type]
    assert asked == [("t", 0, 0, 10_000)]


@pytest.mark.parametrize("whole_bytes", [1 << 30, 0], ids=["whole pieces", "runs"])
def test_what_is_fetched_ahead_is_bounded(store, monkeypatch, whole_bytes) -> None:
    monkeypatch.setattr(cold_runs, "RUN_BYTES", 64 << 10)
    monkeypatch.setattr(cold_runs, "WHOLE_BYTES", whole_bytes)
    monkeypatch.setattr(cold_runs, "AHEAD_BYTES", 400 << 10)
    rows, per = [], 20
    for at in range(0, 30 * per, per):
        batches = [build_batch([row("x" * 9000)] * 1, base_offset=at + n) for n in range(per)]
        rows.append(put_piece(store, f"t/{unique()}", at, at + per, batches))
    asked: list[int] = []

    class Watched:
        def get_range(self, name: str, start: int, length: int):
            asked.append(length)
            return store.get_range(name, start, length)

    taken = most = 0
    with cold_runs.RunsAhead(Watched(), rows, 0, 30 * per) as runs:
        for run in runs:
            assert run.fetched is not None
            taken += len(run.fetched.result())
            most = max(most, sum(asked) - taken)
    assert taken == sum(one.log_bytes for one in rows)
    assert 200 << 10 < most < (2 * 400 + 2 * 200) << 10  # twice, and what was just begun
