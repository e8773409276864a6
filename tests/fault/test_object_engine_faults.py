"""The object engine on SeaweedFS: killed at every step, behind a proxy that loses and refuses, away
and back, and with two writers. Every answered record is there once, in order, with its bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid

import pytest

from onelog.base.errors import ColdDamaged, StorageFull, StoreFenced
from onelog.base.ids import PartitionId
from onelog.objects import names
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.objects.sweeping import sweep
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine
from tests.batches import append, fill, make_batch, read_all, spans
from tests.fault.object_child import KEYS, SETTINGS, an_engine
from tests.support.object_engine import a_store, object_engine
from tests.support.s3_server import available, s3_server
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
    for _ in range(2):  # the second one finds what the first one left
        engine = an_engine(store, tmp_path)
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
