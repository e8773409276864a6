"""Clients that people use: the same scenarios with each of them, on ours and on Mosquitto."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.conformance.mqtt_brokers import Server
from tests.conformance.mqtt_clients import (
    MQTT_JS,
    Aiomqtt,
    Gmqtt,
    Message,
    MqttJs,
    Options,
    Paho,
    RealClient,
)
from tests.conformance.mqtt_raw import DEADLINE_S, Raw, unique

LACKS_JS = (
    "MQTT.js is missing: run 'apt-get install nodejs npm' as root, then 'make setup' to install it"
)
LACKS_TOOLS = "mosquitto_pub is missing: run 'apt-get install mosquitto-clients' as root"
LACKS_WEBSOCKET = "Debian's Mosquitto is built without WebSocket"

MAKERS: dict[str, Callable[[Server, Options], RealClient]] = {
    "paho-3.1.1": lambda _server, options: Paho(options, paho.MQTTv311),
    "paho-5": lambda _server, options: Paho(options, paho.MQTTv5),
    "paho-ws": lambda server, options: Paho(
        options._replace(port=server.ports["mqtt_ws"]), paho.MQTTv5, "websockets"
    ),
    "aiomqtt": lambda _server, options: Aiomqtt(options),
    "gmqtt": lambda _server, options: Gmqtt(options),
    "mqttjs-3.1.1": lambda server, options: MqttJs(options, f"mqtt://127.0.0.1:{server.port}", 4),
    "mqttjs-5": lambda server, options: MqttJs(options, f"mqtt://127.0.0.1:{server.port}", 5),
    "mqttjs-ws": lambda server, options: MqttJs(
        options, f"ws://127.0.0.1:{server.ports['mqtt_ws']}/mqtt", 5
    ),
}


@pytest.fixture(params=MAKERS)
def make(request, broker) -> Iterator[Callable[..., RealClient]]:
    """Connected clients of one kind."""
    kind = request.param
    if kind.startswith("mqttjs") and not (MQTT_JS.is_dir() and shutil.which("node")):
        pytest.skip(LACKS_JS)
    if kind.endswith("-ws") and "mqtt_ws" not in broker.ports:
        pytest.skip(LACKS_WEBSOCKET)
    made: list[RealClient] = []

    def _make(client_id: str | None = None, **more) -> RealClient:
        client = MAKERS[kind](broker, Options(broker.port, client_id or unique("c"), **more))
        made.append(client)
        client.connect()
        return client

    yield _make
    for client in made:
        if client not in gone:
            client.disconnect()
    gone.clear()


gone: list[RealClient] = []


def leave(client: RealClient, *, politely: bool = True) -> None:
    """End a client before the scenario does."""
    gone.append(client)
    if politely:
        client.disconnect()
    else:
        client.vanish()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_sends_and_receives(make, qos):
    topic = unique()
    subscriber, publisher = make(), make()
    subscriber.subscribe(f"{topic}/+", qos)
    payloads = [bytes([number]) * (number * 10) for number in range(20)]
    for payload in payloads:
        publisher.publish(f"{topic}/a", payload, qos)
    assert [subscriber.receive() for _ in payloads] == [
        Message(f"{topic}/a", payload, qos, False) for payload in payloads
    ]


def test_a_client_that_comes_back_gets_what_it_missed(make):
    topic, name = unique(), unique("c")
    client, publisher = make(name, keep_session=True), make()
    client.subscribe(topic, 1)
    leave(client)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, 1)
    back = make(name, keep_session=True)
    assert back.session_present
    assert [int(back.receive().payload) for _ in range(10)] == list(range(10))


def test_a_client_finds_retained_messages_and_clears_them(make):
    topic = unique()
    publisher = make()
    publisher.publish(topic, b"kept", 1, True)
    first = make()
    first.subscribe(topic, 1)
    assert first.receive() == Message(topic, b"kept", 1, True)
    publisher.publish(topic, b"", 1, True)
    assert first.receive() == Message(topic, b"", 1, False)
    second = make()
    second.subscribe(topic, 1)
    publisher.publish(topic, b"live", 1)
    assert second.receive() == Message(topic, b"live", 1, False)


def test_a_client_that_vanishes_leaves_its_will(make):
    topic = unique()
    watcher = make()
    watcher.subscribe(topic, 1)
    leave(make(will_topic=topic), politely=False)
    assert watcher.receive() == Message(topic, b"gone", 1, False)


def test_a_large_message_passes(make):
    topic = unique()
    client = make()
    client.subscribe(topic, 1)
    payload = bytes(range(256)) * 2000
    client.publish(topic, payload, 1)
    assert client.receive().payload == payload


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_the_command_line_tools_of_mosquitto_work(broker, version, qos):
    if shutil.which("mosquitto_sub") is None:
        pytest.skip(LACKS_TOOLS)
    topic, name = unique(), unique("c")
    place = ["-h", "127.0.0.1", "-p", str(broker.port), "-V", version, "-q", qos]
    keep = ["-i", name, "-c"] + (["-x", "600"] if version == "mqttv5" else [])
    # A session first, so that nothing depends on who is faster.
    subprocess.run(
        ["mosquitto_sub", *place, *keep, "-t", f"{topic}/#", "-E"], check=True, timeout=DEADLINE_S
    )
    for number in range(3):
        subprocess.run(
            ["mosquitto_pub", *place, "-t", f"{topic}/a", "-m", f"hello {number}"],
            check=True,
            timeout=DEADLINE_S,
        )
    if qos == "0" and broker.name == "mosquitto":
        return  # only a broker with a log has these
    shown = subprocess.run(
        ["mosquitto_sub", *place, *keep, "-t", f"{topic}/#", "-C", "3", "-v", "-W", "10"],
        check=True,
        timeout=15,
        capture_output=True,
        text=True,
    )
    assert shown.stdout.splitlines() == [f"{topic}/a hello {number}" for number in range(3)]


def test_user_properties_and_correlation_reach_paho(broker):
    """As paho shows them: order and doubles kept."""
    topic = unique()
    sender = Paho(Options(broker.port, unique("c")), paho.MQTTv5)
    sender.connect()
    raw = Raw(broker.port).connect()
    raw.subscribe(topic, 1)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("b", "1"), ("a", "2"), ("b", "1")]
    properties.CorrelationData = b"\x00\x01"
    properties.ResponseTopic = "answer/here"
    sender._client.publish(topic, b"x", 1, properties=properties).wait_for_publish(DEADLINE_S)
    found = raw.take().properties
    assert found.user_properties == (("b", "1"), ("a", "2"), ("b", "1"))
    assert (found.correlation_data, found.response_topic) == (b"\x00\x01", "answer/here")
    sender.disconnect()
    raw.disconnect()
