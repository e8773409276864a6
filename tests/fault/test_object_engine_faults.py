"""The object engine on SeaweedFS: killed at every step, behind a proxy that loses and refuses, away
and back, and with two writers. Every answered record is there once, in order, with its bytes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.errors import ColdDamaged, ColdUnavailable, StorageFull, StoreFenced
from onelog.base.ids import PartitionId
from onelog.objects import names
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.objects.sweeping import sweep
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine
from tests.batches import append, fill, make_batch, read_all, spans
from tests.fault.object_child import KEYS, SETTINGS, an_engine
from tests.support.object_engine import a_store, object_engine
from tests.support.s3_server import S3Server, available, s3_server
from tests.support.store_proxy import FOREVER, store_proxy

pytest.importorskip("obstore")
pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not available(), reason="SeaweedFS is not installed"),
]
DIED_AT_POINT = 137
WAIT_S = 30
KEY = PartitionKey("s-1", PartitionId(0))
POINTS = (
    "chain.put=exit:0",
    "chain.put=exit:7",
    "store.put.after=exit:9",
    "settle.put=exit:0",
    "settle.put=exit:1",
    "settle.note=exit:0",
    "settle.note=exit:2",
    "chain.checkpoint=exit:0",
    "open.epoch=exit:1",
    "open.fence=exit:0",
    "open.fence=exit:1",
    "open.base=exit:1",
    "open.base=exit:2",
    "doom.delete=exit:0",
    "doom.delete=exit:2",
)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("log")
        server.bucket("chain")
        yield server


@pytest.fixture
def proxy(s3):
    with store_proxy(s3.endpoint) as between:
        yield between


@pytest.fixture
def url() -> str:
    return f"s3://log/{uuid.uuid4()}"


def opened(s3, url: str, endpoint: str = "") -> ObjectStore:
    options = {**s3.store_options, "aws_endpoint": endpoint or s3.endpoint}
    return open_store(StoreSettings(url=url, options=options, deadline_ms=2000))


def check_whole(data: bytes, end: int) -> None:
    """Every offset below `end` once, in order, with the bytes that were written."""
    assert [first for first, _ in spans(data)] == list(range(end))
    for first, _ in spans(data):
        assert make_batch(first, size=200) in data


def check_objects(store: ObjectStore, engine: ObjectEngine) -> None:
    """After a sweep the store has what rows name, and nothing else."""
    sweep(store, {names.DATA: engine.needed}, age_ms=-1000)
    there = {row.name for row in store.list(names.DATA)}
    rows = {row.object for held in engine.core.contents.values() for row in held.cold.rows}
    assert there == rows | set(engine.core.image.doomed)


@pytest.mark.parametrize("point", POINTS)
def test_what_was_answered_survives_a_kill_at_every_step(s3, url, tmp_path, point):
    check_kill(s3, url, tmp_path, point)


@pytest.mark.parametrize(
    "point",
    ["chain.put=exit:7", "settle.note=exit:1", "chain.checkpoint=exit:1", "doom.delete=exit:2"],
)
def test_a_chain_in_a_store_of_its_own_survives_a_kill_and_each_store_has_its_part(
    s3, url, tmp_path, point
):
    chain_url = f"s3://chain/{uuid.uuid4()}"
    check_kill(s3, url, tmp_path, point, chain_url)
    data, chain = opened(s3, url), opened(s3, chain_url)
    assert {row.name.partition("/")[0] for row in data.list("")} == {"d"}
    assert {row.name.partition("/")[0] for row in chain.list("")} == {"n"}
    assert sweep(chain, {}, age_ms=-1000).seen == 0, "nothing but the chain lies there"


def check_kill(s3: S3Server, url: str, tmp_path: Path, point: str, chain_url: str = "") -> None:
    """Let a process die at a point, and compare what it promised with what is there."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.fault.object_child", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "ONELOG_FAULTS": point,
            "STORE_URL": url,
            "CHAIN_URL": chain_url,
            "STORE_OPTIONS": json.dumps(s3.store_options),
        },
    )
    assert child.returncode == DIED_AT_POINT, child.stdout + child.stderr
    promised = {0: 0, 1: 0}
    for line in child.stdout.splitlines():
        word, *numbers = line.split()
        if word == "synced":
            promised[int(numbers[0])] = int(numbers[1])
    store = opened(s3, url)
    chain_store = opened(s3, chain_url) if chain_url else None
    for place in ("next", "last"):  # the second one finds what the first one left
        engine = an_engine(store, tmp_path / place, chain_store)
        logs = [engine.open(key, SETTINGS) for key in KEYS]
        for number, log in enumerate(logs):
            assert log.end_offset >= promised[number], "an answered record is lost"
            check_whole(read_all(log), int(log.end_offset))
            fill(log, 2, size=200)
            promised[number] = int(log.sync())
        engine.upkeep.settle()
        engine.upkeep.work()
        check_objects(store, engine)
    for log in logs:
        check_whole(read_all(log), int(log.end_offset))
    engine.close()


KILLS = (
    "chain.put",
    "settle.put",
    "settle.note",
    "chain.checkpoint",
    "open.epoch",
    "open.fence",
    "open.base",
    "doom.delete",
)


@pytest.mark.parametrize("point", KILLS)
def test_what_was_answered_survives_a_kill_of_the_store_at_every_step(s3, url, tmp_path, point):
    killed: list[threading.Thread] = []

    def kill() -> None:
        if not killed and engine_count:
            s3.kill()
            killed.append(threading.Thread(target=s3.start))
            killed[0].start()

    store = opened(s3, url)
    engine_count, promised = 0, 0
    faults.arm(point, kill)
    ends = time.monotonic() + 3 * WAIT_S
    engine, log = None, None
    try:
        while not killed or engine_count < 3:  # engines that take over from each other
            assert time.monotonic() < ends, "the store was not killed, or nothing goes on"
            with contextlib.suppress(ColdUnavailable):
                engine = an_engine(store, tmp_path)
                engine_count += 1
                log = engine.open(KEY, SETTINGS)
                assert log.end_offset >= promised, "an answered record is lost"
                for _ in range(3):
                    fill(log, 4, size=200)
                    promised = int(log.sync())
                    engine.upkeep.settle()
                    engine.upkeep.work()
    finally:
        faults.disarm()
        for thread in killed:
            thread.join()
    assert engine is not None and log is not None
    end = int(log.end_offset)
    engine.core.chain.wait(WAIT_S)
    last = an_engine(store, tmp_path)
    log = last.open(KEY, SETTINGS)
    assert promised <= log.end_offset == end
    check_whole(read_all(log), end)
    last.upkeep.settle()
    last.upkeep.work()
    check_objects(store, last)
    last.close()
    engine.close()


def test_lost_answers_and_throttling_change_nothing_but_time(s3, proxy, url, tmp_path):
    engine = object_engine(opened(s3, url, proxy.endpoint), tmp_path)
    log = engine.open(KEY, LogSettings())
    proxy.fault("lose", 3, method="PUT", path="/w/")
    proxy.fault("throttle", 12, method="PUT", path="/w/")
    proxy.fault("conflict", 2, method="PUT", path="/w/")
    for _ in range(8):
        fill(log, 3, size=200)
        assert log.sync() == log.end_offset
    assert proxy.faults == [] or all(fault.times == 0 for fault in proxy.faults)
    other = object_engine(opened(s3, url), tmp_path)
    check_whole(read_all(other.open(KEY, LogSettings())), 24)
    engine.close()
    other.close()


def test_a_store_that_is_away_holds_answers_back_then_refuses_and_then_goes_on(
    s3, proxy, url, tmp_path
):
    engine = object_engine(
        opened(s3, url, proxy.endpoint), tmp_path, buffer_bytes=20_000, settle_bytes=10_000
    )
    log = engine.open(KEY, LogSettings())
    fill(log, 2, size=200)
    log.sync()
    proxy.fault("drop", FOREVER)
    answered = threading.Event()
    engine.core.chain.when_in(lambda _error: None)
    fill(log, 1, size=200)
    engine.core.chain.when_in(lambda _error: answered.set())
    with pytest.raises(StorageFull, match="wait for the object store"):
        while True:
            fill(log, 1, size=200)
    ends = time.monotonic() + WAIT_S
    while not engine.core.chain.away_s and time.monotonic() < ends:
        time.sleep(0.05)
    assert engine.core.chain.away_s
    assert not answered.is_set(), "answered before the store had it"
    assert log.durable_offset == 2
    end = int(log.end_offset)
    proxy.heal()
    assert answered.wait(WAIT_S)
    assert log.sync() == end
    engine.upkeep.settle()
    fill(log, 3, size=200)  # there is room again
    log.sync()
    other = object_engine(opened(s3, url), tmp_path)
    check_whole(read_all(other.open(KEY, LogSettings())), end + 3)
    engine.close()
    other.close()


def test_keys_that_are_refused_for_a_while_lose_nothing(s3, proxy, url, tmp_path):
    engine = object_engine(opened(s3, url, proxy.endpoint), tmp_path)
    log = engine.open(KEY, LogSettings())
    proxy.fault("refuse", FOREVER, method="PUT")
    fill(log, 4, size=200)
    ends = time.monotonic() + WAIT_S
    while engine.core.chain.last_failure is None and time.monotonic() < ends:
        time.sleep(0.05)
    failure = engine.core.chain.last_failure
    assert failure is not None
    assert failure.reason == "refused"
    assert "check the key" in str(failure)
    assert log.durable_offset == 0
    proxy.heal()
    assert log.sync() == 4
    engine.close()


@pytest.mark.parametrize("path", ["/w/", "/c/", "/base"])
@pytest.mark.parametrize("kind", ["flip", "cut"])
def test_a_start_reads_again_what_goes_bad_on_its_way(s3, proxy, url, tmp_path, kind, path):
    old = object_engine(opened(s3, url), tmp_path)
    log = old.open(KEY, LogSettings())
    for turn in range(6):
        fill(log, 2, size=200)
        log.sync()
        if turn == 2 and path == "/c/":
            old.upkeep.checkpoint()
    proxy.fault(kind, 1, method="GET", path=path)
    new = object_engine(opened(s3, url, proxy.endpoint), tmp_path)
    assert [fault.times for fault in proxy.faults] == [0], f"nothing was read of {path}"
    check_whole(read_all(new.open(KEY, LogSettings())), 12)
    old.close()
    new.close()


@pytest.mark.parametrize("kind", ["flip", "cut"])
def test_rows_that_go_bad_on_their_way_are_fetched_again(s3, proxy, url, tmp_path, kind):
    engine = object_engine(opened(s3, url), tmp_path)
    log = engine.open(KEY, SETTINGS)
    for _ in range(3):
        fill(log, 4, size=200)
        engine.upkeep.settle()
    engine.close()
    gets = 1
    while True:  # each of the reads goes bad once
        proxy.heal()
        proxy.fault("delay", gets - 1, method="GET", path="/d/")
        proxy.fault(kind, 1, method="GET", path="/d/")
        engine = object_engine(opened(s3, url, proxy.endpoint), tmp_path)
        check_whole(read_all(engine.open(KEY, SETTINGS)), 12)
        engine.close()
        if proxy.faults[-1].times:
            break
        gets += 1
    assert gets > 6, "three rows have three index parts and three runs"


def test_a_clock_that_is_refused_is_told_with_the_difference_and_loses_nothing(
    s3, proxy, url, tmp_path
):
    engine = object_engine(opened(s3, url, proxy.endpoint), tmp_path)
    log = engine.open(KEY, LogSettings())
    proxy.date_moved_s = -3600
    proxy.fault("skew", FOREVER, method="PUT")
    fill(log, 4, size=200)
    ends = time.monotonic() + WAIT_S
    while engine.core.chain.last_failure is None and time.monotonic() < ends:
        time.sleep(0.05)
    failure = engine.core.chain.last_failure
    assert failure is not None
    assert failure.reason == "clock"
    assert "s ahead of its own" in str(failure)
    assert log.durable_offset == 0
    with pytest.raises(ColdUnavailable, match="set the clocks right"):
        object_engine(opened(s3, url, proxy.endpoint), tmp_path)
    proxy.heal()
    assert log.sync() == 4
    engine.close()


def test_of_two_writers_the_older_one_stops_with_words_and_loses_nothing(s3, url, tmp_path):
    old = object_engine(opened(s3, url), tmp_path)
    first = old.open(KEY, LogSettings())
    fill(first, 5, size=200)
    first.sync()
    new = object_engine(opened(s3, url), tmp_path)
    second = new.open(KEY, LogSettings())
    fill(second, 5, size=200)
    second.sync()
    fill(first, 1, size=200)
    with pytest.raises(StoreFenced, match="stop one of them"):
        first.sync()
    with pytest.raises(StoreFenced):
        append(first, make_batch(6))
    with pytest.raises(StoreFenced):
        first.read(0, 100, 5)
    fill(second, 1, size=200)
    assert second.sync() == 11
    check_whole(read_all(second), 11)
    old.close()
    new.close()


def test_a_damaged_or_missing_object_before_the_fence_stops_the_start_with_its_name(tmp_path):
    for harm in ("damage", "delete"):
        store = a_store(f"memory://{uuid.uuid4()}")
        engine = object_engine(store, tmp_path)
        log = engine.open(KEY, LogSettings())
        for _ in range(4):
            fill(log, 1, size=200)
            log.sync()
        engine.close()
        name = names.chain_wal("0", 1, 2)
        held = bytearray(store.get(name))
        store.delete([name])
        if harm == "damage":
            held[-1] ^= 1
            store.create(name, [held])
        with pytest.raises(ColdDamaged, match=name):
            object_engine(store, tmp_path)
