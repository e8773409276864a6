"""Wills: when they are published, when they are not, and when they wait."""

from __future__ import annotations

import time

import pytest

from onelog.protocols.mqtt.packets import Will
from onelog.protocols.mqtt.properties import Properties
from tests.conformance.mqtt_raw import unique


def watch(dial, topic, **options):
    watcher = dial().connect()
    watcher.subscribe(topic, 2, **options)
    return watcher


def will_of(topic: str, **properties) -> Will:
    return Will(topic=topic, payload=b"gone", qos=1, properties=Properties(**properties))


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_vanishes_leaves_its_will(dial, version):
    """Trap 8."""
    topic = unique()
    watcher = watch(dial, topic)
    dial(version).connect(will=will_of(topic)).vanish()
    message = watcher.take()
    assert (message.payload, message.qos, message.retain) == (b"gone", 1, False)


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_says_goodbye_leaves_no_will(dial, version):
    """Trap 8."""
    topic = unique()
    watcher = watch(dial, topic)
    dial(version).connect(will=will_of(topic)).disconnect()
    assert watcher.messages() == []


def test_a_goodbye_with_0x04_leaves_the_will(dial):
    """Trap 8."""
    topic = unique()
    watcher = watch(dial, topic)
    dial().connect(will=will_of(topic)).disconnect(4)
    assert watcher.take().payload == b"gone"


def test_a_protocol_error_leaves_the_will(dial):
    """Trap 8."""
    topic = unique()
    watcher = watch(dial, topic)
    client = dial().connect(will=will_of(topic))
    client.socket.sendall(b"\x00\x00")
    ended = client.end()
    assert ended is not None
    assert ended.reason in (0x81, 0x82)
    assert watcher.take().payload == b"gone"


def test_a_client_that_falls_silent_leaves_its_will(dial):
    """Traps 8 and 10."""
    topic = unique()
    watcher = watch(dial, topic)
    dial().connect(will=will_of(topic), keep_alive_s=1)
    assert watcher.take().payload == b"gone"


def test_a_client_that_falls_silent_is_told_0x8d(dial):
    """Trap 10: after one and a half times the keep-alive."""
    begun = time.monotonic()
    ended = dial().connect(keep_alive_s=1).end()
    assert 1.4 <= time.monotonic() - begun < 5
    assert ended is not None
    assert ended.reason == 0x8D


def test_any_packet_keeps_a_client_alive(dial):
    """Trap 10."""
    topic = unique()
    client = dial().connect(keep_alive_s=1)
    for _ in range(10):  # longer than one and a half times the keep-alive
        time.sleep(0.2)
        client.publish(topic, b"x")
    assert client.messages() == []


def test_a_will_carries_its_properties_and_its_retain_flag(dial):
    topic = unique()
    watcher = watch(dial, topic, retain_as_published=True)
    pairs = (("b", "1"), ("a", "2"), ("b", "1"))
    will = Will(
        topic=topic,
        payload=b"gone",
        qos=2,
        retain=True,
        properties=Properties(
            content_type="a/b",
            user_properties=pairs,
            correlation_data=b"c",
            response_topic="r",
            message_expiry_s=100,
            payload_format=1,
        ),
    )
    dial().connect(will=will).vanish()
    message = watcher.take()
    found = message.properties
    assert (message.qos, message.retain) == (2, True)
    assert (found.content_type, found.user_properties) == ("a/b", pairs)
    assert (found.correlation_data, found.response_topic) == (b"c", "r")
    assert (found.message_expiry_s, found.payload_format) == (100, 1)
    late = dial().connect()
    late.subscribe(topic, 0)
    assert late.message().payload == b"gone"


def test_a_will_waits_for_its_delay(dial):
    """Trap 8."""
    topic = unique()
    watcher = watch(dial, topic)
    client = dial().connect(will=will_of(topic, will_delay_s=1), session_expiry_s=60)
    client.vanish()
    begun = time.monotonic()
    assert watcher.messages() == []
    assert watcher.take().payload == b"gone"
    assert time.monotonic() - begun >= 0.9


def test_a_client_that_is_back_in_time_takes_its_will_back(dial):
    """Trap 8."""
    topic, name = unique(), unique("c")
    watcher = watch(dial, topic)
    will = will_of(topic, will_delay_s=1)
    dial().connect(name, will=will, session_expiry_s=60).vanish()
    back = dial().connect(name, clean=False, session_expiry_s=60)
    time.sleep(1.5)
    assert watcher.messages() == []
    back.disconnect()


def test_a_will_waits_no_longer_than_its_session_lives(dial):
    """Trap 8: the delay is the lesser of both."""
    topic = unique()
    watcher = watch(dial, topic)
    dial().connect(will=will_of(topic, will_delay_s=3600)).vanish()
    assert watcher.take().payload == b"gone"


def test_a_clean_start_ends_the_session_and_so_the_delay_of_its_will(dial):
    topic, name = unique(), unique("c")
    watcher = watch(dial, topic)
    will = will_of(topic, will_delay_s=3600)
    dial().connect(name, will=will, session_expiry_s=3600).vanish()
    watcher.messages()
    dial().connect(name, clean=True)
    assert watcher.take().payload == b"gone"


def test_a_takeover_fires_the_will_of_the_old_connection(dial):
    """Trap 8."""
    topic, name = unique(), unique("c")
    watcher = watch(dial, topic)
    dial().connect(name, will=will_of(topic), session_expiry_s=60)
    dial().connect(name, clean=False, session_expiry_s=60)
    assert watcher.take().payload == b"gone"


def test_a_takeover_without_clean_start_takes_back_a_will_with_a_delay(dial):
    """Trap 8."""
    topic, name = unique(), unique("c")
    watcher = watch(dial, topic)
    dial().connect(name, will=will_of(topic, will_delay_s=1), session_expiry_s=60)
    back = dial().connect(name, clean=False, session_expiry_s=60)
    time.sleep(1.5)
    assert watcher.messages() == []
    back.disconnect()
