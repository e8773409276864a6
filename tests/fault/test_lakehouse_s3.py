"""Is each record a row once when the bucket goes away? Tables on SeaweedFS, with a real process."""

from __future__ import annotations

import pytest

from onelog.base.errors import ColdUnavailable
from onelog.base.ids import Offset
from tests.batches import append, make_batch, read_all
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, available, s3_server
from tests.support.tiers import KEY, Owner

pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        found.bucket("lake-iceberg")
        found.bucket("lake-delta")
        yield found


@pytest.fixture(params=["iceberg", "delta"])
def site(request, tmp_path, server):
    words = {
        "aws_endpoint": server.endpoint,
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
