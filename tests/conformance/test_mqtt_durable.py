"""What survives the end of the broker: an orderly one, and kill -9."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from onelog.protocols.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.conformance.mqtt_brokers import Onelog
from tests.conformance.mqtt_raw import Ended, Raw


@pytest.fixture
def server(tmp_path) -> Iterator[Onelog]:
    made = Onelog(tmp_path).start()
    yield made
    made.kill()


@pytest.fixture
def come(server) -> Iterator[Callable[..., Raw]]:
    """A client with a session that outlives everything."""
    opened: list[Raw] = []

    def _come(name: str, version: int = 5) -> Raw:
        opened.append(Raw(server.port, version))
        more = {"session_expiry_s": 600} if version == 5 else {}
        return opened[-1].connect(name, clean=False, **more)

    yield _come
    for raw in opened:
        raw.socket.close()


ENDS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])


@ENDS
@pytest.mark.parametrize("version", [4, 5])
def test_sessions_and_what_waits_for_them_survive(server, come, number, version):
    """Row 9; I4."""
    client = come("c", version)
    client.subscribe("t/#", 1)
    client.disconnect()
    publisher = come("p")
    for index in range(10):
        publisher.publish(f"t/{index % 3}", b"%d" % index)
    server.stop(number)
    server.start()
    back = come("c", version)
    assert back.connack.session_present
    assert sorted(int(back.take().payload) for _ in range(10)) == list(range(10))
    assert back.messages() == []


@ENDS
def test_what_is_in_flight_comes_again_and_what_was_acknowledged_does_not(server, come, number):
    client = come("c")
    client.subscribe("t", 1)
    publisher = come("p")
    for index in range(6):
        publisher.publish("t", b"%d" % index)
    held = [client.message() for _ in range(6)]
    for message in held[:3]:
        client.send(Puback(message.packet_id))
    client.messages()
    client.vanish()
    came_back = come("c")  # the broker has saved where the client is
    came_back.vanish()
    come("c").disconnect()
    server.stop(number)
    server.start()
    back = come("c")
    found = [back.take() for _ in range(3)]
    assert [(int(m.payload), m.dup) for m in found] == [(3, True), (4, True), (5, True)]
    assert back.messages() == []


@ENDS
def test_retained_messages_survive(server, come, number):
    """Row 17."""
    publisher = come("p")
    publisher.publish("r/a", b"old", retain=True)
    publisher.publish("r/a", b"new", retain=True, content_type="x/y")
    publisher.publish("r/b", b"gone", retain=True)
    publisher.publish("r/b", b"", retain=True)
    publisher.publish("r/c", b"plain")
    server.stop(number)
    server.start()
    client = come("c")
    client.subscribe("r/#", 1)
    message = client.take()
    assert (message.topic, message.payload, message.retain) == ("r/a", b"new", True)
    assert message.properties.content_type == "x/y"
    assert client.messages() == []


def test_clients_are_told_that_the_broker_stops(server, come):
    client = come("c")
    old = come("old", 4)
    server.stop()
    ended = client.end()
    assert ended is not None
    assert ended.reason == 0x8B
    with pytest.raises(Ended):
        old.read()


@pytest.mark.parametrize("released", [False, True], ids=["before PUBREL", "after PUBREL"])
def test_a_publish_of_qos_2_is_in_the_log_once_after_kill_9(server, come, released):
    """Trap 2 across a crash."""
    watcher = come("w")
    watcher.subscribe("t", 2)
    watcher.disconnect()
    publisher = come("p")
    publisher.send(Publish(topic="t", payload=b"x", qos=2, packet_id=7))
    assert publisher.get(Pubrec).packet_id == 7
    if released:
        publisher.send(Pubrel(7))
        publisher.get(Pubcomp)
    server.kill()
    server.start()
    back = come("p")
    assert back.connack.session_present
    if not released:
        back.send(Publish(topic="t", payload=b"x", qos=2, packet_id=7, dup=True))
        assert back.get(Pubrec).packet_id == 7
    back.send(Pubrel(7))
    assert back.get(Pubcomp).packet_id == 7
    watcher = come("w")
    assert watcher.take().payload == b"x"
    assert watcher.messages() == []


def test_a_message_of_qos_2_that_the_client_has_is_not_sent_again_after_kill_9(server, come):
    """Trap 3 across a crash: only the release comes again."""
    client = come("c")
    client.subscribe("t", 2)
    come("p").publish("t", b"x", 2)
    message = client.message()
    client.send(Pubrec(message.packet_id))
    client.get(Pubrel)
    server.kill()
    server.start()
    back = come("c")
    assert back.get(Pubrel).packet_id == message.packet_id
    back.send(Pubcomp(message.packet_id))
    assert back.messages() == []


def test_everything_answered_under_load_is_there_once_after_kill_9(server, come):
    """I4: a producer that pipelines, a broker that dies in the middle, an offline subscriber."""
    client = come("c")
    client.subscribe("t", 1)
    client.disconnect()
    publisher = come("p")
    answered: set[int] = set()
    number = 0
    for _ in range(5):
        batch = range(number + 1, number + 501)
        publisher.send(*(Publish(topic="t", payload=b"%d" % n, qos=1, packet_id=n) for n in batch))
        number += 500
        if number == 2500:
            break
        answered |= {publisher.get(Puback).packet_id for _ in batch}
    server.kill()
    try:
        while True:
            packet = publisher.read()
            assert isinstance(packet, Puback)
            answered.add(packet.packet_id)
    except Ended:
        pass
    server.start()
    back = come("c")
    found = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not answered <= set(found):
        found.append(int(back.take().payload))
    found += [int(m.payload) for m in back.messages()]
    assert answered <= set(found)
    assert found == sorted(set(found))


def test_subscriptions_made_and_removed_before_a_crash_stay_so(server, come):
    client = come("c")
    client.subscribe("a", 1, identifier=5)
    client.subscribe("b", 1)
    client.unsubscribe("b")
    server.kill()
    server.start()
    publisher = come("p")
    publisher.publish("a", b"a")
    publisher.publish("b", b"b")
    back = come("c")
    message = back.take()
    assert (message.payload, message.properties.subscription_ids) == (b"a", (5,))
    assert back.messages() == []
