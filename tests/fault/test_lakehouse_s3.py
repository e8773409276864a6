"""Is each record a row once when the bucket goes away? Tables on SeaweedFS, with a real process."""

from __future__ import annotations

import contextlib
import time

import pytest
from msgspec.structs import replace

from onelog.base.errors import ColdUnavailable, StorageError
from onelog.base.ids import Offset
from tests.batches import append, make_batch, read_all
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.s3_server import (
    ACCESS_KEY,
    NEXT_KEY,
    REGION,
    SECRET_KEY,
    available,
    s3_server,
    write_keys,
)
from tests.support.store_proxy import FOREVER, store_proxy
from tests.support.tiers import KEY, Owner

pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        found.bucket("lake-iceberg")
        found.bucket("lake-delta")
        yield found


@pytest.fixture
def proxy(server):
    """What stands between the bucket and both processes of a broker."""
    with store_proxy(server.endpoint) as between:
        yield between


@pytest.fixture(params=["iceberg", "delta"])
def site(request, tmp_path, server, proxy):
    words = {
        "aws_endpoint": proxy.endpoint,
        "aws_region": REGION,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
    }
    url = f"s3://lake-{request.param}/{tmp_path.name}"
    made = LakeSite(tmp_path, request.param, url, words, server.options)
    yield made
    made.close()


def write(log, count):
    for _ in range(count):
        append(log, make_batch(log.end_offset, 10, size=400))
    log.roll()
    log.sync()


def test_rows_in_a_bucket_are_read_as_they_were(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 12)
    before = read_all(log)
    assert log.tier.upload(log.end_offset, Owner()).end == 120
    log.tier.trim_local(Offset(120))
    assert site.offsets() == list(range(120))
    assert read_all(log) == before


def test_a_bucket_that_was_away_gets_each_record_once(site, server):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    assert log.tier.upload(log.end_offset, Owner()).end == 30
    write(log, 3)
    server.kill()
    try:
        with pytest.raises(ColdUnavailable):
            log.tier.upload(log.end_offset, Owner())
    finally:
        server.start()
    assert log.tier.upload(log.end_offset, Owner()).end == 60
    assert site.offsets() == list(range(60))


@pytest.mark.fault_long
def test_another_warehouse_or_catalog_is_refused_and_the_right_one_goes_on(site):
    right = site.defaults
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    assert log.tier.upload(log.end_offset, Owner()).end == 30
    log.tier.trim_local(Offset(30))
    write(log, 3)
    whole = read_all(log)
    site.close()
    place = f"{site.url}/elsewhere"
    other = f"sqlite:///{site.folder}/other.db"
    site.defaults = replace(right, warehouse=place, folder=place, catalog=other)
    log = site.engine().open(KEY, table_settings(site.format))
    with pytest.raises(StorageError, match=r"lake\.warehouse are others now"):
        log.tier.upload(log.end_offset, Owner())
    assert "its mark says offset -1, and the manifest 30" in log.tier.status().halted
    assert read_all(log) == whole, "what is there is read, wherever new tables would lie"
    site.close()
    site.defaults = right
    log = site.engine().open(KEY, table_settings(site.format))
    assert log.tier.upload(log.end_offset, Owner()).end == 60
    assert site.offsets() == list(range(60))


@pytest.mark.parametrize("site", ["delta"], indirect=True)
def test_a_warehouse_in_a_bucket_that_is_missing_gets_nothing_and_loses_nothing(site):
    right = site.defaults
    place = "s3://never-made/lake"
    site.defaults = replace(right, warehouse=place, folder=place)
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    with pytest.raises(ColdUnavailable, match="no bucket never-made") as told:
        log.tier.upload(log.end_offset, Owner())
    assert told.value.reason == "bucket"
    assert (log.tier.status().halted, log.tier.status().cold_end_offset) == ("", 0)
    assert len(read_all(log)) > 0
    site.close()
    site.defaults = right
    log = site.engine().open(KEY, table_settings(site.format))
    assert log.tier.upload(log.end_offset, Owner()).end == 30
    assert site.offsets() == list(range(30))


WAIT_S = 30
METADATA = {"iceberg": "/metadata/", "delta": "/_delta_log/"}


@pytest.mark.parametrize("kind", ["lose", "throttle"])
def test_answers_that_are_lost_and_throttling_write_each_row_once(site, proxy, kind):
    log = site.engine().open(KEY, table_settings(site.format))
    for path in (".parquet", "/f/", METADATA[site.format]):
        write(log, 3)
        whole = read_all(log)
        proxy.fault(kind, 1, method="PUT", path=path)
        assert log.tier.upload(log.end_offset, Owner()).end == log.end_offset, path
        assert [fault.times for fault in proxy.faults] == [0], f"no write of {path}"
        proxy.heal()
        assert site.offsets() == list(range(log.end_offset)), path
        log.tier.trim_local(log.end_offset)
        assert read_all(log) == whole, path
    rows = log.cold_rows(0, log.end_offset)
    assert [row.base for row in rows[1:]] == [row.end for row in rows[:-1]]


def test_a_store_that_refuses_one_kind_of_object_gets_each_record_once_later(site, proxy):
    log = site.engine().open(KEY, table_settings(site.format))
    for path in (".parquet", "/f/", METADATA[site.format]):
        write(log, 3)
        before = log.tier.status().cold_end_offset
        proxy.fault("refuse", FOREVER, method="PUT", path=path)
        proxy.fault("refuse", FOREVER, method="POST", path=path)
        with pytest.raises(ColdUnavailable):
            log.tier.upload(log.end_offset, Owner())
        assert log.tier.status().halted == "", "it may work later"
        assert log.tier.status().cold_end_offset == before, (
            "nothing is believed that was not answered"
        )
        proxy.heal()
        assert log.tier.upload(log.end_offset, Owner()).end == log.end_offset, path
        assert site.offsets() == list(range(log.end_offset)), path


@pytest.mark.parametrize("kind", ["cut", "flip"])
def test_rows_and_frames_that_go_bad_on_their_way_are_fetched_again(site, proxy, kind):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 12)
    whole = read_all(log)
    assert log.tier.upload(log.end_offset, Owner()).end == 120
    log.tier.trim_local(Offset(120))
    for path in (".parquet", "/f/"):
        site.close()  # nothing is kept in memory, neither here nor in the lake process
        again = site.engine().open(KEY, table_settings(site.format))
        proxy.fault(kind, 1, method="GET", path=path)
        assert read_all(again) == whole, path
        assert [fault.times for fault in proxy.faults] == [0], f"no read of {path}"
        proxy.heal()


def test_keys_that_are_replaced_are_used_by_the_lake_process_too(tmp_path, server, proxy):
    file = tmp_path / "keys"
    words = {"aws_endpoint": proxy.endpoint, "aws_region": REGION, "credentials_file": str(file)}
    url = f"s3://lake-delta/{tmp_path.name}"
    site = LakeSite(tmp_path, "delta", url, words, server.options)
    write_keys(file)
    log = site.engine().open(KEY, table_settings("delta"))
    write(log, 3)
    assert log.tier.upload(log.end_offset, Owner()).end == 30
    write_keys(file, NEXT_KEY)
    proxy.fault("refuse", FOREVER, key=ACCESS_KEY)
    write(log, 3)
    whole = read_all(log)
    ends = time.monotonic() + WAIT_S
    while log.tier.status().cold_end_offset < 60:  # a process looks for new keys once a second
        with contextlib.suppress(ColdUnavailable):
            log.tier.upload(log.end_offset, Owner())
        assert time.monotonic() < ends, "the old key is used for ever"
    log.tier.trim_local(Offset(60))
    assert read_all(log) == whole
    assert site.offsets() == list(range(60))
    file.unlink()
    write(log, 3)
    ends = time.monotonic() + WAIT_S
    with pytest.raises(ColdUnavailable, match="credentials"):
        while time.monotonic() < ends:
            log.tier.upload(log.end_offset, Owner())
    write_keys(file, NEXT_KEY)
    assert log.tier.status().halted == ""
    log.tier.upload(log.end_offset, Owner())
    assert site.offsets() == list(range(90))
    site.close()
