"""Stand-ins for Azure and Google Cloud Storage: a tier, a broker without a disk, and what the store
says when something is wrong. `onelog serve` in processes of its own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from onelog.base.errors import ColdUnavailable, NotFound
from onelog.lake.storage import Storage
from onelog.objects.bucket import BucketAccess
from onelog.objects.probe import probe
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from tests.batches import fill, read_all
from tests.conformance.mqtt_brokers import environment
from tests.support.cloud_servers import CLOUDS, CloudServer, cloud_server
from tests.support.forks import run_onelog
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.mqtt import connect
from tests.support.stored_brokers import StoredBroker, stored_broker
from tests.support.tiers import KEY, Owner

pytest.importorskip("obstore")
pytestmark = pytest.mark.fault

ON_DISK = ("defaults.stream.engine=segment", "metadata.url=")
TIERED = (
    *ON_DISK,
    "defaults.stream.tier=log",
    "defaults.stream.local_bytes=0",
    "defaults.stream.segment_bytes=16KiB",
)
COUNT = 120


@pytest.fixture(scope="module", params=list(CLOUDS))
def cloud(request, tmp_path_factory) -> Iterator[CloudServer]:
    folder = tmp_path_factory.mktemp(request.param) / "objects"
    with cloud_server(request.param, folder) as server:
        server.bucket("log")
        yield server


@pytest.fixture
def url(cloud: CloudServer) -> str:
    return cloud.url("log", str(uuid.uuid4()))


def opened(cloud: CloudServer, url: str, **options: str) -> ObjectStore:
    given = {**cloud.store_options, **options}
    return open_store(StoreSettings(url=url, options=given, deadline_ms=4000))


async def publish(broker: StoredBroker, first: int = 0) -> list[str]:
    client = await connect(broker.ports["mqtt"], "publisher")
    texts = [f"message {number} {'x' * 300}" for number in range(first, first + COUNT)]
    for text in texts:
        assert await client.publish("plant/a", text) == 0
    await client.disconnect()
    return texts


def replayed(broker: StoredBroker, via: str) -> list[str]:
    words = ("replay", "plant/a", "--via", via, "--port", str(broker.ports[via]))
    done = run_onelog(*words, environment=environment(), timeout_s=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


async def test_history_moves_to_the_store_and_a_bucket_alone_restores_the_stream(
    cloud: CloudServer, url: str, tmp_path: Path
) -> None:
    options = cloud.store_options
    with stored_broker(tmp_path / "a", url, options, *TIERED) as broker:
        assert "keeps what a log needs" in broker.command("store", "check")
        broker.command("stream", "create", "plant", "--capture", "plant/#")
        texts = await publish(broker)
        broker.command("stream", "offload", "plant")
        (row,) = json.loads(broker.command("stream", "tier", "plant", "--json"))["items"]
        assert row["local_start_offset"] == row["cold_end_offset"] == COUNT
        assert row["pieces"] > 1
        for via in ("mqtt", "kafka"):
            assert replayed(broker, via) == texts
        await asyncio.to_thread(broker.stop)
    with stored_broker(tmp_path / "b", url, options, *TIERED) as again:
        again.command("store", "restore", "--take-over")
        texts += await publish(again, COUNT)
        for via in ("mqtt", "kafka"):
            assert replayed(again, via) == texts
        again.command("stream", "offload", "plant")
        assert replayed(again, "kafka") == texts


async def test_a_killed_broker_without_a_disk_goes_on_in_an_empty_directory(
    cloud: CloudServer, url: str, tmp_path: Path
) -> None:
    options = cloud.store_options
    with stored_broker(tmp_path / "a", url, options) as first:
        texts = await publish(first)
        first.kill()
    with stored_broker(tmp_path / "b", url, options) as second:
        assert second.health()[0] == 200
        texts += await publish(second, COUNT)
        reader = await connect(second.ports["mqtt"], "reader")
        await reader.subscribe("$replay/earliest/plant/#", qos=1)
        assert await reader.take(len(texts)) == texts
        await reader.disconnect()
        await asyncio.to_thread(second.stop)


def test_the_store_keeps_what_a_log_needs_and_the_check_leaves_nothing(cloud, url):
    store = opened(cloud, url)
    assert abs(probe(store).clock_ms) < 60_000
    assert list(store.list("")) == []


def test_an_object_is_made_young_only_while_it_is_there(cloud, url):
    access = BucketAccess(StoreSettings(url=url, options=cloud.store_options))
    access.put("mark", [b"held"], 4)
    access.touch("mark")
    assert bytes(access.get("mark")) == b"held"
    access.delete(["mark"])
    with pytest.raises(NotFound):
        access.touch("mark")
    assert not list(access.list("", ""))


def test_a_bucket_that_is_missing_is_never_an_object_that_is_missing(cloud):
    store = opened(cloud, cloud.url("nowhere", "x"))
    for ask in (
        lambda: store.get("t/a"),
        lambda: store.get_range("t/a", 0, 5),
        lambda: store.get_suffix("t/a", 5),
        lambda: store.create("t/a", [b"x"]),
        lambda: list(store.list("")),
        lambda: store.delete(["t/a"]),
    ):
        with pytest.raises(ColdUnavailable, match="has no bucket nowhere") as told:
            ask()
        assert told.value.reason == "bucket"


def test_a_store_that_is_away_is_told_with_the_option_that_says_where_it_is(cloud, url):
    (word,) = (name for name in cloud.store_options if name.endswith(("_endpoint", "_base_url")))
    store = opened(cloud, url, **{word: "http://127.0.0.1:1"})
    with pytest.raises(ColdUnavailable, match=rf"address \({word} in store.options\)") as told:
        store.get("t/a")
    assert told.value.reason == "away"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_of_a_table_in_the_store_are_read_as_they_were(
    cloud, url, tmp_path, monkeypatch, kind
):
    # Azurite lists from the beginning when it is asked for what lies behind a version: this option
    # lets delta-rs know.
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", cloud.endpoint)
    words = {"azure_storage_use_emulator": "true"} if url.startswith("az:") else {}
    options = {**cloud.store_options, **words, "allow_http": "true"}
    site = LakeSite(tmp_path, kind, url, {**cloud.store_options, **words})
    try:
        log = site.engine().open(KEY, table_settings(kind))
        fill(log, 60)
        log.roll()
        log.sync()
        before = read_all(log)
        assert log.tier.upload(log.end_offset, Owner()).end == log.end_offset
        fill(log, 60)
        log.roll()
        log.sync()
        whole = read_all(log)
        assert log.tier.upload(log.end_offset, Owner()).end == log.end_offset
        log.tier.trim_local(log.end_offset)
        assert read_all(log) == whole and whole.startswith(before)
        if kind == "delta":
            table = deltalake.DeltaTable(f"{site.warehouse}/orders", storage_options=options)
            named = table.file_uris()
        else:
            words = Storage(words=tuple(sorted(options.items()))).for_iceberg()
            lake = load_catalog(
                "onelog", type="sql", uri=site.catalog, warehouse=site.warehouse, **words
            )
            scan = lake.load_table("onelog.orders").scan()
            named = [task.file.file_path for task in scan.plan_files()]
        there = [row.name for row in opened(cloud, url).list("lake/") if "parquet" in row.name]
        assert {path.rsplit("/", 1)[1] for path in named} == {
            name.rsplit("/", 1)[1] for name in there
        }
        assert len(named) > 1
    finally:
        site.close()
