"""`$share`: one queue per group and filter, whoever is connected."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from onelog.base.clock import SystemClock
from onelog.protocols.mqtt.features import MqttFeatures
from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.shares import ShareSettings
from onelog.queues.consumers import Strategy
from tests.support.mqtt import serving, until

JOBS = "$share/workers/jobs/#"


def with_strategy(strategy: Strategy) -> MqttFeatures:
    return MqttFeatures(shares=ShareSettings(strategy=strategy))


async def members(node, *names, **options):
    clients = []
    for name in names:
        client = await node.client(name, **options)
        assert await client.subscribe(JOBS, 1) == 1
        clients.append(client)
    return clients


async def test_each_message_goes_to_one_member(tmp_path):
    async with serving(tmp_path) as node:
        one, two = await members(node, "one", "two")
        sender = await node.client("sender")
        for number in range(6):
            await sender.publish("jobs/x", str(number))
        assert [await one.take(3), await two.take(3)] == [["0", "2", "4"], ["1", "3", "5"]]
        assert await one.is_silent()
        assert await two.is_silent()


async def test_messages_of_the_time_without_a_member_are_kept(tmp_path):
    async with serving(tmp_path) as node:
        (one,) = await members(node, "one")
        await one.disconnect()
        await node.gone("one")
        sender = await node.client("sender")
        await sender.publish("jobs/x", "a")
        await sender.publish("jobs/y", "b")
        (two,) = await members(node, "two")
        assert sorted(await two.take(2)) == ["a", "b"]


async def test_the_backlog_survives_a_restart_and_what_was_acknowledged_does_not_come_again(
    tmp_path,
):
    async with serving(tmp_path) as node:
        (one,) = await members(node, "one")
        sender = await node.client("sender")
        await sender.publish("jobs/x", "done")
        assert await one.take() == ["done"]
        await one.disconnect()
        await node.gone("one")
        await sender.publish("jobs/x", "later")
    async with serving(tmp_path) as node:
        (two,) = await members(node, "two")
        assert await two.take() == ["later"]
        assert await two.is_silent()


async def test_a_group_begins_at_its_first_subscription(tmp_path):
    async with serving(tmp_path) as node:
        sender = await node.client("sender")
        await sender.publish("jobs/x", "before", retain=True)
        (one,) = await members(node, "one")
        await sender.publish("jobs/x", "after")
        assert await one.take() == ["after"]
        assert await one.is_silent()  # nor is a retained message sent to a shared subscription


async def test_what_a_lost_member_did_not_acknowledge_goes_to_another_in_order(tmp_path):
    async with serving(tmp_path) as node:
        (one,) = await members(node, "one")
        sender = await node.client("sender")
        for number in range(5):
            await sender.publish("jobs/x", str(number))
        held = [await one.message() for _ in range(5)]
        await one.send(Puback(held[1].packet_id))
        await one.sync()
        (two,) = await members(node, "two")
        await one.drop()
        assert await two.take(4) == ["0", "2", "3", "4"]
        assert await two.is_silent()


async def test_after_unsubscribe_what_is_in_flight_is_completed(tmp_path):
    async with serving(tmp_path) as node:
        (one,) = await members(node, "one")
        sender = await node.client("sender")
        await sender.publish("jobs/x", "mine")
        held = await one.message()
        assert await one.unsubscribe(JOBS) == 0
        assert await one.unsubscribe(JOBS) == ReasonCode.NO_SUBSCRIPTION_EXISTED
        (two,) = await members(node, "two")
        await sender.publish("jobs/x", "next")
        assert await two.take() == ["next"]
        await one.send(Puback(held.packet_id))
        await one.drop()
        await node.gone("one")
        assert await two.is_silent()


async def test_groups_and_filters_each_have_a_queue_of_their_own(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        for text in ("$share/a/t/#", "$share/b/t/#", "$share/a/t/+", "t/#"):
            assert await client.subscribe(text, 1, identifier=client.next_id()) == 1
        sender = await node.client("sender")
        await sender.publish("t/x", "one")
        assert await client.take(4) == ["one"] * 4
        assert await client.is_silent()


async def test_qos_is_that_of_the_publish_or_the_subscription_whichever_is_lower(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        await client.subscribe("$share/g/t", 1)
        sender = await node.client("sender")
        for qos in (0, 1, 2):
            await sender.publish("t", str(qos), qos=qos)
        found = [await client.message() for _ in range(3)]
        assert [message.qos for message in found] == [0, 1, 1]


async def test_qos_0_is_settled_when_it_is_sent(tmp_path):
    async with serving(tmp_path) as node:
        one = await node.client("one")
        await one.subscribe("$share/g/t", 0)
        sender = await node.client("sender")
        await sender.publish("t", "gone")
        assert (await one.message()).qos == 0
        await one.drop()
        await node.gone("one")
        two = await node.client("two")
        await two.subscribe("$share/g/t", 0)
        assert await two.is_silent()


async def test_qos_2_is_settled_when_the_client_has_it(tmp_path):
    async with serving(tmp_path) as node:
        one = await node.client("one", clean=False, expiry_s=60)
        await one.subscribe("$share/g/t", 2)
        sender = await node.client("sender")
        await sender.publish("t", "once", qos=2)
        held = await one.message()
        assert held.qos == 2
        await one.send(Pubrec(held.packet_id))
        await one.receive(Pubrel)
        await one.drop()
        await node.gone("one")
        two = await node.client("two")
        await two.subscribe("$share/g/t", 2)
        again = await node.client("one", clean=False, expiry_s=60)
        assert (await again.receive(Pubrel)).packet_id == held.packet_id
        await again.send(Pubcomp(held.packet_id))
        assert await again.is_silent()
        assert await two.is_silent()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_refused_message_is_given_up(tmp_path, qos):
    async with serving(tmp_path) as node:
        one = await node.client("one")
        two = await node.client("two")
        await one.subscribe("$share/g/t", qos)
        sender = await node.client("sender")
        await sender.publish("t", "bad", qos=qos)
        held = await one.message()
        answer = Puback if qos == 1 else Pubrec
        await two.subscribe("$share/g/t", qos)
        await one.send(answer(held.packet_id, ReasonCode.UNSPECIFIED_ERROR))
        await one.drop()
        await node.gone("one")
        assert await two.is_silent()


async def test_a_member_without_room_is_passed_over_and_goes_on_later(tmp_path):
    """I8: a member gets no more than its window holds."""
    async with serving(tmp_path) as node:
        (small,) = await members(node, "small", receive_maximum=1)
        sender = await node.client("sender")
        for number in range(4):
            await sender.publish("jobs/x", str(number))
        held = await small.message()
        assert await small.is_silent()
        (large,) = await members(node, "large")
        assert await large.take(3) == ["1", "2", "3"]
        await small.acknowledge(held)
        await sender.publish("jobs/x", "4")
        await sender.publish("jobs/x", "5")
        assert Counter([*await small.take(), *await large.take()]) == Counter(["4", "5"])


async def test_a_window_that_others_filled_opens_again_by_a_plain_puback(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client", receive_maximum=2)
        await client.subscribe("plain", 1)
        await client.subscribe("$share/g/shared", 1)
        sender = await node.client("sender")
        for number in range(3):
            await sender.publish("plain", f"p{number}")
            await sender.publish("shared", f"s{number}")
        assert sorted(await client.take(6)) == ["p0", "p1", "p2", "s0", "s1", "s2"]
        assert await client.is_silent()


async def test_a_message_too_large_for_one_member_goes_to_another(tmp_path):
    async with serving(tmp_path) as node:
        small, large = (
            *await members(node, "small", packet_bytes_max=100),
            *await members(node, "large"),
        )
        sender = await node.client("sender")
        for _ in range(2):
            await sender.publish("jobs/x", "x" * 200)
        assert await large.take(2) == ["x" * 200] * 2
        await large.drop()
        await node.gone("large")
        await sender.publish("jobs/x", "y" * 200)  # nobody can take it: it is given up
        await sender.publish("jobs/x", "z")
        assert await small.take() == ["z"]


async def test_no_local_on_a_shared_subscription_is_a_protocol_error(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("client")
        await client.send(Subscribe(1, (Subscription(JOBS, 1, no_local=True),)))
        assert (await client.receive(Disconnect)).reason == ReasonCode.PROTOCOL_ERROR


async def test_sticky_stays_with_one_member_while_it_has_room(tmp_path):
    async with serving(tmp_path, with_strategy(Strategy.STICKY)) as node:
        one, two = await members(node, "one", "two")
        sender = await node.client("sender")
        for number in range(4):
            await sender.publish("jobs/x", str(number))
        assert await one.take(4) == ["0", "1", "2", "3"]
        assert await two.is_silent()


async def test_least_in_flight_goes_to_whoever_has_least_to_do(tmp_path):
    async with serving(tmp_path, with_strategy(Strategy.LEAST_IN_FLIGHT)) as node:
        one, two = await members(node, "one", "two")
        sender = await node.client("sender")
        await sender.publish("jobs/x", "0")
        await one.message()  # and does not acknowledge it
        await sender.publish("jobs/x", "1")
        assert await two.take() == ["1"]
        await two.sync()
        await sender.publish("jobs/x", "2")
        assert await two.take() == ["2"]


@pytest.mark.warm
async def test_a_hash_strategy_keeps_what_belongs_together_with_one_member(tmp_path):
    async with serving(tmp_path / "topic", with_strategy(Strategy.HASH_TOPIC)) as node:
        clients = await members(node, "one", "two", "three")
        sender = await node.client("sender")
        for number in range(30):
            await sender.publish(f"jobs/{number % 10}", str(number % 10))
        where = await by_payload(clients, 30)
        assert all(len(owners) == 1 for owners in where.values())
        assert len({*map(str, where.values())}) > 1
    async with serving(tmp_path / "client", with_strategy(Strategy.HASH_CLIENT)) as node:
        clients = await members(node, "one", "two", "three")
        for name in "abcdef":
            sender = await node.client(f"sender-{name}")
            for number in range(3):
                await sender.publish(f"jobs/{number}", name)
        where = await by_payload(clients, 18)
        assert all(len(owners) == 1 for owners in where.values())
        assert len({*map(str, where.values())}) > 1


async def by_payload(clients, count):
    """Payload → the members that got it."""
    found: dict[str, set[int]] = {}
    left = count
    for number, client in enumerate(clients):
        await client.sync()
        while not await client.is_silent():
            (payload,) = await client.take()
            found.setdefault(payload, set()).add(number)
            left -= 1
    assert left == 0
    return found


async def test_a_client_that_was_told_to_leave_and_stays_hurts_nobody(tmp_path):
    """I10: its half-closed connection takes no more, all others go on."""
    async with serving(tmp_path) as node:
        bad, good = await members(node, "bad", "good")
        await bad.subscribe("t", 0)
        await good.subscribe("t", 0)
        await bad.send(Subscribe(9, (Subscription(JOBS, 1, no_local=True),)))
        await bad.receive(Disconnect)
        sender = await node.client("sender")
        for number in range(4):
            await sender.publish("t", f"t{number}", 0)
            await sender.publish("jobs/x", f"j{number}")
        found = await good.take(8)
        assert [text for text in found if text[0] == "t"] == ["t0", "t1", "t2", "t3"]
        assert sorted(text for text in found if text[0] == "j") == ["j0", "j1", "j2", "j3"]


async def test_a_group_that_nobody_comes_back_to_ends(tmp_path):
    features = MqttFeatures(shares=ShareSettings(idle_expiry_ms=50))
    name = "share/workers/jobs/#"
    async with serving(tmp_path, features) as node:
        (one,) = await members(node, "one")
        assert name in node.broker.cursors.names()
        await one.disconnect()
        await until(lambda: name not in node.broker.cursors.names())
        sender = await node.client("sender")
        await sender.publish("jobs/x", "nobody")
        (two,) = await members(node, "two")
        assert await two.is_silent()


async def test_the_time_that_the_broker_was_down_counts_for_a_group(tmp_path):
    name = "share/workers/jobs/#"
    async with serving(tmp_path) as node:
        await members(node, "one")
    async with serving(tmp_path, MqttFeatures(shares=ShareSettings(idle_expiry_ms=1))) as node:
        await until(lambda: name not in node.broker.cursors.names())


async def test_a_group_ends_by_the_time_that_the_version_before_kept(tmp_path):
    """It kept it in the metadata store: a start takes it over, and is taken at its word."""
    name = "share/workers/jobs/#"
    async with serving(tmp_path) as node:
        await members(node, "one")
        assert node.broker.streams.find("~shares") is None, "made with the first group left alone"
        await node.broker.store.put(f"mqtt/shares/{name}", b"%d" % SystemClock().now_ms())
        await node.broker.store.put("mqtt/shares/share/other/gone", b"1")
    async with serving(tmp_path) as node:
        assert not (await node.broker.store.range("mqtt/shares/")).entries
        assert name in node.broker.cursors.names()
    async with serving(tmp_path, MqttFeatures(shares=ShareSettings(idle_expiry_ms=1))) as node:
        await until(lambda: name not in node.broker.cursors.names())
    async with serving(tmp_path) as node:
        assert dict((await node.broker.open_kept("~shares")).rows()) == {}


async def test_the_idle_time_of_a_group_begins_when_its_last_member_leaves(tmp_path):
    before_ms = SystemClock().now_ms()
    async with serving(tmp_path) as node:
        (one,) = await members(node, "one")
        await one.disconnect()
        await until(lambda: node.broker.streams.find("~shares") is not None)
    async with serving(tmp_path) as node:
        ((name, since_ms),) = (await node.broker.open_kept("~shares")).rows()
        assert name == b"share/workers/jobs/#"
        assert before_ms <= int(since_ms) <= SystemClock().now_ms()
        assert not (await node.broker.store.range("mqtt/")).entries
        await members(node, "two")
        assert dict((await node.broker.open_kept("~shares")).rows()) == {}


async def test_a_persistent_member_is_one_again_when_it_comes_back(tmp_path):
    async with serving(tmp_path) as node:
        (one,) = await members(node, "one", clean=False, expiry_s=60)
        await one.drop()
        await node.gone("one")
        sender = await node.client("sender")
        await sender.publish("jobs/x", "kept")
    async with serving(tmp_path) as node:
        one = await node.client("one", clean=False, expiry_s=60)
        assert one.connack.session_present
        assert await one.take() == ["kept"]


async def test_a_deleted_group_begins_anew(tmp_path):
    async with serving(tmp_path) as node:
        (one,) = await members(node, "one")
        await node.broker.cursors.delete("share/workers/jobs/#")
        sender = await node.client("sender")
        await sender.publish("jobs/x", "lost")
        (two,) = await members(node, "two")
        await sender.publish("jobs/x", "new")
        assert await two.take() == ["new"]
        assert await one.is_silent()


async def test_a_group_whose_only_member_went_while_it_was_opened_ends_in_its_time(tmp_path):
    """Or it would keep its backlog, and so the log, until the next start."""
    features = MqttFeatures(shares=ShareSettings(idle_expiry_ms=50))
    async with serving(tmp_path, features) as node:
        cursors, opening, go_on = node.broker.cursors, asyncio.Event(), asyncio.Event()
        open_queue = cursors.open_queue

        async def slowly(*args, **options):
            opening.set()
            await go_on.wait()
            return await open_queue(*args, **options)

        cursors.open_queue = slowly
        client = await node.client("c")
        await client.send(Subscribe(1, (Subscription(JOBS, 1),)))
        await opening.wait()
        (connection,) = node.hub.connections
        connection.transport.abort()
        await until(lambda: not node.hub.sessions)
        go_on.set()
        await until(lambda: not node.hub.connections)
        await until(lambda: not node.hub.shares.groups)
        assert not [name for name in cursors.names() if name.startswith("share/")]


async def test_share_groups_are_bounded_whether_they_have_members_or_not(tmp_path):
    """I8: a client names them, and each keeps a backlog for days."""
    async with serving(tmp_path, limits=MqttLimits(share_groups=3)) as node:
        client = await node.client("c")
        codes = [await client.subscribe(f"$share/g{number}/t", 1) for number in range(5)]
        assert codes == [1, 1, 1, 0x97, 0x97]
        for number in range(3):
            await client.unsubscribe(f"$share/g{number}/t")
        assert await client.subscribe("$share/g4/t", 1) == 0x97
        assert await client.subscribe("$share/g2/t", 1) == 1
    async with serving(tmp_path, limits=MqttLimits(share_groups=3)) as node:
        client = await node.client("c")
        assert await client.subscribe("$share/g4/t", 1) == 0x97
        assert await client.subscribe("$share/g0/t", 1) == 1
