"""`$SYS`: numbers as topics, for those who want them, never in the log."""

from __future__ import annotations

from onelog import __version__
from onelog.protocols.mqtt.features import MqttFeatures
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.system import SystemSettings
from tests.support.brokers import history
from tests.support.mqtt import serving


async def all_values(client, count):
    return {m.topic: m.payload.decode() for m in [await client.message() for _ in range(count)]}


async def test_a_subscriber_gets_every_number_at_once_as_if_retained(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client", clean=False, expiry_s=60)
        await client.publish("a", "x" * 100, retain=True)
        await client.publish("b", "y")
        await client.subscribe("a", 1)
        await client.take()
        assert await client.subscribe("$SYS/#", 1, identifier=9) == 1
        first = await client.message()
        assert (first.retain, first.qos, first.properties.subscription_ids) == (True, 0, (9,))
        count = len(node.hub.system.values())
        values = await all_values(client, count - 1)
        values[first.topic] = first.payload.decode()
        assert values["$SYS/broker/version"] == f"OneLog {__version__}"
        assert values["$SYS/broker/uptime"].endswith(" seconds")
        assert values["$SYS/broker/clients/connected"] == "1"
        assert values["$SYS/broker/clients/total"] == "1"
        assert values["$SYS/broker/messages/received"] == "2"
        assert values["$SYS/broker/messages/sent"] == "1"
        assert int(values["$SYS/broker/bytes/received"]) > 100
        assert int(values["$SYS/broker/bytes/sent"]) > 100
        assert values["$SYS/broker/subscriptions/count"] == "2"
        assert values["$SYS/broker/retained messages/count"] == "1"
        assert float(values["$SYS/broker/load/messages/received/1min"]) > 0
        assert await client.is_silent()


async def test_numbers_come_again_by_a_timer_while_somebody_subscribes(tmp_path):
    features = MqttFeatures(system=SystemSettings(interval_s=0.01))
    async with serving(tmp_path, features) as node:
        assert not node.hub.system.is_running
        client = await node.client("client")
        await client.subscribe("$SYS/broker/uptime", 0, retain_handling=2)
        message = await client.message()
        assert (message.topic, message.retain) == ("$SYS/broker/uptime", False)
        await client.message()
        await client.unsubscribe("$SYS/broker/uptime")
        node.hub.system.refresh()
        assert not node.hub.system.is_running


async def test_a_wildcard_at_the_start_does_not_match_them(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        await client.subscribe("#")
        await client.subscribe("+/broker/uptime")
        other = await node.client("other")
        await other.subscribe("$SYS/broker/uptime")
        await other.message()
        node.hub.system.refresh()
        await other.message()
        assert await client.is_silent()


async def test_clients_cannot_publish_there_and_the_log_never_has_them(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        await client.subscribe("$SYS/#")
        assert await client.publish("$SYS/broker/uptime", "0") == ReasonCode.NOT_AUTHORIZED
        node.hub.system.refresh()
        assert await history(node.broker, "$SYS/#") == []


async def test_a_session_that_comes_back_gets_them_again(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client", clean=False, expiry_s=60)
        await client.subscribe("$SYS/broker/version", 0)
        await client.message()
        await client.drop()
        await node.gone("client")
        node.hub.system.refresh()
        assert not node.hub.system.is_running
        client = await node.client("client", clean=False, expiry_s=60)
        assert node.hub.system.is_running
        node.hub.system.refresh()
        assert (await client.message()).topic == "$SYS/broker/version"
