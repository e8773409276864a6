"""Does our own Kafka client say what it means, get in, and live through a restart?"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from onelog.base.errors import (
    ConfigError,
    InvalidTxnState,
    NotAuthenticated,
    OnelogError,
    ProtocolViolation,
    Unavailable,
)
from onelog.kafka_client import (
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
from onelog.kafka_client.apis import Api
from onelog.kafka_client.wire import Reader
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, scan_batches
from onelog.record.batch import build_batch, iterate_batches
from tests.conformance.kafka_brokers import KafkaOnelog, serve_guarded, unique
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
def client(kafka_onelog) -> Iterator[Client]:
    with Client(access(kafka_onelog, timeout_s=10.0)) as made:
        yield made


@pytest.fixture
def own_broker(tmp_path) -> Iterator[KafkaOnelog]:
    """A broker of this test alone, to be killed and started again."""
    server = KafkaOnelog(tmp_path).start()
    yield server
    server.stop()


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


def test_what_is_posted_is_answered_later_and_in_order(client, topic) -> None:
    for number in range(10):
        client.post({(topic, 0): batch(str(number))})
    answers = [client.posted()[topic, 0] for _ in range(10)]
    assert [(row.code, row.base_offset) for row in answers] == [(0, at) for at in range(10)]
    assert len(values(client, topic)) == 10


def test_a_post_after_a_fetch_that_was_asked_ahead_has_its_own_answer(client, topic) -> None:
    request = fetch_request({(topic, 0): 0}, bytes_max=99, part_bytes_max=99, wait_ms=0)
    client.fetch(request)
    client.fetch_ahead(request)
    client.post({(topic, 0): batch("a")})
    assert client.posted()[topic, 0].code == 0


def test_nothing_else_is_asked_before_the_answers_to_what_was_posted(client, topic) -> None:
    client.post({(topic, 0): batch("a")})
    with pytest.raises(AssertionError, match="posted"):
        client.topics()
    client.posted()
    client.topics()


def test_a_post_is_not_sent_twice_when_the_broker_dies(own_broker) -> None:
    with Client(access(own_broker, timeout_s=30.0)) as client:
        client.topics(["t"], create=True)
        client.post({("t", 0): batch("a")})
        client.posted()
        client.post({("t", 0): batch("b")})
        own_broker.kill()
        # What was answered before the kill may still be read; then the connection is at its end.
        with pytest.raises(Unavailable):
            client.posted()
            client.post({("t", 0): batch("c")})
            client.posted()
        own_broker.start()
        client.topics(["t"])  # connects anew, and owes no answer
        assert values(client, "t") in ([b"a"], [b"a", b"b"])


def test_a_client_says_who_it_is_and_waits_no_longer_than_it_was_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Access(
            servers=(("127.0.0.1", listener.getsockname()[1]),),
            timeout_s=0.0,
            answer_s=0.05,
            client_id="a-name",
        )
        client = Client(made)
        client.connect()
        peer, _address = listener.accept()
        with peer, client:
            with pytest.raises(Unavailable, match="does not answer"):
                client.topics()
            assert b"a-name" in peer.recv(1 << 16)


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
    yield from serve_guarded(tmp_path_factory.mktemp("login"))


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_gets_in(guarded, mechanism, tls) -> None:
    port = guarded.ports["kafka_tls" if tls else "kafka"]
    made = Access(
        servers=(("localhost", port),),
        user="al,i=ce",
        password="secret-1",
        mechanism=mechanism,
        tls=tls,
        ca_file=str(guarded.folder / "ca.pem"),
        timeout_s=5.0,
    )
    assert "secret-1" not in repr(made)
    with Client(made) as client:
        client.topics()


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
    with pytest.raises(NotAuthenticated, match="does not offer TLS that can be trusted"):
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


def test_the_topics_of_a_stream_are_found_by_its_name(kafka_onelog, client, topic) -> None:
    (own,) = client.stream_topics(topic)
    assert (own.name, own.address) == (topic, topic)
    assert own.partitions == client.topics([topic])[0].partitions
    (main,) = client.stream_topics("main")
    assert (main.name, main.address) == ("_x23_", "#")
    everything = client.names("_x23_")
    assert len(main.partitions) == 8
    assert {everything[number] for number in main.partitions} == {Named(None, None)}
    base = unique("many")
    captures = [f"{base}/a/#", f"{base}/b/+", f"{base}/a/x", f"{base}/c"]
    kafka_onelog.command("stream", "create", base, *(f"--capture={one}" for one in captures))
    found = client.stream_topics(base)
    assert [row.address for row in found] == [f"{base}/a/#", f"{base}/b/+"]  # c has no record
    assert all(row.partitions for row in found)
    two = [f"--capture={base}x/+/y", f"--capture={base}x/y/#"]
    kafka_onelog.command("stream", "create", f"{base}x", *two)
    with pytest.raises(OnelogError, match="some topics match both"):
        client.stream_topics(f"{base}x")
    for name in ("nothing", "$cursors", "__cursors"):
        with pytest.raises(OnelogError, match="there is no stream"):
            client.stream_topics(name)


def test_a_names_request_that_is_none_is_refused(client) -> None:
    for body in (b"", b"{}", b"[1]", b"\xff"):
        code, said, _rows = client.call(Api.NAMES, body, messages.read_names)
        assert code == 42
        assert "names request" in str(said)
