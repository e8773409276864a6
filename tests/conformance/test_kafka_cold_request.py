"""Does the cold request name the objects of a partition, to those who may read it, page by page?"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from onelog.base.errors import NotAuthorized, NotFound
from onelog.kafka_client import Access, Client, ColdPart
from onelog.kafka_client.apis import Api
from onelog.kafka_client.cold import read_cold
from onelog.log.tier_config import StoreSupport
from onelog.objects.store import StoreSettings, open_store
from onelog.protocols.kafka import cold as cold_handler
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.spark.topics import append, make_topic, numbered
from tests.support.cold_rows import make_naming
from tests.support.served import Served

SECRET = "hush-hush"
OPTIONS = (
    "aws_region=eu-central-1",
    "aws_endpoint=http://127.0.0.1:1",
    f"aws_secret_access_key={SECRET}",
    f"aws_access_key_id=key-of-{SECRET}",
    f"aws_session_token={SECRET}",
    f"credentials_file=/etc/{SECRET}",
)

ARCHIVE = """
name = "{name}"
[sources.records]
stream = "{name}"
[targets.archive]
from = "records"
iceberg = "archive.{name}"
"""


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture
def engines(patch):
    return make_naming(patch)


@pytest.fixture
def served(tmp_path, engines) -> Iterator[Served]:
    with Served(tmp_path / "data", f'store.url="file://{tmp_path}/store"') as running:
        yield running


@pytest.fixture
def client(served) -> Iterator[Client]:
    with Client(Access(servers=(("127.0.0.1", served.ports["kafka"]),), timeout_s=5.0)) as made:
        yield made


@pytest.fixture
def store(tmp_path):
    return open_store(StoreSettings(url=f"file://{tmp_path}/store"))


def test_rows_store_and_lease_are_told(served, engines, client, store) -> None:
    topic = make_topic(served, unique("cold"), 2)
    log = engines[0].newest(1)
    for first in (0, 10, 20):
        append(served, topic, 1, numbered(first, 10))
    rows = [log.put(store, 0, 10), log.put(store, 10, 20)]
    before = int(time.time() * 1000)
    found = client.cold(topic, 1, 5, 100)
    assert found is not None
    assert found.rows == tuple(rows)
    assert (found.end, found.filter, found.named) == (20, None, (topic, None))
    assert found.store.url == store.url
    assert found.lease
    assert found.lease_ms == 3_600_000
    assert log.tier.held_until_ms[0] >= before + found.lease_ms
    only = client.cold(topic, 1, 10, 12)
    assert only is not None
    assert only.rows == (rows[1],)
    empty = client.cold(topic, 0, 0, 100)
    assert empty is not None
    assert (empty.rows, empty.end) == ((), 0)


def test_many_rows_come_in_pages(served, engines, client, store, patch) -> None:
    patch.setattr(cold_handler, "ROWS_MAX", 3)
    patch.setattr(cold_handler, "_SPAN", 1)
    topic = make_topic(served, unique("cold"), 1)
    log = engines[0].newest()
    for first in range(10):
        append(served, topic, 0, numbered(first, 1))
    rows = [log.put(store, at, at + 1) for at in range(10)]
    body = json.dumps({"topic": topic, "partition": 0, "from": 0, "to": 10}).encode()
    page = client.call(Api.COLD, body, read_cold)
    assert (page.rows, page.next, page.cold_end) == (tuple(rows[:3]), 3, 3)
    found = client.cold(topic, 0, 0, 10)
    assert found is not None
    assert found.rows == tuple(rows)
    exact = client.cold(topic, 0, 0, 3)
    assert exact is not None
    assert exact.rows == tuple(rows[:3])


def test_rows_with_an_open_transaction_are_not_told(served, engines, client, store) -> None:
    topic = make_topic(served, unique("cold"), 1)
    log = engines[0].newest()
    append(served, topic, 0, numbered(0, 10))
    name = unique("txn")
    producer = client.init_producer(name, 60_000)
    client.add_partitions(name, producer, [(topic, 0)])
    data = build_batch(numbered(10, 5), attributes=1 << 4, producer=(*producer, 0))
    client.produce({(topic, 0): data}, name)
    append(served, topic, 0, numbered(15, 5))
    rows = [log.put(store, 0, 10), log.put(store, 10, 20)]
    found = client.cold(topic, 0, 0, 100)
    assert found is not None
    assert (found.rows, found.end) == ((rows[0],), 10)
    client.end(name, producer, commit=True)
    deadline = time.monotonic() + 10
    while found.rows != tuple(rows) and time.monotonic() < deadline:
        found = client.cold(topic, 0, 0, 100)
        assert found is not None
    assert found.rows == tuple(rows)


def test_a_view_says_which_topics_count(served, engines, client, store) -> None:
    base = unique("view")
    make_topic(served, f"{base}.own", 1)
    log = engines[0].newest()
    append(served, f"{base}.own", 0, numbered(0, 10))
    log.put(store, 0, 10)
    view = f"{base}._x2B_"
    (row,) = client.topics([view])
    found = [client.cold(view, number, 0, 100) for number in row.partitions]
    assert {part.filter for part in found if part} == {f"{base}/+"}
    assert [part.named for part in found if part and part.rows] == [(f"{base}/own", None)]


def test_a_broker_without_a_store_has_no_rows(tmp_path) -> None:
    with Served(tmp_path / "plain") as served:
        topic = make_topic(served, unique("cold"), 1)
        with Client(Access(servers=(("127.0.0.1", served.ports["kafka"]),))) as client:
            assert client.cold(topic, 0, 0, 10) is None


def test_no_secret_of_the_store_is_told(tmp_path, engines) -> None:
    chosen = ", ".join(f'"{option}"' for option in OPTIONS)
    settings = ('store.url="s3://bucket/prefix"', f"store.options=[{chosen}]")
    with Served(tmp_path / "data", *settings) as served:
        topic = make_topic(served, unique("cold"), 1)
        append(served, topic, 0, numbered(0, 10))
        with Client(Access(servers=(("127.0.0.1", served.ports["kafka"]),))) as client:
            body = json.dumps({"topic": topic, "partition": 0}).encode()
            raw = client.call(Api.COLD, body, lambda reader: bytes(reader.rest()))
    told = json.loads(raw)["store"]
    assert told["url"] == "s3://bucket/prefix"
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert told["options"] == {"aws_region": "eu-central-1", "aws_endpoint": endpoint}
    assert SECRET not in raw.decode()


def test_what_cannot_be_is_refused(served, client) -> None:
    topic = make_topic(served, unique("cold"), 1)
    for body in (b"", b"{}", b"[1]", b"\xff", b'{"topic":"a","partition":"x"}'):
        page = client.call(Api.COLD, body, read_cold)
        assert page.error == 42
        assert "cold request" in str(page.message)
    with pytest.raises(NotFound, match=r"nothing\.here"):
        client.cold("nothing.here", 0, 0, 1)
    with pytest.raises(NotFound, match="partitions 0 to 0, not 7"):
        client.cold(topic, 7, 0, 1)
    backwards = client.cold(topic, 0, 50, 10)
    assert backwards is not None
    assert backwards.rows == ()


def test_only_who_may_read_a_topic_learns_its_objects(tmp_path) -> None:
    server = KafkaOnelog(tmp_path, f"store.url=file://{tmp_path}/store").start()
    try:
        topic = make_topic(server, unique("cold"), 1)
        with Client(Access(servers=(("127.0.0.1", server.port),))) as client:
            assert client.cold(topic, 0, 0, 10) is not None
            server.command("acl", "add", "allow", "anonymous", "publish", f"topic:{topic}")
            with pytest.raises(NotAuthorized, match=f"topic {topic}"):
                client.cold(topic, 0, 0, 10)
            server.command("acl", "add", "allow", "anonymous", "subscribe", f"topic:{topic}")
            assert client.cold(topic, 0, 0, 10) is not None
    finally:
        assert server.stop() == 0


def test_a_broker_that_does_not_know_the_request_is_read_without_it() -> None:
    """Kafka's brokers close the connection on a key that they do not know."""
    asked: list[int] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                while head := peer.recv(4, socket.MSG_WAITALL):
                    data = peer.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
                    api = int.from_bytes(data[:2], "big")
                    asked.append(api)
                    if api != Api.METADATA:
                        break
                    answer = data[4:8] + b"\0" * 4 + b"\0" * 4 + b"\xff\xff" + b"\0" * 4 + b"\0" * 4
                    peer.sendall(len(answer).to_bytes(4, "big") + answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        access = Access(servers=(("127.0.0.1", listener.getsockname()[1]),), timeout_s=60.0)
        with Client(access) as client:
            began = time.monotonic()
            assert client.cold("t", 0, 0, 10) is None
            assert client.cold("t", 1, 0, 10) is None
            assert time.monotonic() - began < 30.0
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert asked == [Api.COLD, Api.METADATA, Api.COLD]


def test_a_pipeline_that_copies_a_table_says_so(tmp_path, served, patch) -> None:
    pytest.importorskip("pyspark")
    from onelog.pipelines import load_pipeline  # noqa: PLC0415
    from onelog.pipelines.options import second_copies  # noqa: PLC0415
    from onelog.pipelines.workspace import Workspace  # noqa: PLC0415

    patch.setattr(StoreSupport, "lacks", lambda *_: None)  # this engine writes no tables
    names = unique("tabled"), unique("plain")
    make_topic(served, names[0], 1, **{"onelog.tier.format": "iceberg"})
    make_topic(served, names[1], 1)
    workspace = Workspace(tmp_path, f"127.0.0.1:{served.ports['kafka']}")
    for name, told in zip(names, (1, 0), strict=True):
        file = tmp_path / f"{name}.toml"
        file.write_text(ARCHIVE.format(name=name))
        notes = second_copies(load_pipeline(file), workspace)
        assert len(notes) == told
        assert all(f"iceberg('{name}')" in note for note in notes)
    away = Workspace(tmp_path, "127.0.0.1:1")
    assert second_copies(load_pipeline(tmp_path / f"{names[0]}.toml"), away) == []


def transactions(client: Client, topic: str, first: int, ends: str) -> list[tuple[int, int, int]]:
    """Transactions of ten records each that are committed (c) or aborted (a). Returns (producer,
    first, last) of the aborted ones."""
    aborted, at = [], first
    for end in ends:
        name = unique("txn")
        producer = client.init_producer(name, 60_000)
        client.add_partitions(name, producer, [(topic, 0)])
        data = build_batch(numbered(at, 10), attributes=1 << 4, producer=(*producer, 0))
        client.produce({(topic, 0): data}, name)
        client.end(name, producer, commit=end == "c")
        if end == "a":
            aborted.append((producer.id, at, at + 10))
        at += 11
        deadline = time.monotonic() + 10
        while client.offsets({(topic, 0): -1})[topic, 0] < at:
            assert time.monotonic() < deadline
    return aborted


def until_rows(client: Client, topic: str, end: int) -> ColdPart:
    """The rows of a partition, once they reach an offset."""
    deadline = time.monotonic() + 30
    while True:
        found = client.cold(topic, 0, 0, 1 << 40)
        assert found is not None
        if found.end >= end:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def stored(tmp_path) -> Iterator[Served]:
    settings = (
        f'store.url="file://{tmp_path}/store"',
        'defaults.stream.engine="object"',
        'defaults.stream.durability="fsync"',
        "object.linger_ms=0",
        "object.settle_ms=100",
    )
    (tmp_path / "store").mkdir()
    with Served(tmp_path / "data", *settings) as running:
        yield running


@pytest.fixture
def stored_client(stored) -> Iterator[Client]:
    with Client(Access(servers=(("127.0.0.1", stored.ports["kafka"]),), timeout_s=20.0)) as made:
        yield made


def test_rows_of_the_object_engine_come_with_their_aborted_transactions(
    stored, stored_client
) -> None:
    topic = make_topic(stored, unique("cold"), 1)
    append(stored, topic, 0, numbered(0, 10))
    aborted = transactions(stored_client, topic, 10, "caca")
    found = until_rows(stored_client, topic, 54)
    assert [row.kind for row in found.rows] == ["log"] * len(found.rows)
    assert found.rows[0].base == 0
    assert [(one.producer_id, one.first, one.last) for one in found.aborted] == aborted
    few = stored_client.cold(topic, 0, 0, 10)
    assert few is not None
    assert [row.base for row in few.rows] == [0]
    assert all(one.first < few.end for one in few.aborted)


def test_an_answer_with_many_aborted_transactions_comes_in_pages(
    stored, stored_client, patch
) -> None:
    topic = make_topic(stored, unique("cold"), 1)
    aborted, at = [], 0
    for ends in ("aaa", "c", "aa", "a"):  # rows of their own
        aborted += transactions(stored_client, topic, at, ends)
        at += 11 * len(ends)
        until_rows(stored_client, topic, at)
    whole = until_rows(stored_client, topic, at)
    if len(whole.rows) < 3:
        pytest.skip("the rows were joined")
    patch.setattr(cold_handler, "ABORTED_MAX", 2)
    body = json.dumps({"topic": topic, "partition": 0}).encode()
    page = stored_client.call(Api.COLD, body, read_cold)
    assert page.next is not None
    assert len(page.aborted) <= 2
    found = until_rows(stored_client, topic, at)
    left_out = [
        row
        for row in whole.rows
        if sum(first < row.end and last >= row.base for _, first, last in aborted) > 2
    ]
    assert list(found.rows) == [row for row in whole.rows if row not in left_out]
    if not left_out:
        pytest.skip("on a busy machine no row has more than two of them")
    told = {(one.producer_id, one.first, one.last) for one in found.aborted}
    wanted = {
        one for one in aborted for row in found.rows if one[1] < row.end and one[2] >= row.base
    }
    assert told == wanted
