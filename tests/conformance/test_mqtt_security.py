"""Who may come in: passwords, SCRAM, client certificates, WebSocket over TLS, PROXY protocol."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
import trustme
from scramp import ScramClient

from onelog.protocols.mqtt.packets import Auth, Connack, Connect, Disconnect
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import ReasonCode
from tests.conformance.mqtt_brokers import Onelog
from tests.conformance.mqtt_clients import Options, Paho
from tests.conformance.mqtt_raw import DEADLINE_S, Ended, Raw, unique


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority) -> Iterator[Onelog]:
    folder = tmp_path_factory.mktemp("secure")
    own = authority.issue_cert("localhost", "127.0.0.1")
    own.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    assignments = ["security.anonymous=never"]
    for name, wanted in (("mqtt_tls", "optional"), ("mqtt_wss", "none")):
        assignments += [
            f"listeners.{name}.enabled=true",
            f"listeners.{name}.tls.cert_file={folder / 'server.pem'}",
            f"listeners.{name}.tls.key_file={folder / 'server.pem'}",
            f"listeners.{name}.tls.client_ca_file={folder / 'ca.pem'}",
            f"listeners.{name}.tls.client_cert={wanted}",
        ]
    made = Onelog(folder, *assignments, listeners=("mqtt_tls", "mqtt_wss")).start()
    made.user("alice", "secret-1")
    yield made
    assert made.stop() == 0
    assert not made.errors()


@pytest.fixture
def client_tls(authority) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("version", [4, 5])
def test_the_right_password_lets_in_and_a_wrong_one_does_not(server, version):
    with Raw(server.port, version) as good:
        assert good.connect(username="alice", password=b"secret-1").connack.reason == 0
        topic = unique()
        good.subscribe(topic, 1)
        good.publish(topic, b"x")
        assert good.take().payload == b"x"
    for name, password in (("alice", b"wrong"), ("bob", b"secret-1"), ("alice", None)):
        with Raw(server.port, version) as bad:
            refused = bad.connect(username=name, password=password).connack.reason
            assert refused in (0x86, 0x87)


def test_without_a_name_nobody_comes_in_when_that_is_forbidden(server):
    with Raw(server.port) as client:
        assert client.connect().connack.reason in (0x86, 0x87)


def test_a_new_user_may_come_at_once_while_the_server_runs(server):
    with Raw(server.port) as client:
        assert client.connect(username="carol", password=b"pass-word").connack.reason != 0
    server.user("carol", "pass-word")
    with Raw(server.port) as client:
        assert client.connect(username="carol", password=b"pass-word-2").connack.reason != 0
    with Raw(server.port) as client:
        assert client.connect(username="carol", password=b"pass-word").connack.reason == 0


METHOD = "SCRAM-SHA-256"


def scram(raw: Raw, password: str, method: str = METHOD, **connect) -> Connack | Disconnect:
    """A whole SCRAM login inside CONNECT and AUTH; the last answer."""
    login = ScramClient([method], "alice", password)
    first = login.get_client_first().encode()
    raw.send(
        Connect(
            client_id=unique("c"),
            version=5,
            properties=Properties(authentication_method=method, authentication_data=first),
            **connect,
        )
    )
    return go_on(raw, login, method)


def go_on(raw: Raw, login: ScramClient, method: str):
    answer = raw.read()
    if not isinstance(answer, Auth):
        return answer
    assert answer.reason == 0x18
    assert answer.properties.authentication_method == method
    login.set_server_first((answer.properties.authentication_data or b"").decode())
    final = login.get_client_final().encode()
    properties = Properties(authentication_method=method, authentication_data=final)
    raw.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
    last = raw.read()
    if last.reason == 0:
        login.set_server_final((last.properties.authentication_data or b"").decode())
    return last


@pytest.mark.parametrize("method", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_lets_in_without_the_password_on_the_wire(server, method):
    """Row 34."""
    with Raw(server.port) as raw:
        answer = scram(raw, "secret-1", method)
        assert isinstance(answer, Connack)
        assert answer.reason == 0
        topic = unique()
        raw.subscribe(topic, 1)
        raw.publish(topic, b"x")
        assert raw.take().payload == b"x"


def test_scram_with_a_wrong_password_is_refused_with_0x87(server):
    with Raw(server.port) as raw:
        answer = scram(raw, "wrong")
        assert isinstance(answer, Connack)
        assert answer.reason == 0x87


def test_an_unknown_method_is_refused_with_0x8c(server):
    with Raw(server.port) as raw:
        raw.connect(authentication_method="MAGIC", authentication_data=b"x")
        assert raw.connack.reason == 0x8C


def authenticate_again(raw: Raw, name: str, password: str):
    """Log in once more on a live connection; what the broker answers at the end."""
    login = ScramClient([METHOD], name, password)
    first = login.get_client_first().encode()
    properties = Properties(authentication_method=METHOD, authentication_data=first)
    raw.send(Auth(ReasonCode.REAUTHENTICATE, properties))
    return go_on(raw, login, METHOD)


def test_a_client_may_authenticate_again_on_a_live_connection(server):
    """MQTT5 4.12.1."""
    with Raw(server.port) as raw:
        assert scram(raw, "secret-1").reason == 0
        answer = authenticate_again(raw, "alice", "secret-1")
        assert isinstance(answer, Auth)
        assert answer.reason == 0
        assert raw.messages() == []


def test_a_failed_second_authentication_ends_the_connection(server):
    with Raw(server.port) as raw:
        assert scram(raw, "secret-1").reason == 0
        answer = authenticate_again(raw, "alice", "wrong")
        assert isinstance(answer, Disconnect)
        assert answer.reason == 0x87


def test_a_second_authentication_as_another_user_ends_the_connection(server):
    """A session stays with its user."""
    server.user("erin", "secret-1")
    with Raw(server.port) as raw:
        assert scram(raw, "secret-1").reason == 0
        answer = authenticate_again(raw, "erin", "secret-1")
        assert isinstance(answer, Disconnect)
        assert answer.reason == 0x87


def test_another_packet_during_an_authentication_is_a_protocol_error(server):
    with Raw(server.port) as raw:
        login = ScramClient([METHOD], "alice", "secret-1")
        first = login.get_client_first().encode()
        raw.send(
            Connect(
                client_id="x",
                version=5,
                properties=Properties(authentication_method=METHOD, authentication_data=first),
            )
        )
        raw.get(Auth)
        raw.socket.sendall(b"\xc0\x00")
        answer = raw.get(Connack)
        assert answer.reason >= 0x80


def test_a_password_over_tls_lets_in(server, client_tls):
    with Raw(server.ports["mqtt_tls"], tls=client_tls) as raw:
        assert raw.connect(username="alice", password=b"secret-1").connack.reason == 0
        topic = unique()
        raw.subscribe(topic, 2)
        raw.publish(topic, b"x" * 300_000, 2)
        assert len(raw.take().payload) == 300_000


def test_a_client_certificate_is_a_name(server, client_tls, authority):
    """Row 41."""
    certificate = authority.issue_cert("device7.example", common_name="device7")
    certificate.configure_cert(client_tls)
    with Raw(server.ports["mqtt_tls"], tls=client_tls) as raw:
        assert raw.connect().connack.reason == 0
        raw.publish("t", b"x")


def test_a_certificate_of_a_stranger_ends_the_handshake(server, client_tls):
    trustme.CA().issue_cert("x.example", common_name="x").configure_cert(client_tls)
    with pytest.raises((ssl.SSLError, ConnectionError, Ended)), contextlib.ExitStack() as stack:
        stack.enter_context(Raw(server.ports["mqtt_tls"], tls=client_tls)).connect()


def test_plain_bytes_on_the_tls_port_harm_nobody(server, client_tls):
    with socket.create_connection(("127.0.0.1", server.ports["mqtt_tls"]), DEADLINE_S) as plain:
        plain.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c")
        with contextlib.suppress(ConnectionError):
            while plain.recv(4096):
                pass
    with Raw(server.ports["mqtt_tls"], tls=client_tls) as raw:
        assert raw.connect(username="alice", password=b"secret-1").connack.reason == 0


def test_websocket_over_tls_works(server, client_tls):
    """Row 40."""
    client = Paho(Options(server.ports["mqtt_wss"], unique("c")), paho.MQTTv5, "websockets")
    client._client.username_pw_set("alice", "secret-1")
    client._client.tls_set_context(client_tls)
    client.connect()
    topic = unique()
    client.subscribe(topic, 1)
    client.publish(topic, b"x", 1)
    assert client.receive().payload == b"x"
    client.disconnect()


def test_the_reason_of_an_end_arrives_over_tls_too(server, client_tls):
    """Trap 1."""
    with Raw(server.ports["mqtt_tls"], tls=client_tls) as raw:
        raw.connect(username="alice", password=b"secret-1")
        raw.socket.sendall(b"\x00\x00" + b"\x30\x05\x00\x01t\x00x" * 1000)
        ended = raw.end()
        assert ended is not None
        assert ended.reason == 0x81


def test_behind_a_proxy_the_peer_is_who_the_proxy_says(tmp_path):
    """Row 42: a peer from elsewhere is not anonymous on this machine."""
    server = Onelog(tmp_path, "listeners.mqtt.proxy_protocol=true").start()
    try:
        local, far = socket.inet_aton("127.0.0.1"), socket.inet_aton("203.0.113.9")
        codes = []
        for source in (local, far):
            with Raw(server.port) as raw:
                addresses = source + local + (4444).to_bytes(2, "big") + (1883).to_bytes(2, "big")
                raw.socket.sendall(b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + addresses)
                codes.append(int(raw.connect().connack.reason))
        assert codes[0] == 0
        assert codes[1] in (0x86, 0x87)
    finally:
        server.stop()
