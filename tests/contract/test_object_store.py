"""What every store of objects keeps: memory, a folder, a bucket of a real S3 server, and buckets of
stand-ins for Azure and Google Cloud Storage."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import uuid

import pytest

from onelog.base import faults
from onelog.base.errors import ColdDamaged, ColdUnavailable, InvalidRequest, NotFound
from onelog.objects.bucket import PART_BYTES
from onelog.objects.counts import Prices, Usage
from onelog.objects.store import ObjectStore, StoreSettings, Taken, open_store
from tests.support.cloud_servers import cloud_server
from tests.support.s3_server import available, s3_server

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    if not available():
        pytest.skip("SeaweedFS is not installed")
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("objects")
        yield server


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    with cloud_server("azure", tmp_path_factory.mktemp("azure") / "blobs") as server:
        server.bucket("objects")
        yield server


@pytest.fixture(scope="module")
def gcs(tmp_path_factory):
    with cloud_server("gcs", tmp_path_factory.mktemp("gcs") / "objects") as server:
        server.bucket("objects")
        yield server


@pytest.fixture(params=["memory", "folder", "bucket", "azure", "gcs"])
def settings(request, tmp_path) -> StoreSettings:
    if request.param == "memory":
        return StoreSettings(url=f"memory://{uuid.uuid4()}")
    if request.param == "folder":
        return StoreSettings(url=f"file://{tmp_path}/store")
    server = request.getfixturevalue("s3" if request.param == "bucket" else request.param)
    if request.param != "bucket":
        url = server.url("objects", str(uuid.uuid4()))
        return StoreSettings(url=url, options=server.store_options)
    return StoreSettings(url=f"s3://objects/{uuid.uuid4()}", options=server.store_options)


@pytest.fixture
def store(settings) -> ObjectStore:
    return open_store(settings)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.disarm()


def test_what_was_put_is_read_back_whole_in_part_and_from_its_end(store):
    store.put("t/a", [b"01", bytearray(b"23"), memoryview(b"456789")])
    assert store.get("t/a") == b"0123456789"
    assert store.get_range("t/a", 3, 4) == b"3456"
    assert store.get_suffix("t/a", 3) == b"789"


def test_an_object_of_several_parts_is_whole(store):
    data = bytes(range(256)) * (PART_BYTES // 256 + 1000)
    store.put("d/large", [data[:1000], memoryview(data)[1000:]])
    assert store.get_range("d/large", PART_BYTES - 5, 10) == data[PART_BYTES - 5 : PART_BYTES + 5]
    assert store.get("d/large") == data


def test_a_name_is_created_once_and_by_one_writer(store):
    store.create("m/1", [b"mine"])
    with pytest.raises(Taken) as other:
        store.create("m/1", [b"another's"])
    assert (other.value.name, other.value.found) == ("m/1", b"mine")
    assert store.get("m/1") == b"mine"


def test_creating_the_same_bytes_again_is_done_already(store):
    store.create("m/1", [b"mi", b"ne"])
    store.create("m/1", [b"mine"])


def test_of_many_racers_one_creates_the_name(store):
    outcomes: list[bytes | None] = []
    gate = threading.Barrier(8)

    def race(number: int) -> None:
        gate.wait()
        try:
            store.create("m/raced", [b"racer %d" % number])
            outcomes.append(b"racer %d" % number)
        except Taken as taken:
            outcomes.append(taken.found)

    racers = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert set(outcomes) == {store.get("m/raced")} and len(outcomes) == 8


def test_names_are_listed_ascending_behind_a_name_and_up_to_a_limit(store):
    names = ["m/00/a/1", "m/00/a/2", "m/00/b/1", "m/00/b/10", "m/01/x", "n/1"]
    for name in reversed(names):
        store.put(name, [name.encode()])
    assert [row.name for row in store.list("m/")] == sorted(names[:5])
    assert [row.name for row in store.list("")] == sorted(names)
    assert [row.name for row in store.list("m/", after="m/00/a/1")] == sorted(names)[1:5]
    assert [row.name for row in store.list("m/00/", limit=2)] == sorted(names)[:2]
    row = next(iter(store.list("n/")))
    assert row.size_bytes == 3 and row.modified_ms > 1_700_000_000_000
    assert not list(store.list("nowhere/"))


def test_deleting_is_for_names_that_are_there_and_for_others(store):
    store.put("d/1", [b"x"])
    store.put("d/2", [b"y"])
    store.delete(["d/1", "d/never", "d/2"])
    assert not list(store.list("d/"))
    store.delete([])


def test_a_name_that_is_not_there_is_not_found(store):
    store.put("there", [b"x"])
    for ask in (store.get, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(NotFound, match="missing"):
            ask("t/missing")


def test_a_range_that_the_object_does_not_have_is_damage(store):
    store.put("t/short", [b"0123"])
    with pytest.raises(ColdDamaged, match="t/short"):
        store.get_range("t/short", 2, 10)
    with pytest.raises(ColdDamaged, match="t/short"):
        store.get_suffix("t/short", 10)


def test_requests_and_bytes_are_counted_and_priced(store):
    store.put("t/a", [b"x" * 1000])
    store.get_range("t/a", 0, 100)
    list(store.list("t/"))
    store.delete(["t/a"])
    usage = store.counts.last_hour()
    assert usage == store.counts.total == Usage(1, 1, 1, 1, 1000, 100)
    assert store.counts.last_success_ms and not store.counts.errors
    prices = Prices(put=5e6, get=1e6, list=0, delete=0, sent_gb=1e6, received_gb=0)
    assert prices.dollars(usage) == pytest.approx(5 + 1 + 1)


def test_an_answer_that_is_lost_leaves_a_write_that_the_same_create_finds(store):
    faults.arm("store.put.after", faults.fail_with(5))
    with pytest.raises(ColdUnavailable):
        store.create("n/1", [b"bulk"])
    assert store.counts.errors == 1 and store.counts.last_error
    faults.disarm()
    store.create("n/1", [b"bulk"])
    assert store.get("n/1") == b"bulk"


def test_two_who_open_a_store_see_the_same_objects(settings, store):
    store.put("t/a", [b"x"])
    assert open_store(settings).get("t/a") == b"x"


@pytest.mark.parametrize("url", ["", "bucket", "ftp://x/y", "file://relative", "/srv/x"])
def test_a_url_that_is_no_store_is_refused_with_the_right_form(url):
    with pytest.raises(InvalidRequest, match="://"):
        open_store(StoreSettings(url=url))


def test_a_folder_that_is_not_mounted_is_away_and_its_objects_are_not_gone(tmp_path):
    store = open_store(StoreSettings(url=f"file://{tmp_path}/never"))
    for ask in (
        lambda: store.get("t/a"),
        lambda: list(store.list("")),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(ColdUnavailable, match="mount") as away:
            ask()
        assert away.value.reason == "bucket"


@pytest.mark.parametrize("begin", ["put", "list", "start"])
def test_a_folder_that_vanished_is_never_made_again(tmp_path, begin):
    root = tmp_path / "store"
    if begin == "start":
        root.mkdir()
    store = open_store(StoreSettings(url=f"file://{root}"))
    if begin == "put":
        store.put("t/a", [b"answered"])  # the folder of a new store is made
    elif begin == "list":
        root.mkdir()
        assert not list(store.list(""))
    shutil.rmtree(root)
    for put in (store.put, store.create):
        with pytest.raises(ColdUnavailable, match="mount") as away:
            put("t/b", [b"more"])
        assert away.value.reason == "bucket"
    assert not root.exists(), "an empty folder looks like a new store"


def test_a_new_folder_that_is_first_used_while_somebody_looks_at_it_was_not_emptied(
    tmp_path, monkeypatch
):
    store = open_store(StoreSettings(url=f"file://{tmp_path}"))
    scandir = os.scandir

    def look_slowly(path):
        with scandir(path) as found:
            seen = list(found)
        monkeypatch.setattr(os, "scandir", scandir)
        store.put("t/a", [b"the first object"])
        return contextlib.nullcontext(iter(seen))

    monkeypatch.setattr(os, "scandir", look_slowly)
    list(store.list(""))
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(ColdUnavailable, match="it held objects"):
        list(store.list(""))


@pytest.mark.parametrize("is_reopened", [False, True], ids=["running", "started"])
def test_a_folder_that_was_emptied_is_away_and_nothing_is_written_there(tmp_path, is_reopened):
    root, settings = tmp_path / "store", StoreSettings(url=f"file://{tmp_path}/store")
    store = open_store(settings)
    store.put("t/a", [b"answered"])
    store.delete(["t/a"])
    store.put("t/b", [b"a store without objects is not empty"])
    store.delete(["t/b"])
    if is_reopened:
        store = open_store(settings)
        assert not list(store.list(""))
    root.rename(tmp_path / "unmounted")
    root.mkdir()  # what lies below a mount point
    for ask in (
        lambda: store.put("t/c", [b"more"]),
        lambda: store.create("t/c", [b"more"]),
        lambda: store.get("t/a"),
        lambda: list(store.list("")),
        lambda: store.delete(["t/a"]),
    ):
        with pytest.raises(ColdUnavailable, match="it held objects") as away:
            ask()
        assert away.value.reason == "bucket"
    assert not list(root.iterdir())
    root.rmdir()
    (tmp_path / "unmounted").rename(root)
    store.put("t/c", [b"more"])
    assert store.get("t/c") == b"more"


def test_half_a_file_that_a_crash_left_is_no_object(tmp_path):
    store = open_store(StoreSettings(url=f"file://{tmp_path}"))
    store.put("t/a", [b"x"])
    (tmp_path / "t" / "b.0123.tmp").write_bytes(b"half")
    assert [row.name for row in store.list("")] == ["t/a"]
    with pytest.raises(InvalidRequest):
        store.get("../outside")
