"""The authorizer is asked on delivery, on every way that a message takes to a client."""

from __future__ import annotations

import pytest

from onelog.broker import LOCAL, Action, AllowAll, Kind, Principal
from onelog.protocols.mqtt.packets import Puback
from tests.support.mqtt import Client, serving


class Doorkeeper(AllowAll):
    """Keeps the secrets of everybody from everybody, and knows what it was asked."""

    checks_delivery = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.is_open = False

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        if action is not Action.DELIVER or principal is LOCAL:
            return True
        self.asked.append(resource)
        if resource.endswith("broken"):
            raise RuntimeError("the doorkeeper is ill")
        return self.is_open or "secret" not in resource

    def open(self) -> None:
        self.is_open = True
        for listener in self.on_change:
            listener()


async def send(publisher: Client, word: str, **options) -> None:
    for topic in ("t/secret", "t/broken", "t/open"):
        await publisher.publish(topic, f"{word} of {topic}", **options)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry_s", [0, 60])
async def test_what_a_user_may_not_have_is_not_delivered_to_it(tmp_path, qos, expiry_s):
    """A filter is broader than what its subscriber may see."""
    keeper = Doorkeeper()
    async with serving(tmp_path, authorizer=keeper) as node:
        client = await node.client("c", expiry_s=expiry_s)
        publisher = await node.client("p")
        assert await client.subscribe("t/#", qos) == qos
        for word in ("1st", "2nd"):
            await send(publisher, word, qos=max(qos, 1))
        assert await client.take(2) == ["1st of t/open", "2nd of t/open"]
        assert await client.is_silent()
        assert sorted(set(keeper.asked)) == sorted(keeper.asked)  # answers are remembered


async def test_retained_replayed_shared_missed_and_unacknowledged_messages_are_asked_for(tmp_path):
    keeper = Doorkeeper()
    async with serving(tmp_path, authorizer=keeper) as node:
        client, publisher = await node.client("c", expiry_s=60), await node.client("p")
        await send(publisher, "retained", retain=True)
        await client.subscribe("t/#", 1)
        assert await client.take() == ["retained of t/open"]
        await client.subscribe("$replay/earliest/t/#", 1)
        assert await client.take() == ["retained of t/open"]
        await client.unsubscribe("$replay/earliest/t/#")
        await client.unsubscribe("t/#")
        await client.subscribe("$share/g/t/#", 1)
        await send(publisher, "shared")
        assert await client.take() == ["shared of t/open"]
        await client.unsubscribe("$share/g/t/#")
        await client.subscribe("t/#", 1, retain_handling=2)
        await client.drop()
        await node.gone("c")
        await send(publisher, "missed")
        client = await node.client("c", clean=False, expiry_s=60)
        missed = await client.message()
        assert missed.payload == b"missed of t/open"
        await client.drop()
        await node.gone("c")
        keeper.allows = lambda principal, action, resource, kind=Kind.TOPIC: resource != "t/open"
        for listener in keeper.on_change:
            listener()
        client = await node.client("c", clean=False, expiry_s=60)
        assert await client.is_silent()  # it was in flight, and is not for it any more
        await publisher.publish("t/secret", "now")
        assert await client.take() == ["now"]


async def test_an_answer_counts_until_the_authorizer_says_that_it_changed(tmp_path):
    keeper = Doorkeeper()
    async with serving(tmp_path, authorizer=keeper) as node:
        client, publisher = await node.client("c"), await node.client("p")
        await client.subscribe("t/#", 1)
        await publisher.publish("t/secret", "1")
        keeper.is_open = True
        await publisher.publish("t/secret", "2")
        assert await client.is_silent()
        keeper.open()
        await publisher.publish("t/secret", "3")
        assert await client.take() == ["3"]


async def test_who_may_no_longer_publish_is_told_as_soon_as_the_authorizer_says_so(tmp_path):
    """Routes are remembered, too."""
    keeper = AllowAll()
    async with serving(tmp_path, authorizer=keeper) as node:
        publisher = await node.client("p")
        assert await publisher.publish("t", "1") == 0
        keeper.allows = lambda principal, action, resource, kind=Kind.TOPIC: (
            action is not Action.PUBLISH
        )
        for listener in keeper.on_change:
            listener()
        assert await publisher.publish("t", "2") == 0x87


async def test_an_authorizer_without_an_opinion_on_delivery_is_not_asked(tmp_path):
    keeper = Doorkeeper()
    keeper.checks_delivery = False
    async with serving(tmp_path, authorizer=keeper) as node:
        client, publisher = await node.client("c"), await node.client("p")
        await client.subscribe("t/#", 1)
        await publisher.publish("t/secret", "x")
        message = await client.message()
        await client.send(Puback(message.packet_id))
        assert keeper.asked == []
        assert node.hub.deliveries is None
