"""CONNECT and the end of a connection: codes, limits and bad bytes, on ours and on Mosquitto."""

from __future__ import annotations

import contextlib

import pytest

from onelog.protocols.mqtt.packets import (
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
)
from onelog.protocols.mqtt.properties import Properties
from tests.conformance.mqtt_raw import Ended, unique


def raw_connect(name: bytes, level: int, flags: int = 2, rest: bytes = b"\x00\x01c") -> bytes:
    """A CONNECT that the codec would not write."""
    properties = b"\x00" if level >= 5 else b""
    body = len(name).to_bytes(2, "big") + name + bytes((level, flags)) + b"\x00\x3c"
    body += properties + rest
    return bytes((0x10, len(body))) + body


def read_all(client) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.socket.recv(4096):
            data += chunk
    return data


def test_version_3_is_answered_with_four_bytes_and_no_properties(dial):
    """Trap 13."""
    client = dial(4)
    client.socket.sendall(raw_connect(b"MQTT", 4))
    assert client.socket.recv(100) == b"\x20\x02\x00\x00"


def test_mqtt_3_1_with_its_old_name_is_served(dial):
    """Trap 13: MQIsdp, level 3."""
    client = dial(3)
    client.socket.sendall(raw_connect(b"MQIsdp", 3))
    assert client.socket.recv(100) == b"\x20\x02\x00\x00"
    client.send(Pingreq())
    assert isinstance(client.read(), Pingresp)


def test_a_level_that_nobody_speaks_is_refused(dial):
    """Trap 13: 0x01 of version 3, or 0x84 of version 5."""
    client = dial()
    client.socket.sendall(raw_connect(b"MQTT", 9))
    assert read_all(client)[:4] in (b"\x20\x02\x00\x01", b"\x20\x03\x00\x84")


def test_version_3_without_client_id_and_clean_session_is_refused_with_2(dial):
    """Trap 13."""
    client = dial(4).connect("", clean=False)
    assert client.connack.reason == 0x85  # the codec's name for version 3's 2
    client.end()


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_without_a_name_gets_one(dial, version):
    client = dial(version).connect("")
    assert client.connack.reason == 0
    assigned = client.connack.properties.assigned_client_id
    assert bool(assigned) is (version == 5)
    topic = unique()
    client.subscribe(topic, 1)
    client.publish(topic, b"x")
    assert client.take().payload == b"x"
    if assigned:
        other = dial().connect("")
        assert other.connack.properties.assigned_client_id != assigned


def test_an_assigned_name_leads_back_to_its_session(dial):
    topic = unique()
    client = dial().connect("", session_expiry_s=60)
    name = client.connack.properties.assigned_client_id
    client.subscribe(topic, 1)
    client.disconnect()
    dial().connect().publish(topic, b"x")
    back = dial().connect(name, clean=False, session_expiry_s=60)
    assert back.connack.session_present
    assert back.take().payload == b"x"


def test_a_second_connect_ends_the_connection(dial):
    client = dial().connect()
    client.send(Connect(client_id="again", version=5))
    ended = client.end()
    assert ended is not None
    assert ended.reason == 0x82


def test_a_packet_before_connect_closes_the_connection_without_a_word(dial):
    client = dial()
    client.send(Publish(topic="t", payload=b"x"))
    assert read_all(client) == b""


def test_packets_behind_connect_in_the_same_segment_are_served(dial):
    """Clients may send before CONNACK (MQTT5 3.1.4-5)."""
    topic = unique()
    client = dial()
    client.send(
        Connect(client_id=unique("c"), version=5),
        Subscribe(1, (Subscription(topic, 1),)),
        Publish(topic=topic, payload=b"x", qos=1, packet_id=2),
        Pingreq(),
    )
    assert client.take().payload == b"x"


def test_a_packet_that_arrives_byte_by_byte_is_understood(dial):
    topic = unique()
    client, subscriber = dial().connect(), dial().connect()
    subscriber.subscribe(topic, 0)
    body = len(topic).to_bytes(2, "big") + topic.encode() + b"\x00" + b"hello"
    for byte in bytes((0x30, len(body))) + body:
        client.socket.sendall(bytes((byte,)))
    assert subscriber.take().payload == b"hello"


MALFORMED = {
    "reserved packet type": b"\x00\x00",
    "qos 3": b"\x36\x05\x00\x01t\x00\x01",
    "subscribe without a filter": b"\x82\x03\x00\x01\x00",
    "subscribe with flags 0": b"\x80\x07\x00\x01\x00\x00\x01t\x00",
    "packet id 0": b"\x32\x06\x00\x01t\x00\x00\x00",
    "topic cut off": b"\x30\x03\x00\x09t",
    "length of five bytes": b"\x30\xff\xff\xff\xff\x7f",
    "topic with a wildcard": b"\x30\x05\x00\x02a#\x00",
    "topic with a null": b"\x30\x06\x00\x03a\x00b\x00",
    "topic with a surrogate": b"\x30\x08\x00\x05a\xed\xa0\x80b\x00",
    "unknown property": b"\x30\x06\x00\x01t\x02\x7f\x01",
    "property twice": b"\x30\x08\x00\x01t\x04\x01\x00\x01\x00",
    "auth without a method": b"\xf0\x02\x18\x00",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_bad_bytes_end_their_connection_with_a_reason_and_no_other(dial, name):
    """Trap 1 and I10: the reason arrives although the broker has unread input."""
    other = dial().connect()
    client = dial().connect()
    client.socket.sendall(MALFORMED[name] + b"\x30\x05\x00\x01t\x00x" * 50)
    ended = client.end()
    assert other.messages() == []
    assert ended is None or ended.reason >= 0x80


@pytest.mark.parametrize("name", MALFORMED)
def test_bad_bytes_are_answered_with_the_code_that_the_specification_names(dial, name):
    """Trap 1: also when more input waits behind them, the reason is not lost."""
    client = dial().connect()
    client.socket.sendall(MALFORMED[name] + b"\x30\x05\x00\x01t\x00x" * 2000)
    ended = client.end()
    assert ended is not None
    assert int(ended.reason) in {0x81, 0x82}


def test_a_filter_that_is_none_does_not_subscribe(dial):
    client = dial().connect()
    client.send(Subscribe(1, (Subscription("a/#/b", 0),)))
    try:
        answer = client.read()
    except Ended:
        return
    code = getattr(answer, "reasons", None) or (answer.reason,)
    assert int(code[0]) >= 0x80


def test_no_local_on_a_shared_subscription_is_a_protocol_error(dial):
    """Trap 5."""
    client = dial().connect()
    client.send(Subscribe(1, (Subscription("$share/g/t", 0, no_local=True),)))
    ended = client.end()
    assert ended is not None
    assert ended.reason == 0x82


def test_clients_may_not_publish_to_system_topics(dial):
    client, watcher = dial().connect(), dial().connect()
    watcher.subscribe("$SYS/broker/mine", 0)
    client.publish("$SYS/broker/mine", b"x", 0)
    assert watcher.messages() == []


def test_keep_alive_zero_means_never(dial):
    """Trap 10."""
    client = dial().connect(keep_alive_s=0)
    assert client.messages() == []


def test_payload_that_is_not_the_text_it_claims_to_be_is_refused_with_0x99(dial):
    """The check is optional (MQTT5 3.3.2.3.2)."""
    client = dial().connect()
    assert client.publish(unique(), b"\xff", payload_format=1) == 0x99
    assert client.publish(unique(), "ü".encode(), payload_format=1) == 0


def test_properties_of_subscribe_and_unsubscribe_are_accepted(dial):
    client = dial().connect(user_properties=(("a", "b"),), request_problem_information=False)
    pairs = Properties(user_properties=(("a", "b"), ("a", "c")))
    client.send(Subscribe(1, (Subscription(unique(), 0),), pairs))
    assert client.messages() == []
