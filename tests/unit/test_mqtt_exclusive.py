"""`$exclusive`: one subscriber at a time."""

from __future__ import annotations

from onelog.protocols.mqtt.reasons import ReasonCode
from tests.support.mqtt import serving

DOOR = "$exclusive/door/1"


async def test_a_second_client_is_refused_until_the_first_lets_go(tmp_path):
    async with serving(tmp_path) as node:
        one, two = await node.client("one"), await node.client("two")
        assert await one.subscribe(DOOR, 1) == 1
        assert await one.subscribe(DOOR, 0) == 0  # its own, again
        assert await two.subscribe(DOOR, 1) == ReasonCode.QUOTA_EXCEEDED
        assert await two.subscribe("$exclusive/door/2", 1) == 1
        assert await one.unsubscribe(DOOR) == 0
        assert await two.subscribe(DOOR, 1) == 1
        await two.publish("door/1", "open")
        assert await two.take() == ["open"]
        assert await one.is_silent()


async def test_it_is_free_when_its_client_goes(tmp_path):
    async with serving(tmp_path) as node:
        one, two = await node.client("one"), await node.client("two")
        assert await one.subscribe(DOOR) == 0
        await one.drop()
        await node.gone("one")
        assert await two.subscribe(DOOR) == 0
        assert len(node.hub.clients.exclusive) == 1


async def test_plain_subscribers_are_not_kept_out(tmp_path):
    async with serving(tmp_path) as node:
        one, two = await node.client("one"), await node.client("two")
        assert await one.subscribe(DOOR, 1) == 1
        assert await two.subscribe("door/1", 1) == 1
        await two.publish("door/1", "open")
        assert await one.take() == ["open"]
        assert await two.take() == ["open"]


async def test_a_plain_subscription_in_its_place_gives_it_free(tmp_path):
    async with serving(tmp_path) as node:
        one, two = await node.client("one"), await node.client("two")
        assert await one.subscribe(DOOR) == 0
        assert await one.subscribe("door/1") == 0
        assert await one.unsubscribe(DOOR) == ReasonCode.NO_SUBSCRIPTION_EXISTED
        assert await two.subscribe(DOOR) == 0


async def test_a_session_that_comes_back_has_it_again_unless_another_took_it(tmp_path):
    async with serving(tmp_path) as node:
        one = await node.client("one", clean=False, expiry_s=60)
        assert await one.subscribe(DOOR, 1) == 1
        await one.drop()
        await node.gone("one")
        one = await node.client("one", clean=False, expiry_s=60)
        two = await node.client("two")
        assert await two.subscribe(DOOR, 1) == ReasonCode.QUOTA_EXCEEDED
        await one.drop()
        await node.gone("one")
        assert await two.subscribe(DOOR, 1) == 1
        one = await node.client("one", clean=False, expiry_s=60)
        await two.publish("door/1", "mine")
        assert await two.take() == ["mine"]
        assert await one.is_silent()
