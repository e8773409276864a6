"""Commands about history in the object store, as a person types them: words and exit codes."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog, environment
from tests.support.forks import run_onelog

BAD_COLUMNS = ("nonsense", "json: temp float", "json: offset bigint", "json: a int, A int")


class Site:
    """A broker with a folder as its store, and its command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        self.server = Onelog(folder, f'store.url="file://{self.store}"', 'data_dir="data"').start()

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a command."""
        done = run_onelog(*words, folder=self.folder, environment=environment())
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def done(self, *words: str) -> str:
        """The output of a command that works."""
        code, out, error = self.run(*words)
        assert code == 0, error
        return out

    def post(self, path: str, body: object, method: str = "POST") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.ports["admin"], timeout=30)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, f"/api/v1{path}", json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def publish(self, topic: str, count: int = 20) -> None:
        lines = "".join(f"{topic} {number}\n" for number in range(count))
        port = str(self.server.ports["mqtt"])
        self.server.command("pub", topic, "--lines", "--port", port, stdin=lines)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("people"))
    yield found
    assert found.server.stop() == 0


def test_a_stream_without_capture_captures_the_topic_of_its_name(site: Site) -> None:
    assert "made stream orders of orders" in site.done(
        "stream", "create", "orders", "--engine", "object"
    )
    assert "made stream a.b of a/b" in site.done("stream", "create", "a.b")
    code, out, error = site.run("stream", "create", "a_x61_")
    assert code == 1 and not out and "stands for no topic" in error
    site.publish("orders")
    assert json.loads(site.server.get("/api/v1/streams/orders"))["stream"]["records"] == 20
    assert site.post("/streams", {"name": "by.api"})[0] == 201
    shown = json.loads(site.server.get("/api/v1/streams/by.api"))
    assert shown["stream"]["captures"] == ["by/api"]


@pytest.mark.parametrize("columns", BAD_COLUMNS)
def test_columns_that_mean_nothing_are_refused_at_creation_by_every_door(
    site: Site, columns: str
) -> None:
    words = ("--tier", "iceberg", "--tier-columns", columns)
    code, out, error = site.run("stream", "create", "typed", *words)
    assert code == 1 and not out and "tier.columns" in error
    status, text = site.post(
        "/streams", {"name": "typed", "tier": "delta", "tier_columns": columns}
    )
    assert status == 400 and "tier.columns" in text
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{site.server.ports['kafka']}"})
    config = {"onelog.tier.format": "iceberg", "onelog.tier.columns": columns}
    with pytest.raises(KafkaException, match=r"tier\.columns"):
        admin.create_topics([NewTopic("typed", 1, config=config)])["typed"].result(DEADLINE_S)
    assert site.run("stream", "show", "typed")[0] == 4


def test_columns_that_mean_nothing_are_refused_at_a_change_by_every_door(site: Site) -> None:
    site.done("stream", "create", "wide", "--tier", "delta", "--tier-columns", "json: a double")
    for columns in (*BAD_COLUMNS, "json: a string"):
        code, _out, error = site.run("stream", "alter", "wide", "--tier-columns", columns)
        assert code == 1 and "tier.columns" in error
        status, text = site.post("/streams/wide", {"tier_columns": columns}, "PATCH")
        assert status == 400 and "tier.columns" in text
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{site.server.ports['kafka']}"})
        entry = ConfigEntry(
            "onelog.tier.columns", columns, incremental_operation=AlterConfigOpType.SET
        )
        asked = ConfigResource(ResourceType.TOPIC, "wide", incremental_configs=[entry])
        with pytest.raises(KafkaException, match=r"tier\.columns"):
            admin.incremental_alter_configs([asked])[asked].result(DEADLINE_S)
    site.done("stream", "alter", "wide", "--tier-columns", "json: a double, b string")
    shown = json.loads(site.server.get("/api/v1/streams/wide"))
    assert shown["settings"]["tier.columns"] == "json: a double, b string"


def test_offload_says_what_it_moved_and_that_nothing_is_left(site: Site) -> None:
    site.done("stream", "create", "plant", "--capture", "plant/#", "--tier", "log")
    assert "nothing to move: it holds no records" in site.done("stream", "offload", "plant")
    site.publish("plant/a")
    assert "20 records moved" in site.done("stream", "offload", "plant")
    assert "nothing to move: all of it is in the store already" in site.done(
        "stream", "offload", "plant"
    )


def test_offload_of_a_table_does_not_wait_for_its_next_commit(site: Site) -> None:
    words = ("--capture", "rows/#", "--tier", "delta", "--tier-commit", "1h")
    site.done("stream", "create", "rows", *words)
    for _time in range(2):
        site.publish("rows/a")
        assert "20 records moved" in site.done("stream", "offload", "rows")


def test_offload_that_moves_nothing_is_an_error_and_says_why(site: Site) -> None:
    code, out, error = site.run("stream", "offload", "main")
    assert code == 1 and not out and "give it a tier first" in error
    assert site.run("stream", "offload", "nothere")[0] == 4
    code, out, error = site.run("stream", "offload", "orders")
    assert code == 1 and not out and "in the store already" in error
    site.done("stream", "create", "away", "--tier", "log")
    site.publish("away")
    aside = site.store.with_name("aside")
    site.store.rename(aside)
    try:
        code, out, error = site.run("stream", "offload", "away")
        assert code == 1 and not out, error
        assert "0 records moved" in error and "offsets 0 to 19 of" in error
        assert str(site.store) in error
    finally:
        shutil.rmtree(site.store, ignore_errors=True)
        aside.rename(site.store)
    assert "20 records moved" in site.done("stream", "offload", "away")


def test_offload_behind_an_open_transaction_names_it(site: Site) -> None:
    site.done("stream", "create", "told", "--tier", "log")
    servers = {"bootstrap.servers": f"127.0.0.1:{site.server.ports['kafka']}"}
    teller = Producer(servers | {"transactional.id": "tier"})
    teller.init_transactions(DEADLINE_S)
    teller.begin_transaction()
    teller.produce("told", b"open")
    teller.flush(DEADLINE_S)
    code, _out, error = site.run("stream", "offload", "told")
    assert code == 1 and "a transaction is open since offset 0" in error
    teller.commit_transaction(DEADLINE_S)
    assert "2 records moved" in site.done("stream", "offload", "told")


def test_a_restore_shows_what_it_did_with_each_stream(site: Site, tmp_path: Path) -> None:
    site.done("stream", "create", "kept", "--tier", "log")
    site.publish("kept")
    site.done("stream", "offload", "kept")
    second = tmp_path / "second"
    second.mkdir()
    shutil.copytree(site.store, second / "store")
    other = Site(second)
    try:
        code, out, _error = other.run("store", "restore", "--dry-run")
        assert code == 1 and "owned" in out and "--take-over" in out
        out = other.done("store", "restore", "--dry-run", "--take-over")
        assert "kept" in out and "found" in out
        code, out, error = other.run("store", "restore", "--stream", "nothere")
        assert code == 4 and not out and "has no stream 'nothere'" in error and "kept" in error
        out = other.done("store", "restore", "--stream", "kept", "--take-over")
        assert "kept" in out and "restored" in out and "plant" not in out
        answer = json.loads(other.done("store", "restore", "--take-over", "--json"))
        outcomes = {row["stream"]: row["outcome"] for row in answer["streams"]}
        assert outcomes["kept"] == "exists" and outcomes["plant"] == "restored"
        port = str(other.server.ports["kafka"])
        out = other.done("replay", "kept", "--via", "kafka", "--port", port)
        assert out.splitlines() == [f"kept {number}" for number in range(20)]
    finally:
        assert other.server.stop() == 0


def test_a_restore_from_an_empty_store_says_so(tmp_path: Path) -> None:
    empty = Site(tmp_path)
    try:
        assert empty.done("store", "restore") == "the object store holds no stream\n"
    finally:
        assert empty.server.stop() == 0
