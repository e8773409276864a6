"""What happens to callers of a bucket whose store or network fails? On SeaweedFS behind a proxy."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from onelog.base.errors import ColdDamaged, ColdUnavailable
from onelog.objects.bucket import PART_BYTES
from onelog.objects.store import ObjectStore, StoreSettings, Taken, open_store
from tests.support.s3_server import (
    ACCESS_KEY,
    SECRET_KEY,
    S3Server,
    available,
    s3_server,
    write_keys,
)
from tests.support.store_proxy import FOREVER, StoreProxy, store_proxy

pytest.importorskip("obstore")
pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")

DEADLINE_MS = 4000


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("objects")
        yield server


@pytest.fixture
def proxy(s3):
    with store_proxy(s3.endpoint) as between:
        yield between


def opened(server: S3Server, proxy: StoreProxy, **changed: str) -> ObjectStore:
    options = {**server.store_options, "aws_endpoint": proxy.endpoint, **changed}
    options = {name: value for name, value in options.items() if value}
    url = options.pop("url", f"s3://objects/{uuid.uuid4()}")
    return open_store(StoreSettings(url=url, options=options, deadline_ms=DEADLINE_MS))


@pytest.fixture
def store(s3, proxy) -> ObjectStore:
    return opened(s3, proxy)


def test_a_create_whose_answer_is_lost_is_done_once_and_says_so(store, proxy):
    proxy.fault("lose", method="PUT")
    store.create("n/1", [b"bulk"])
    assert store.get("n/1") == b"bulk"
    assert sum(method == "PUT" for method, _ in proxy.requests) == 2


def test_a_create_whose_every_answer_is_lost_is_found_by_the_next_one(store, proxy):
    proxy.fault("lose", FOREVER, method="PUT")
    with pytest.raises(ColdUnavailable):
        store.create("n/1", [b"bulk"])
    proxy.heal()
    store.create("n/1", [b"bulk"])
    with pytest.raises(Taken):
        store.create("n/1", [b"other"])


def test_a_409_about_nothing_is_no_object_of_another(store, proxy):
    proxy.fault("conflict", 2, method="PUT")
    store.create("n/1", [b"bulk"])
    assert store.get("n/1") == b"bulk"


def test_a_409_that_does_not_end_is_an_error_within_the_deadline(store, proxy):
    proxy.fault("conflict", FOREVER, method="PUT")
    begun = time.monotonic()
    with pytest.raises(ColdUnavailable):
        store.create("n/1", [b"bulk"])
    assert time.monotonic() - begun < 3 * DEADLINE_MS / 1000


def test_a_store_that_throttles_for_a_moment_is_asked_again(store, proxy):
    proxy.fault("throttle", 2)
    store.put("t/a", [b"x"])


def test_a_store_that_throttles_on_says_so_and_is_counted(store, proxy):
    proxy.fault("throttle", FOREVER)
    with pytest.raises(ColdUnavailable, match="fewer requests") as busy:
        store.get("t/a")
    assert busy.value.reason == "throttled" and store.counts.throttled == 1


@pytest.mark.parametrize("kind", ["drop", "lose"])
def test_a_store_that_never_answers_is_away_within_the_deadline(store, proxy, kind):
    proxy.fault(kind, FOREVER)
    begun = time.monotonic()
    with pytest.raises(ColdUnavailable, match="could not be reached") as away:
        store.get("t/a")
    assert away.value.reason == "away"
    assert time.monotonic() - begun < DEADLINE_MS / 1000 + 2


def test_a_store_that_hangs_is_away_within_the_deadline(store, proxy):
    store.put("t/a", [b"x"])
    proxy.fault("delay", FOREVER, seconds=30)
    begun = time.monotonic()
    for ask in (lambda: store.get("t/a"), lambda: store.put("t/b", [b"y"])):
        with pytest.raises(ColdUnavailable):
            ask()
    assert time.monotonic() - begun < 2 * DEADLINE_MS / 1000 + 4


def test_a_store_that_is_not_there_is_away_and_its_address_is_named(s3, proxy):
    store = opened(s3, proxy, aws_endpoint="http://127.0.0.1:1")
    with pytest.raises(ColdUnavailable, match="aws_endpoint"):
        store.get("t/a")


def test_a_body_that_is_cut_is_asked_for_again_or_an_error_never_short(store, proxy):
    store.put("t/a", [bytes(100_000)])
    proxy.fault("cut", method="GET")
    assert store.get_range("t/a", 0, 100_000) == bytes(100_000)
    proxy.fault("cut", FOREVER, method="GET")
    with pytest.raises((ColdUnavailable, ColdDamaged)):
        store.get_range("t/a", 0, 100_000)


def test_a_bit_that_flips_passes_the_store_and_is_for_the_checksums_above(store, proxy):
    store.put("t/a", [bytes(1000)])
    proxy.fault("flip", method="GET")
    assert sum(store.get("t/a")) == 1


def test_a_bucket_that_is_missing_is_not_an_object_that_is_missing(s3, proxy):
    store = opened(s3, proxy, url="s3://never-made/x")
    for ask in (
        lambda: store.get("t/a"),
        lambda: list(store.list("")),
        lambda: store.create("n/1", [b"x"]),
    ):
        with pytest.raises(ColdUnavailable, match="never-made") as told:
            ask()
        assert told.value.reason == "bucket"


def test_a_wrong_key_is_told_with_what_to_look_at_and_without_the_secret(s3, proxy):
    store = opened(s3, proxy, aws_secret_access_key="wrong-and-secret")
    for ask in (
        lambda: store.get("t/a"),
        lambda: list(store.list("")),
        lambda: store.create("n/1", [b"x"]),
        lambda: store.delete(["t/a"]),
    ):
        with pytest.raises(ColdUnavailable, match="check the key") as told:
            ask()
        assert told.value.reason == "refused" and "wrong-and-secret" not in str(told.value)
    assert store.counts.refused == 4


def test_clocks_that_differ_are_told_with_the_difference(store, proxy):
    proxy.date_moved_s = -3600
    proxy.fault("skew", FOREVER)
    with pytest.raises(ColdUnavailable, match=r"(3599|360\d) s ahead of") as told:
        store.get("t/a")
    assert told.value.reason == "clock"


def test_a_file_of_credentials_is_read_anew_when_it_changes(s3, proxy, tmp_path):
    file = tmp_path / "credentials"
    nothing = {"aws_access_key_id": "", "aws_secret_access_key": ""}
    store = opened(s3, proxy, credentials_file=str(file), **nothing)
    with pytest.raises(ColdUnavailable, match="credentials") as told:
        store.put("t/a", [b"x"])
    assert told.value.reason == "refused"
    write_keys(file)
    store.put("t/a", [b"x"])
    write_keys(file, secret="lost")
    # Keys that were changed are seen within a second, keys that are refused at once.
    deadline = time.monotonic() + 10
    with pytest.raises(ColdUnavailable, match="check the key"):
        while time.monotonic() < deadline:
            store.put("t/a", [b"y"])
            time.sleep(0.05)
    write_keys(file)
    store.put("t/a", [b"z"])
    assert store.get("t/a") == b"z"


def test_keys_in_the_environment_are_read_anew_when_they_change(s3, proxy, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lost")
    store = opened(s3, proxy, aws_access_key_id="", aws_secret_access_key="")
    with pytest.raises(ColdUnavailable, match="check the key"):
        store.put("t/a", [b"x"])
    os.environ["AWS_SECRET_ACCESS_KEY"] = SECRET_KEY
    store.put("t/a", [b"x"])


def test_a_server_that_is_killed_and_started_again_is_used_again(s3, store):
    store.put("t/a", [b"x"])
    s3.kill()
    with pytest.raises(ColdUnavailable):
        store.get("t/a")
    s3.start()
    deadline = time.monotonic() + 60
    while True:  # it answers with errors until it has found its own parts again
        try:
            assert store.get("t/a") == b"x"
            break
        except ColdUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize("kind", ["lose", "drop", "throttle"])
def test_a_part_of_a_large_object_that_fails_once_is_sent_again(store, proxy, kind):
    data = bytes(PART_BYTES + 100_000)
    proxy.fault(kind, 1, method="PUT", path="partNumber=2")
    store.put("t/large", [memoryview(data)[:1000], memoryview(data)[1000:]])
    assert [fault.times for fault in proxy.faults] == [0], "it was not sent in parts"
    assert store.get_suffix("t/large", 10) == bytes(10)
    assert [row.size_bytes for row in store.list("t/")] == [len(data)]


def test_a_large_object_whose_parts_do_not_arrive_is_not_there(store, proxy):
    data = bytes(PART_BYTES + 100_000)
    for path in ("partNumber=2", "uploadId="):  # a part; the end of the whole
        proxy.fault("refuse", FOREVER, method="PUT" if "part" in path else "POST", path=path)
        with pytest.raises(ColdUnavailable):
            store.put("t/large", [data])
        proxy.heal()
        assert list(store.list("t/")) == []
    store.put("t/large", [data])
    assert [row.size_bytes for row in store.list("t/")] == [len(data)]
