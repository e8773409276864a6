"""`$delayed`: durable at once, published at its time, once."""

from __future__ import annotations

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import InvalidName, NotAuthorized
from onelog.broker import AllowAll, Kind
from onelog.protocols.mqtt.delayed import DelayedSettings, parse_delayed
from onelog.protocols.mqtt.features import MqttFeatures
from onelog.protocols.mqtt.packets import Will
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import ReasonCode
from tests.support.brokers import history
from tests.support.mqtt import serving, until

NOW_MS = 1_700_000_000_000
YEAR_S = 366 * 24 * 3600


class Clock(SystemClock):
    """The machine's clock, moved ahead by a test."""

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self):
        return super().now_ms() + self.ahead_ms


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("$delayed/5/a/b", (NOW_MS + 5000, "a/b")),
        ("$delayed/0/a", (NOW_MS, "a")),
        ("$delayed/@1700000060/a", (NOW_MS + 60_000, "a")),
        ("$delayed/@1/a", (1000, "a")),
        (f"$delayed/{YEAR_S}/a", (NOW_MS + YEAR_S * 1000, "a")),
        ("$delayed/1//a", (NOW_MS + 1000, "/a")),
    ],
)
def test_a_delay_is_read(topic, found):
    assert parse_delayed(topic, NOW_MS, YEAR_S) == found


@pytest.mark.parametrize(
    "topic",
    [
        "$delayed/",
        "$delayed/5",
        "$delayed/5/",
        "$delayed/x/a",
        "$delayed/-1/a",
        "$delayed/1.5/a",
        "$delayed/@/a",
        "$delayed/٣/a",
        f"$delayed/{YEAR_S + 1}/a",
        "$delayed/@9999999999/a",
    ],
)
def test_a_delay_that_says_nothing_or_too_much_is_refused(topic):
    with pytest.raises(InvalidName):
        parse_delayed(topic, NOW_MS, YEAR_S)


def test_a_reserved_topic_cannot_be_reached_by_a_detour():
    for inner in ("$SYS/x", "$delayed/1/a", "$share/g/a"):
        with pytest.raises(NotAuthorized):
            parse_delayed(f"$delayed/1/{inner}", NOW_MS, YEAR_S)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_comes_at_its_time_with_everything_it_had(tmp_path, qos):
    """I6"""
    clock = Clock()
    async with serving(tmp_path, clock=clock) as node:
        client = await node.client("client", clean=False, expiry_s=60)
        await client.subscribe("a", 2, retain_as_published=True)
        properties = Properties(
            content_type="text/plain",
            correlation_data=b"\0\1",
            response_topic="back",
            message_expiry_s=10,
            user_properties=(("k", "1"), ("k", "2")),
        )
        await client.publish("$delayed/60/a", "later", qos, retain=True, properties=properties)
        await client.publish("a", "now", 1)
        assert await client.take() == ["now"]
        await until(lambda: len(node.hub.delayed) == 1)
        clock.ahead_ms = 61_000
        node.hub.delayed.look_again()
        message = await client.message()
        assert (message.payload, message.qos, message.retain) == (b"later", qos, True)
        expiry_s = message.properties.message_expiry_s
        assert expiry_s is not None and 8 <= expiry_s <= 10  # counted from its time on
        kept = message.properties
        assert (kept.content_type, kept.correlation_data, kept.response_topic) == (
            "text/plain", b"\0\1", "back",
        )  # fmt: skip
        assert kept.user_properties == (("k", "1"), ("k", "2"))
        await client.acknowledge(message)
        await until(lambda: len(node.hub.delayed) == 0)
        late = await node.client("late")
        await late.subscribe("a", 0)
        assert await late.take() == ["later"]  # it is retained now


async def test_a_timer_publishes_without_help(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        await client.subscribe("a", 1)
        assert await client.publish("$delayed/1/a", "second") == 0
        assert await client.publish("$delayed/0/a", "first") == 0
        assert await client.publish("$delayed/@1/a", "long ago") == 0
        assert await client.take(3) == ["first", "long ago", "second"]


async def test_what_waits_survives_a_restart_and_comes_once(tmp_path):
    clock = Clock()
    async with serving(tmp_path, clock=clock) as node:
        client = await node.client("client")
        await client.publish("$delayed/60/a", "one")
        await client.publish("$delayed/30/a", "two")
        await client.publish("$delayed/1000/a", "much later")
    clock.ahead_ms = 120_000
    for _ in range(2):
        async with serving(tmp_path, clock=clock) as node:
            await until(lambda: len(node.hub.delayed) == 1)
            assert await history(node.broker, "a") == ["a=two", "a=one"]


async def test_a_message_that_cannot_be_published_is_refused_at_once(tmp_path):
    settings = DelayedSettings(pending_max=1, delay_max_s=100)
    async with serving(tmp_path, MqttFeatures(delayed=settings)) as node:
        client = await node.client("client")
        assert await client.publish("$delayed/101/a") == ReasonCode.TOPIC_NAME_INVALID
        assert await client.publish("$delayed/x/a") == ReasonCode.TOPIC_NAME_INVALID
        assert await client.publish("$delayed/1/$SYS/a") == ReasonCode.NOT_AUTHORIZED
        assert await client.publish("$delayed/50/a") == 0
        assert await client.publish("$delayed/50/a", qos=2) == ReasonCode.QUOTA_EXCEEDED


class Moody(AllowAll):
    """Lets a principal publish until it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def allows(self, principal, action, resource, kind=Kind.TOPIC):
        return not (action == "publish" and resource in self.refused)


async def test_who_may_no_longer_publish_when_the_time_comes_does_not(tmp_path):
    clock, authorizer = Clock(), Moody()
    async with serving(tmp_path, clock=clock, authorizer=authorizer) as node:
        client = await node.client("client")
        authorizer.refused = {"b"}
        assert await client.publish("$delayed/60/b") == ReasonCode.NOT_AUTHORIZED
        assert await client.publish("$delayed/60/a", "x") == 0
        authorizer.refused = {"a"}
        clock.ahead_ms = 61_000
        node.hub.delayed.look_again()
        await until(lambda: len(node.hub.delayed) == 0)
        assert await history(node.broker, "a") == []


async def test_more_than_memory_holds_come_in_order_all_the_same(tmp_path):
    """I8"""
    clock = Clock()
    features = MqttFeatures(delayed=DelayedSettings(nearest_max=4))
    async with serving(tmp_path, features, clock=clock) as node:
        client = await node.client("client")
        order = [(number * 7) % 40 for number in range(40)]
        for number in order:
            await client.publish(f"$delayed/{60 + number}/a", f"{number:02}")
        for number in range(6):
            await client.publish("$delayed/200/a", f"last{number}")
        delayed = node.hub.delayed
        assert len(delayed) == 46
        assert len(delayed._nearest) <= 5
        clock.ahead_ms = 300_000
        delayed.look_again()
        await until(lambda: len(delayed) == 0)
        found = await history(node.broker, "a")
        assert found == [f"a={n:02}" for n in range(40)] + [f"a=last{n}" for n in range(6)]


async def test_a_will_may_be_delayed(tmp_path):
    async with serving(tmp_path) as node:
        watcher = await node.client("watcher")
        await watcher.subscribe("gone", 1)
        client = await node.client(
            "client", will=Will(topic="$delayed/0/gone", payload=b"bye", qos=1)
        )
        await client.drop()
        assert await watcher.take() == ["bye"]
