"""Does the connector's own Kafka client say what it means, get in, and live through a restart?"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from pyspark.errors import PySparkException

from onelog.base.errors import (
    ConfigError,
    InvalidTxnState,
    NotAuthenticated,
    OnelogError,
    ProtocolViolation,
    Unavailable,
)
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, scan_batches
from onelog.record.batch import build_batch, iterate_batches
from onelog.record.wire import Reader
from onelog.spark.client import (
    EARLIEST,
    LATEST,
    MECHANISMS,
    Access,
    Client,
    Named,
    fetch_request,
    messages,
    parse_servers,
)
from onelog.spark.client.wire import Api
from tests.conformance.kafka_brokers import unique
from tests.conformance.mqtt_brokers import Onelog


def access(server: Onelog, **more: object) -> Access:
    return Access(servers=(("127.0.0.1", server.ports["kafka"]),), **more)  # type: ignore[arg-type]


def batch(*values: str, since_ms: int = 1_000, **more: object) -> bytes:
    rows = [(None, b"k", value.encode(), (), since_ms + at) for at, value in enumerate(values)]
    return build_batch(rows, **more)  # type: ignore[arg-type]


def values(client: Client, topic: str, partition: int = 0, wait_ms: int = 0) -> list[bytes]:
    """The committed values of a partition, as one fetch brings them."""
    request = fetch_request(
        {(topic, partition): 0}, bytes_max=1 << 20, part_bytes_max=1 << 20, wait_ms=wait_ms
    )
    (row,) = client.fetch(request)
    aborted = {producer for producer, _first in row.aborted}
    return [
        slices.value(at)
        for info, slices in iterate_batches(bytes(row.records))
        if not info.attributes & ATTR_CONTROL and info.producer_id not in aborted
        for at in range(len(slices))
    ]


@pytest.fixture
def client(broker) -> Iterator[Client]:
    with Client(access(broker, timeout_s=10.0)) as made:
        yield made


@pytest.fixture
def topic(client) -> str:
    name = unique("client")
    (made,) = client.topics([name], create=True)
    assert made.code == 0
    assert made.partitions == (0, 1, 2, 3)
    return name


def test_what_was_produced_is_fetched(client, topic) -> None:
    produced = client.produce({(topic, 0): batch("a", "b"), (topic, 2): batch("c")})
    assert {part: row.code for part, row in produced.items()} == {(topic, 0): 0, (topic, 2): 0}
    assert values(client, topic) == [b"a", b"b"]
    assert values(client, topic, 2) == [b"c"]


def test_a_fetch_that_was_asked_ahead_is_answered_to_its_own_request_only(client, topic) -> None:
    client.produce({(topic, 0): batch("a"), (topic, 1): batch("b")})
    first, second = (
        fetch_request({(topic, number): 0}, bytes_max=9999, part_bytes_max=9999, wait_ms=0)
        for number in (0, 1)
    )
    client.fetch(first)
    client.fetch_ahead(second)
    assert client.fetch(second)[0].partition == 1
    client.fetch_ahead(second)
    assert client.fetch(first)[0].partition == 0
    client.fetch_ahead(first)
    assert client.offsets({(topic, 0): LATEST}) == {(topic, 0): 1}


def test_offsets_are_those_of_the_ends_and_of_times(client, topic) -> None:
    client.produce({(topic, 1): batch("a", "b", "c")})
    part = (topic, 1)
    assert client.offsets({part: EARLIEST, (topic, 0): LATEST}) == {part: 0, (topic, 0): 0}
    assert client.offsets({part: LATEST}) == {part: 3}
    assert client.offsets({part: 1_001}) == {part: 1}
    assert client.offsets({part: 5_000}) == {part: -1}


def test_a_group_remembers_offsets(client, topic) -> None:
    parts = [(topic, 0), (topic, 1)]
    assert client.committed("spark-group", parts) == {}
    client.commit("spark-group", {(topic, 1): 7})
    assert client.committed("spark-group", parts) == {(topic, 1): 7}


def test_an_unknown_topic_is_told_and_not_made(client) -> None:
    name = unique("missing")
    for _ in range(2):
        (found,) = client.topics([name])
        assert found.code == 3
    with pytest.raises(OnelogError, match=f"{name}-0"):
        client.offsets({(name, 0): LATEST})


def test_every_topic_is_listed(client, topic) -> None:
    assert topic in {row.name for row in client.topics()}


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_seen_when_it_was_committed(client, topic, commit) -> None:
    name = unique("txn")
    producer = client.init_producer(name, 60_000)
    client.add_partitions(name, producer, [(topic, 0)])
    data = batch("x", attributes=ATTR_TRANSACTIONAL, producer=(*producer, 0))
    for _ in range(2):  # the second is known by its sequence and not appended again
        assert client.produce({(topic, 0): data}, name)[topic, 0].code == 0
    assert values(client, topic) == []
    client.end(name, producer, commit=commit)
    # The answer means that the end is decided; the markers follow.
    assert values(client, topic, wait_ms=5_000) == ([b"x"] if commit else [])


def test_a_transaction_that_was_not_begun_is_not_ended(client) -> None:
    with pytest.raises(InvalidTxnState, match="nobody"):
        client.end("nobody", client.init_producer(None, 1000), commit=True)


def test_a_new_producer_ends_what_the_last_one_left_open(client, topic) -> None:
    name = unique("txn")
    producer = client.init_producer(name, 60_000)
    client.add_partitions(name, producer, [(topic, 0)])
    data = batch("x", attributes=ATTR_TRANSACTIONAL, producer=(*producer, 0))
    client.produce({(topic, 0): data}, name)
    again = client.init_producer(name, 60_000)
    assert (again.id, again.epoch) > producer
    request = fetch_request(
        {(topic, 0): 0}, bytes_max=1 << 20, part_bytes_max=1 << 20, wait_ms=5_000
    )
    (row,) = client.fetch(request)
    assert row.aborted
    assert scan_batches(bytes(row.records))


def test_a_client_lives_through_a_restart_of_the_broker(own_broker) -> None:
    with Client(access(own_broker, timeout_s=30.0)) as client:
        client.topics(["t"], create=True)
        client.produce({("t", 0): batch("a")})
        own_broker.kill()
        starter = threading.Timer(0.5, own_broker.start)
        starter.start()
        try:
            assert values(client, "t") == [b"a"]
        finally:
            starter.join()


def test_a_broker_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = Client(Access(servers=(("127.0.0.1", port),), timeout_s=0.1))
    with pytest.raises(Unavailable, match=f"nothing answers at 127.0.0.1:{port}"):
        client.topics()


# -- getting in


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Onelog]:
    folder: Path = tmp_path_factory.mktemp("spark-login")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other-ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    server = Onelog(
        folder,
        "security.anonymous=never",
        "listeners.kafka_tls.enabled=true",
        "listeners.kafka_tls.tls.cert_file=server.pem",
        "listeners.kafka_tls.tls.key_file=server.pem",
        listeners=("kafka_tls",),
    ).start()
    server.user("al,i=ce", "secret")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_gets_in(guarded, mechanism, tls) -> None:
    port = guarded.ports["kafka_tls" if tls else "kafka"]
    made = Access(
        servers=(("localhost", port),),
        user="al,i=ce",
        password="secret",
        mechanism=mechanism,
        tls=tls,
        ca_file=str(guarded.folder / "ca.pem"),
        timeout_s=5.0,
    )
    assert "secret" not in repr(made)
    with Client(made) as client:
        client.topics()


def test_spark_gets_in_with_options(guarded, spark) -> None:
    secure = f"localhost:{guarded.ports['kafka_tls']}"
    made = Access(
        servers=parse_servers(secure), user="al,i=ce", password="secret", tls=True,
        ca_file=str(guarded.folder / "ca.pem"),
    )  # fmt: skip
    with Client(made) as client:
        client.topics(["secured"], create=True)
        # Of today: Spark may take longer to start than retention leaves a record of 1970.
        client.produce({("secured", 0): batch("a", since_ms=int(time.time() * 1000))})
    options = {
        "servers": secure, "user": "al,i=ce", "password": "secret", "subscribe": "secured",
        "sasl.mechanism": "SCRAM-SHA-256", "tls.ca": str(guarded.folder / "ca.pem"),
        "columns": "value", "startingOffsets": '{"secured":{"0":0,"1":0,"2":0,"3":0}}',
    }  # fmt: skip
    frame = spark.read.format("onelog")
    assert [bytes(row[0]) for row in frame.options(**options).load().collect()] == [b"a"]
    with pytest.raises(PySparkException, match="does not let al,i=ce in") as told:
        frame.options(**options | {"password": "wrong-one"}).load().count()
    assert "wrong-one" not in str(told.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused_at_once_and_not_shown(guarded, mechanism) -> None:
    made = access(guarded, user="al,i=ce", password="wrong-one", mechanism=mechanism)
    with pytest.raises(NotAuthenticated, match="al,i=ce") as told:
        Client(made).topics()
    assert "wrong-one" not in str(told.value)


def test_a_server_that_cannot_be_trusted_is_refused_at_once(guarded) -> None:
    made = Access(
        servers=(("localhost", guarded.ports["kafka_tls"]),),
        tls=True,
        ca_file=str(guarded.folder / "other-ca.pem"),
    )
    with pytest.raises(NotAuthenticated, match="no TLS that can be trusted"):
        Client(made).topics()


def test_a_ca_file_that_is_not_there_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"option tls\.ca: missing\.pem"):
        Access(servers=(("h", 1),), tls=True, ca_file="missing.pem").context()


# -- bad bytes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", (("a", 9092),)),
        ("a:1,b:2", (("a", 1), ("b", 2))),
        ("[::1]:5, [::2]", (("::1", 5), ("::2", 9092))),
    ],
)
def test_servers_are_read(text, found) -> None:
    assert parse_servers(text) == found


@pytest.mark.parametrize("text", ["", "a:", "a:x", "a:0", "a:65536", "a,,b", ":1"])
def test_servers_that_are_none_are_refused(text) -> None:
    with pytest.raises(ConfigError, match="option servers"):
        parse_servers(text)


@pytest.mark.parametrize(
    "answer",
    [b"", b"\0\0\0", b"\0\0\0\7abc", b"\x7f\xff\xff\xff", b"HTTP/1.1 400 Bad Request\r\n\r\n"],
)
def test_a_server_that_speaks_something_else_ends_the_call(answer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _address = listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        made = Access(servers=(("127.0.0.1", listener.getsockname()[1]),), timeout_s=0.0)
        with pytest.raises(OnelogError, match=r"127\.0\.0\.1|cut short"), Client(made) as client:
            client.topics()
        thread.join()


@pytest.mark.parametrize("data", [b"\0\0\0\1", b"\x7f\xff\xff\xff\0", b"\0\0\0\2\0\0\0\1\0\0"])
def test_counts_that_cannot_be_are_refused(data) -> None:
    reader = Reader(data)
    with pytest.raises(ProtocolViolation):
        reader.rows(lambda: reader.number("i"))


def test_the_topics_of_records_that_do_not_carry_them_are_told(client, topic) -> None:
    assert set(client.names(topic)) == {Named(topic, None)}
    rows = client.names("_x23_")  # the view of everything
    assert Named(topic, None) in rows
    assert Named(None, None) in rows  # where many topics lie
    with pytest.raises(OnelogError, match=r"a\.b\.c\.d"):
        client.names("a.b.c.d")


def test_a_names_request_that_is_none_is_refused(client) -> None:
    for body in (b"", b"{}", b"[1]", b"\xff"):
        code, said, _rows = client.call(Api.NAMES, body, messages.read_names)
        assert code == 42
        assert "names request" in str(said)
