"""What does a tier do when its store fails, lies or is another one? On SeaweedFS behind a proxy."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import ColdDamaged, ColdUnavailable, Fenced, StorageError
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.tiered import TieredLog, stored_partition
from tests.batches import fill, read_all
from tests.support.s3_server import (
    ACCESS_KEY,
    NEXT_KEY,
    REGION,
    S3Server,
    available,
    s3_server,
    write_keys,
)
from tests.support.store_proxy import FOREVER, StoreProxy, store_proxy
from tests.support.tiers import KEY, SMALL, Owner, move_all, tiered, upload_all

pytest.importorskip("obstore")
pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")

DEADLINE_MS = 3000
WAIT_S = 30


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("tiers")
        yield server


@pytest.fixture
def proxy(s3):
    with store_proxy(s3.endpoint) as between:
        yield between


def opened(server: S3Server, proxy: StoreProxy, prefix: str) -> ObjectStore:
    options = {**server.store_options, "aws_endpoint": proxy.endpoint}
    url = f"s3://tiers/{prefix}"
    return open_store(StoreSettings(url=url, options=options, deadline_ms=DEADLINE_MS))


@pytest.fixture
def prefix() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def store(s3, proxy, prefix) -> ObjectStore:
    return opened(s3, proxy, prefix)


@pytest.fixture
def log(tmp_path: Path, store: ObjectStore):
    engine = tiered(tmp_path / "data", store)
    log = engine.open(KEY, SMALL)
    fill(log, 100)
    log.sync()
    yield log
    engine.close()


def pieces(store: ObjectStore) -> set[str]:
    return {row.name for row in store.list("t/")}


def check_moved(log: TieredLog, store: ObjectStore, whole: bytes) -> None:
    """Everything is in the store, once, and is read from there."""
    move_all(log)
    assert log.local_start_offset == log.end_offset
    assert read_all(log) == whole
    rows = stored_partition(store, KEY).manifest.rows
    assert [row.object for row in rows] == [row.object for row in log.cold_rows(0, log.end_offset)]
    assert [row.base for row in rows[1:]] == [row.end for row in rows[:-1]]


@pytest.mark.parametrize("path", ["/t/", "/m/"])
def test_answers_that_are_lost_cost_nothing_and_write_nothing_twice(log, store, proxy, path):
    whole = read_all(log)
    proxy.fault("lose", 1, method="PUT", path=path)
    check_moved(log, store, whole)
    assert len(pieces(store)) == len(log.cold_rows(0, log.end_offset))


def test_a_manifest_whose_every_answer_was_lost_is_found_by_the_next_upload(log, store, proxy):
    whole = read_all(log)
    proxy.fault("lose", FOREVER, method="PUT", path="/m/")
    with pytest.raises(ColdUnavailable):
        log.tier.upload(log.end_offset, Owner())
    assert log.tier.status().rows == 0, "nothing is believed that was not answered"
    proxy.heal()
    check_moved(log, store, whole)


@pytest.mark.parametrize("kind", ["drop", "throttle", "refuse"])
def test_a_store_that_is_away_stops_nothing_here(log, store, proxy, kind):
    whole = read_all(log)
    proxy.fault(kind, FOREVER)
    with pytest.raises(ColdUnavailable):
        upload_all(log)
    assert log.tier.status().halted == "", "it may work later"
    fill(log, 30)
    log.trim(10)
    assert read_all(log)[: len(whole)]
    proxy.heal()
    whole = read_all(log)
    check_moved(log, store, whole)


def test_a_clock_that_the_store_refuses_is_told_with_the_difference_and_loses_nothing(
    log, store, proxy
):
    whole = read_all(log)
    proxy.date_moved_s = 1800
    proxy.fault("skew", FOREVER)
    with pytest.raises(ColdUnavailable, match="s behind its own") as told:
        upload_all(log)
    assert told.value.reason == "clock"
    assert log.tier.status().halted == "", "it goes on by itself"
    proxy.heal()
    move_all(log)
    proxy.fault("skew", FOREVER)
    with pytest.raises(ColdUnavailable, match="set the clocks right"):
        read_all(log)
    proxy.heal()
    check_moved(log, store, whole)


@pytest.mark.parametrize("kind", ["cut", "flip"])
def test_bytes_that_go_bad_on_their_way_are_fetched_again(log, store, proxy, kind):
    whole = read_all(log)
    move_all(log)
    proxy.fault(kind, 1, method="GET", path="/t/")
    assert read_all(log) == whole


@pytest.mark.parametrize("kind", ["cut", "flip"])
def test_a_manifest_that_goes_bad_on_its_way_is_fetched_again(log, store, proxy, tmp_path, kind):
    assert log.tier.upload(log.end_offset, Owner()) is not None
    whole = read_all(log)
    log.close()
    again = tiered(tmp_path / "data", store).open(KEY, SMALL)
    proxy.fault(kind, 1, method="GET", path="/m/")
    assert again.tier.upload(again.end_offset, Owner()) is not None
    assert [fault.times for fault in proxy.faults] == [0], "no manifest was read"
    assert again.tier.status().halted == ""
    check_moved(again, store, whole)
    again.close()


def test_an_object_with_a_bit_flipped_is_damaged_and_only_its_range_is_lost(log, store):
    whole = read_all(log)
    move_all(log)
    row = log.cold_rows(0, log.end_offset)[1]
    data = bytearray(store.get(row.object))
    data[row.log_bytes // 2] ^= 1
    store.put(row.object, [bytes(data)])
    with pytest.raises(ColdDamaged, match=row.object):
        read_all(log)
    assert whole.endswith(read_all(log, row.end))
    fill(log, 3)
    log.trim(row.end)
    assert len(read_all(log)) > 0, "retention passes it"


def test_an_object_that_is_gone_is_damaged_and_never_out_of_range(log, store):
    move_all(log)
    row = log.cold_rows(0, log.end_offset)[0]
    store.delete([row.object])
    with pytest.raises(ColdDamaged, match="is gone"):
        read_all(log)


def test_a_bucket_that_was_emptied_and_a_wrong_prefix_are_refused(
    log, store, s3, proxy, prefix, tmp_path
):
    move_all(log)
    seq = log.tier.status().seq
    log.close()
    elsewhere = opened(s3, proxy, f"{prefix}-other")
    store.delete([row.name for row in store.list("")])
    for other in (elsewhere, store):
        engine = tiered(tmp_path / "data", other)
        again = engine.open(KEY, SMALL)
        fill(again, 60)
        again.sync()
        with pytest.raises(StorageError, match=f"no manifest, ours is {seq}"):
            upload_all(again)
        assert list(other.list("")) == [], "nothing was written there"
        again.close()


def test_two_brokers_in_one_prefix_do_not_overwrite_each_other(log, store, tmp_path):
    whole = read_all(log)
    other = tiered(tmp_path / "other", store)
    twin = other.open(KEY, SMALL)
    fill(twin, 100)
    twin.sync()
    assert log.tier.upload(log.end_offset, Owner()) is not None
    assert twin.tier.upload(twin.end_offset, Owner()) is not None
    with pytest.raises(Fenced):
        log.tier.upload(log.end_offset, Owner())
    assert "restart this one" in log.tier.status().halted
    check_moved(twin, store, whole)
    other.close()


def test_deletions_whose_answer_is_lost_are_done_again(log, store, proxy):
    move_all(log)
    log.trim(log.end_offset)
    proxy.fault("lose", FOREVER, method="POST")
    proxy.fault("lose", FOREVER, method="DELETE")
    clock = ManualClock()
    with pytest.raises(ColdUnavailable):
        log.tier.settle(clock.now_ms() + 10, 0)
    proxy.heal()
    assert log.tier.settle(clock.now_ms() + 10, 0) > 0
    assert pieces(store) == set()
    assert stored_partition(store, KEY).manifest.doomed == ()


def test_a_store_that_is_slow_gets_everything_and_holds_up_nobody_here(s3, proxy, prefix, tmp_path):
    settings = StoreSettings(
        url=f"s3://tiers/{prefix}",
        options={**s3.store_options, "aws_endpoint": proxy.endpoint},
        deadline_ms=2 * WAIT_S * 1000,
    )
    store, answers = open_store(settings), threading.Event()
    engine = tiered(tmp_path / "data", store)
    log = engine.open(KEY, SMALL)
    fill(log, 100)
    log.sync()
    proxy.fault("before", FOREVER, call=lambda: answers.wait(WAIT_S))
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(upload_all, log)
        while not proxy.requests:
            assert not moved.done()
            time.sleep(0.01)
        fill(log, 30)
        log.sync()
        log.trim(10)
        assert len(read_all(log)) > 0
        assert not moved.done(), "it waits for the store, and nobody else does"
        answers.set()
        assert moved.result() > 0
    whole = read_all(log)
    check_moved(log, store, whole)
    engine.close()


def test_keys_that_are_lost_and_changed_while_it_runs_lose_nothing(s3, proxy, prefix, tmp_path):
    keys = tmp_path / "keys"
    write_keys(keys)
    options = {
        "aws_endpoint": proxy.endpoint, "aws_region": REGION, "credentials_file": str(keys),
    }  # fmt: skip
    settings = StoreSettings(url=f"s3://tiers/{prefix}", options=options, deadline_ms=DEADLINE_MS)
    store = open_store(settings)
    engine = tiered(tmp_path / "data", store)
    log = engine.open(KEY, SMALL)
    fill(log, 60)
    move_all(log)
    keys.unlink()
    proxy.fault("refuse", FOREVER, key=ACCESS_KEY)  # and the old ones are worth nothing
    fill(log, 60)
    log.sync()
    whole_of_now = read_all(log, log.local_start_offset)
    for ask in (lambda: upload_all(log), lambda: tiered_again(tmp_path, store)):
        with pytest.raises(ColdUnavailable, match=r"credentials|key") as told:
            ask()
        assert told.value.reason == "refused"
    assert log.tier.status().halted == "", "it may work later"
    assert read_all(log, log.local_start_offset) == whole_of_now, "what is here is read"
    write_keys(keys, NEXT_KEY)
    ends = time.monotonic() + WAIT_S
    while True:  # new keys are seen within a second
        try:
            whole = read_all(log)
            break
        except ColdUnavailable:
            assert time.monotonic() < ends
            time.sleep(0.1)
    check_moved(log, store, whole)
    engine.close()


def tiered_again(tmp_path: Path, store: ObjectStore) -> None:
    """Reads history in a cache that has nothing of it."""
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    engine = tiered(tmp_path / "copy", store)
    try:
        read_all(engine.open(KEY, SMALL))
    finally:
        engine.close()
