"""Who may come in, and where are they then? (checklist rows 50, 54, 92, 94)"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pika
import pytest
import trustme

from tests.conformance.amqp_raw import Basic, Connection, Ended, Raw, Refused, unique
from tests.conformance.mqtt_brokers import Onelog

ALICE = {"user": "alice", "password": "secret-1"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority) -> Iterator[Onelog]:
    folder = tmp_path_factory.mktemp("secure")
    own = authority.issue_cert("localhost", "127.0.0.1")
    own.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    made = Onelog(
        folder,
        "security.anonymous=never",
        "amqp.vhosts=one,two/three",
        "listeners.amqp_tls.enabled=true",
        f"listeners.amqp_tls.tls.cert_file={folder / 'server.pem'}",
        f"listeners.amqp_tls.tls.key_file={folder / 'server.pem'}",
        f"listeners.amqp_tls.tls.client_ca_file={folder / 'ca.pem'}",
        "listeners.amqp_tls.tls.client_cert=optional",
        listeners=("amqp_tls",),
    ).start()
    made.user("alice", "secret-1")
    yield made
    assert made.stop() == 0
    assert not made.errors()


@pytest.fixture
def client_tls(authority) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_a_user_comes_in_by_either_mechanism_and_guest_does_not(server):
    port = server.ports["amqp"]
    with Raw(port) as raw:
        assert "ANONYMOUS" not in raw.open(**ALICE).start.mechanisms
        assert "EXTERNAL" not in raw.start.mechanisms
    for wrong in ({}, {"user": "alice", "password": "wrong"}, {"user": "bob", "password": "x"}):
        with Raw(port) as raw, pytest.raises(Refused) as refused:
            raw.open(**wrong)
        assert refused.value.short == "connection 403"


def test_a_new_secret_of_who_has_no_token_is_taken(server):
    """As in RabbitMQ: nothing ended, so nothing is renewed, and nothing is checked."""
    with Raw(server.ports["amqp"]) as raw:
        raw.open(**ALICE)
        for secret in ("secret-1", "another"):
            raw.send(0, Connection.UpdateSecret(new_secret=secret, reason="renew"))
            raw.expect(0, Connection.UpdateSecretOk)
        raw.channel().sync()


def test_a_user_id_has_to_be_the_user(server):
    with Raw(server.ports["amqp"]) as raw:
        channel = raw.open(**ALICE).channel()
        queue = channel.queue(exclusive=True)
        channel.publish("", queue, "1", user_id="alice")
        assert channel.get(queue).properties.user_id == "alice"
        channel.publish("", queue, "1", user_id="guest")
        with pytest.raises(Refused, match="authenticated user was 'alice'"):
            channel.sync()


def test_a_user_that_is_deleted_has_to_leave(server):
    server.user("carol", "secret-1")
    with Raw(server.ports["amqp"]) as raw:
        raw.open(user="carol", password="secret-1").channel()
        server.command("user", "remove", "carol")
        with pytest.raises(Refused) as refused:
            raw.expect(1, Basic.QosOk)
        assert refused.value.short == "connection 320"


def test_pika_speaks_tls_with_a_password(server, client_tls):
    parameters = pika.ConnectionParameters(
        "localhost",
        server.ports["amqp_tls"],
        credentials=pika.PlainCredentials("alice", "secret-1"),
        ssl_options=pika.SSLOptions(client_tls, "localhost"),
    )
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"1")
    assert channel.basic_get(queue)[2] == b"1"
    connection.close()


def test_a_certificate_is_a_name_with_external(server, client_tls, authority):
    authority.issue_cert("client.example", common_name="alice").configure_cert(client_tls)
    with Raw(server.ports["amqp_tls"], client_tls) as raw:
        raw.begin()
        assert "EXTERNAL" in raw.start.mechanisms.split()
        raw.log_in(mechanism="EXTERNAL", response="")
        raw.tune_ok()
        raw.send(0, Connection.Open())
        raw.expect(0, Connection.OpenOk)
        channel = raw.channel()
        queue = channel.queue(exclusive=True)
        channel.publish("", queue, "1", user_id="alice")
        assert channel.get(queue).text == "1"


def test_external_without_a_certificate_is_refused(server, client_tls):
    with Raw(server.ports["amqp_tls"], client_tls) as raw:
        raw.begin()
        with pytest.raises((Refused, Ended)):
            raw.log_in(mechanism="EXTERNAL", response="")


def test_virtual_hosts_are_worlds_of_their_own(server):
    port = server.ports["amqp"]
    opened = [Raw(port).open(vhost, **ALICE) for vhost in ("/", "one", "two/three")]
    channels = [raw.channel() for raw in opened]
    queue, exchange = unique(), unique("x")
    for channel in channels:
        channel.queue(queue)
        channel.exchange("fanout", exchange)
        channel.bind(queue, exchange)
        channel.bind(queue, "amq.topic", "t.#")
        channel.confirm()
    for number, channel in enumerate(channels):
        channel.put("", queue, f"default {number}")
        channel.put(exchange, "", f"exchange {number}")
        channel.put("amq.topic", "t.1", f"topic {number}")
    for number, channel in enumerate(channels):
        assert sorted(channel.all(queue)) == [
            f"default {number}",
            f"exchange {number}",
            f"topic {number}",
        ]
    for raw in opened:
        raw.close()
        raw.socket.close()
    with Raw(port) as raw, pytest.raises(Refused, match="vhost three not found"):
        raw.open("three", **ALICE)
