"""MQTT on one node of several: who is served here, and what happens when a shard is lost or won."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from onelog.base.errors import NotLeader
from onelog.broker import LOCAL, Message
from onelog.kernel import BatchBuilder
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.retained_copies import ORIGIN, PLACE
from onelog.protocols.mqtt.retained_copies import STREAM as RETAINED
from onelog.record.headers import RETAIN, Headers
from tests.support.elections import ELECTED, depose, lose, name_in, win
from tests.support.kafka_nodes import FakeCluster, Standing, lead, place
from tests.support.kafka_nodes import depose as depose_partition
from tests.support.mqtt import Client, Node, dial, serving, until

KEPT: dict[str, Any] = {"clean": False, "expiry_s": 600}


@contextlib.asynccontextmanager
async def electing(path: Path, *led: int) -> AsyncIterator[tuple[Node, FakeCluster]]:
    """Node 0 of three; the others own what it does not. It owns these shards at first."""
    async with serving(path, settings=ELECTED) as node:
        cluster = Owners(node.broker.shards.leads)
        cluster.places = [place(n, mqtt=f"mqtt://h{n}:1883") for n in range(3)]
        node.broker.cluster = cluster
        for shard in led:
            await node.broker.shards.lead(shard)
        yield node, cluster


class Owners(FakeCluster):
    """What is not led here is owned by `other`."""

    def __init__(self, is_led: Callable[[bytes], bool]) -> None:
        super().__init__()
        self.is_led = is_led
        self.other = 1

    def owner(self, name: bytes) -> int:
        return 0 if self.is_led(name) else self.other


async def refused(
    node: Node, client_id: str, *, version: int = 5, expiry_s: int | None = None
) -> Connack:
    """How a client is refused."""
    reader, writer = await dial(node.port)
    client = Client(reader, writer, version)
    node.clients.append(client)
    packet = Connect(
        client_id=client_id,
        version=version,
        clean_start=not expiry_s,
        keep_alive_s=60,
        properties=Properties(session_expiry_s=expiry_s),
    )
    writer.write(encode_packet(packet, version))
    return await client.receive(Connack)


def will(delay_s: int | None = None) -> Will:
    return Will(topic="t", payload=b"gone", qos=1, properties=Properties(will_delay_s=delay_s))


# -- CONNECT


async def test_a_client_of_another_shard_is_told_where_it_is_served(tmp_path: Path) -> None:
    """MQTT5 4.11."""
    async with electing(tmp_path, 1) as (node, cluster):
        other = name_in(node.broker, 2)
        for expiry_s in (None, 60):
            answer = await refused(node, other, expiry_s=expiry_s)
            assert (answer.reason, answer.properties.server_reference) == (0x9C, "h1:1883")
        cluster.other = 2
        assert (await refused(node, other)).properties.server_reference == "h2:1883"
        assert (await refused(node, other, version=4)).reason == 0x88  # return code 3
        assert (await node.client(name_in(node.broker, 1))).connack.reason == 0


async def test_while_nobody_owns_a_shard_its_clients_are_to_try_again(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as (node, cluster):
        other = name_in(node.broker, 2)
        cluster.other = -1
        answer = await refused(node, other)
        assert (answer.reason, answer.properties.server_reference) == (0x88, None)
        cluster.other = 1
        cluster.places = [place(1)]  # it has no such listener
        assert (await refused(node, other)).reason == 0x88


@pytest.mark.parametrize("expiry_s", [None, 60])
async def test_an_owner_that_may_have_been_deposed_accepts_nobody(
    tmp_path: Path, expiry_s: int | None
) -> None:
    async with electing(tmp_path, 1) as (node, _cluster):
        mine = name_in(node.broker, 1)
        node.broker.shards.is_fresh = lambda _shard: False
        answer = await refused(node, mine, expiry_s=expiry_s)
        assert (answer.reason, answer.properties.server_reference) == (0x88, None)
        assert not len(node.broker.sessions)
        node.broker.shards.is_fresh = lambda _shard: True
        assert (await node.client(mine)).connack.reason == 0


async def test_a_shard_whose_rows_are_still_read_serves_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with electing(tmp_path) as (node, _cluster):
        may_take, take = asyncio.Event(), node.hub.wills.take

        async def take_later(shard: int) -> None:
            await may_take.wait()
            await take(shard)

        monkeypatch.setattr(node.hub.wills, "take", take_later)
        taking = asyncio.create_task(node.broker.shards.lead(1))
        await until(lambda: 1 in node.broker.shards.led)
        await asyncio.sleep(0.01)
        assert (await refused(node, name_in(node.broker, 1))).reason == 0x88
        may_take.set()
        await taking
        await node.client(name_in(node.broker, 1))


async def test_a_shard_is_served_when_what_the_owner_before_saw_is_visible_here(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path) as (node, _cluster):
        home: Any = node.broker.streams.get("main").partition_of(b"t")
        progress = Standing()
        lead(home, 1, progress)
        node.broker.publisher.publish((Message("t", b"one"),), None, principal=LOCAL)
        await until(lambda: home.end_offset == 1)
        taking = asyncio.create_task(node.broker.shards.lead(1))
        await until(lambda: 1 in node.broker.shards.led)
        await asyncio.sleep(0.05)
        assert (await refused(node, name_in(node.broker, 1))).reason == 0x88
        progress.offset = 1
        home.moved()
        await taking
        await node.client(name_in(node.broker, 1))


async def test_a_partition_that_stands_still_does_not_keep_a_shard_from_being_served(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path) as (node, _cluster):
        home: Any = node.broker.streams.get("main").partition_of(b"t")
        lead(home, 1, Standing())
        node.broker.publisher.publish((Message("t", b"one"),), None, principal=LOCAL)
        await until(lambda: home.end_offset == 1)
        async with asyncio.timeout(10):
            await node.broker.shards.lead(1)
        await node.client(name_in(node.broker, 1))


async def test_an_id_that_the_broker_gives_is_one_that_it_serves(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as (node, _cluster):
        for _ in range(10):
            client = await node.client("")
            made = client.connack.properties.assigned_client_id or ""
            assert node.broker.shards.of(made.encode()) == 1


# -- a shard is lost


async def test_clients_of_a_lost_shard_are_told_where_to_go_and_the_others_stay(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path, 1, 2) as (node, cluster):
        clean = await node.client(name_in(node.broker, 1))
        kept = await node.client(name_in(node.broker, 1, nth=1), **KEPT)
        stays = await node.client(name_in(node.broker, 2))
        await lose(node.broker, 1)
        for client in (clean, kept):
            told = await client.receive(Disconnect)
            assert (told.reason, told.properties.server_reference) == (0x9C, "h1:1883")
        await stays.sync()
        assert set(node.hub.sessions) == {name_in(node.broker, 2)}
        cluster.other = -1
        await lose(node.broker, 2)
        assert (await stays.receive(Disconnect)).reason == 0x8B
        assert not node.broker.troubles.rows()


async def test_clients_of_a_lost_shard_leave_when_its_next_owner_is_known(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as (node, cluster):
        client = await node.client(name_in(node.broker, 1))
        cluster.other = -1
        losing = asyncio.create_task(lose(node.broker, 1))
        await until(lambda: 1 not in node.broker.shards.led)
        await client.sync()
        cluster.other = 2
        for told in [*cluster.on_change]:
            told()
        await losing
        assert (await client.receive(Disconnect)).properties.server_reference == "h2:1883"


async def test_what_a_lost_session_had_not_acknowledged_comes_again_from_the_next_owner(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path, 1, 2) as (node, _cluster):
        ours = name_in(node.broker, 1)
        client = await node.client(ours, **KEPT)
        await client.subscribe("t", 1)
        other = await node.client(name_in(node.broker, 2))
        await other.publish("t", "one")
        assert (await client.message()).payload == b"one"
        await lose(node.broker, 1)
        await win(node.broker, 1)
        again = await node.client(ours, **KEPT)
        assert again.connack.session_present
        assert await again.take() == ["one"]


async def test_a_client_that_goes_while_its_shard_was_lost_writes_nothing(tmp_path: Path) -> None:
    """The services have not heard of the election yet."""
    async with electing(tmp_path, 1, 2) as (node, _cluster):
        watching = await node.client(name_in(node.broker, 2))
        await watching.subscribe("t", 1)
        ours = name_in(node.broker, 1)
        client = await node.client(ours, will=will(), **KEPT)
        depose(node.broker, 1)
        await client.drop()
        await node.gone(ours)
        assert await watching.is_silent()
        await node.broker.shards.lose(1)
        assert not node.broker.troubles.rows()


# -- wills


async def test_a_will_of_a_lost_shard_is_the_next_owners(tmp_path: Path) -> None:
    async with electing(tmp_path, 1, 2) as (node, _cluster):
        watching = await node.client(name_in(node.broker, 2))
        await watching.subscribe("t", 1)
        for nth, (options, delay_s) in enumerate([({}, None), (KEPT, None), (KEPT, 1)]):
            await node.client(name_in(node.broker, 1, nth=nth), will=will(delay_s), **options)
        await lose(node.broker, 1)
        await until(lambda: len(node.hub.sessions) == 1)
        await asyncio.sleep(1.2)
        assert await watching.is_silent()
        assert not node.hub.wills.kept()
        await win(node.broker, 1)
        assert await watching.take(3) == ["gone"] * 3
        await until(lambda: not node.hub.wills.kept())
        await lose(node.broker, 1)
        await win(node.broker, 1)
        assert await watching.is_silent()


async def test_a_will_whose_topic_another_node_leads_waits_for_it(tmp_path: Path) -> None:
    async with electing(tmp_path, 1, 2) as (node, _cluster):
        watching = await node.client(name_in(node.broker, 2))
        await watching.subscribe("t", 1)
        home: Any = node.broker.streams.get("main").partition_of(b"t")
        depose_partition(home)
        client = await node.client(name_in(node.broker, 1), will=will())
        await client.drop()
        await node.gone(name_in(node.broker, 1))
        assert await watching.is_silent()
        assert node.hub.wills.kept()
        lead(home, int(home.leader_epoch) + 1)
        assert await watching.take() == ["gone"]
        await until(lambda: not node.hub.wills.kept())


# -- delayed messages, share groups, exclusive subscriptions


async def test_delayed_messages_go_out_once_over_elections(tmp_path: Path) -> None:
    async with electing(tmp_path, 0, 1) as (node, _cluster):
        client = await node.client(name_in(node.broker, 1))
        await client.subscribe("t", 1)
        assert await client.publish("$delayed/1/t", "late") == 0
        await lose(node.broker, 0)
        assert await client.publish("$delayed/1/t", "refused") == 0x83
        await asyncio.sleep(1.2)
        assert await client.is_silent()
        await win(node.broker, 0)
        assert await client.take() == ["late"]
        await lose(node.broker, 0)
        await win(node.broker, 0)
        assert await client.publish("$delayed/0/t", "now") == 0
        assert await client.take() == ["now"]
        assert await client.is_silent()


async def test_a_share_group_has_its_members_at_its_owner(tmp_path: Path) -> None:
    async with electing(tmp_path, 1, 2) as (node, _cluster):
        shard = {node.broker.cursors.shard_of(f"share/g/t{n}"): f"t{n}" for n in range(30)}
        ours, other = shard[2], shard[3]
        client = await node.client(name_in(node.broker, 1))
        assert await client.subscribe(f"$share/g/{other}", 1) == 0x83
        assert await client.subscribe(f"$share/g/{ours}", 1) == 1
        publisher = await node.client(name_in(node.broker, 1, nth=1))
        await publisher.publish(ours, "one")
        message = await client.message()
        await lose(node.broker, 2)
        assert (await client.receive(Disconnect)).reason == 0x89
        await publisher.sync()
        await win(node.broker, 2)
        client = await node.client(name_in(node.broker, 1))
        assert await client.subscribe(f"$share/g/{ours}", 1) == 1
        assert await client.take() == [message.payload.decode()]
        assert not node.broker.troubles.rows()


async def test_a_session_is_not_resumed_without_its_share_group(tmp_path: Path) -> None:
    """I9: the client would miss messages and not know it."""
    async with electing(tmp_path, 1, 2) as (node, _cluster):
        shard = {node.broker.cursors.shard_of(f"share/g/t{n}"): f"t{n}" for n in range(30)}
        ours = name_in(node.broker, 1)
        client = await node.client(ours, **KEPT)
        assert await client.subscribe(f"$share/g/{shard[2]}", 1) == 1
        await client.disconnect()
        await node.gone(ours)
        await lose(node.broker, 2)
        answer = await refused(node, ours, expiry_s=600)
        assert answer.reason == 0x88
        assert "share" in (answer.properties.reason_string or "")
        await win(node.broker, 2)
        assert (await node.client(ours, **KEPT)).connack.session_present


async def test_an_exclusive_subscription_lies_with_the_owner_of_its_filter(tmp_path: Path) -> None:
    async with electing(tmp_path, 1, 2) as (node, _cluster):
        client = await node.client(name_in(node.broker, 1))
        assert await client.subscribe(f"$exclusive/{name_in(node.broker, 3)}", 1) == 0x83
        assert await client.subscribe(f"$exclusive/{name_in(node.broker, 2)}", 1) == 1
        await lose(node.broker, 2)
        assert (await client.receive(Disconnect)).reason == 0x89


# -- publishing and subscribing


async def test_publishes_to_a_partition_that_another_node_leads_are_refused(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as (node, _cluster):
        client = await node.client(name_in(node.broker, 1))
        old = await node.client(name_in(node.broker, 1, nth=1), version=4)
        assert await client.publish("t", "first") == 0  # the kernel knows the way from here on
        depose_partition(node.broker.streams.get("main").partition_of(b"t"))  # type: ignore[arg-type]
        assert await client.publish("t", "second") == 0x83
        assert await client.publish("t", "third", qos=2) == 0x83
        assert await client.publish("t", "fourth", qos=0) == 0
        await client.sync()
        await old.send(Publish(topic="t", payload=b"fifth", qos=1, packet_id=1))
        assert await old._reader.read() == b""


async def test_a_replica_that_does_not_lead_serves_subscribers(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as (node, _cluster):
        home: Any = node.broker.streams.get("main").partition_of(b"t")
        publisher = await node.client(name_in(node.broker, 1))
        await publisher.publish("t", "kept", retain=True)
        depose_partition(home)
        client = await node.client(name_in(node.broker, 1, nth=1))
        await client.send(Subscribe(1, (Subscription("t", 1),)))
        assert (await client.receive(Suback)).reasons == (1,)
        assert await client.take() == ["kept"]


async def test_copies_of_retained_messages_are_found_by_a_node_that_starts_again(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path, 0, 1) as (node, _cluster):
        publisher = await node.client(name_in(node.broker, 1))
        await publisher.publish("t", "kept", retain=True)
        stream = node.broker.streams.get("main")
        home: Any = stream.partition_of(b"t")
        await node.hub.retained.before_trim(home, home.end_offset)
        await home.trim(home.end_offset)
    async with electing(tmp_path, 0, 1) as (node, _cluster):
        client = await node.client(name_in(node.broker, 1))
        await client.subscribe("t", 1)
        assert await client.take() == ["kept"]


def as_copies(log: Any, *rows: tuple[str, str | None, Headers]) -> bytearray:
    """Rows as the leader of a partition would send them."""
    builder = BatchBuilder(True)
    for topic, value, headers in rows:
        name = topic.encode()
        builder.add(name, name, None if value is None else value.encode(), headers, 1)
    return bytearray(builder.seal(int(log.end_offset), int(log.leader_epoch), 0))


def receive(log: Any, *rows: tuple[str, str | None, Headers]) -> None:
    """Another node leads a partition, and wrote rows that all replicas have."""
    data = as_copies(log, *rows)
    log.replica.append_copy(data, int(log.leader_epoch), log.end_offset + len(rows))


async def test_a_replica_delivers_what_its_leader_makes_visible(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as (node, _cluster):
        home: Any = node.broker.streams.get("main").partition_of(b"t")
        depose_partition(home)
        client = await node.client(name_in(node.broker, 1))
        await client.subscribe("t", 1)
        receive(home, ("t", "from afar", ()))
        assert await client.take() == ["from afar"]


async def test_a_node_follows_copies_that_the_leader_of_a_partition_makes(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as (node, _cluster):
        main = node.broker.streams.get("main")
        home: Any = main.partition_of(b"t")
        copies: Any = node.broker.streams.get(RETAINED).partitions[2]
        assert len(node.broker.streams.get(RETAINED).partitions) == len(node.broker.shards)
        depose_partition(home)
        depose_partition(copies)
        receive(home, ("t", "old", ((RETAIN, b"1"),)), ("t/other", "x", ()))
        for place, known in ((b"%d/7" % home.id, "old"), (b"%d/0" % home.id, "copy")):
            origin = ((ORIGIN, main.record.id.encode()), (PLACE, place), (RETAIN, b"1"))
            receive(copies, ("t", "copy", origin))
            client = await node.client(name_in(node.broker, 1))
            await client.subscribe("t", 1)
            assert await client.take() == [known]
        receive(copies, ("t", None, ()))
        client = await node.client(name_in(node.broker, 1))
        await client.subscribe("t", 1)
        assert await client.is_silent()


async def test_retained_messages_are_copied_into_a_partition_that_this_node_leads(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path, 1) as (node, _cluster):
        client = await node.client(name_in(node.broker, 1))
        await client.publish("t", "kept", retain=True)
        home: Any = node.broker.streams.get("main").partition_of(b"t")
        copies: Any = node.broker.streams.get(RETAINED).partitions
        for log in copies:
            depose_partition(log)
        with pytest.raises(NotLeader):
            await node.hub.retained.before_trim(home, home.end_offset)
        lead(copies[3], 2)
        await node.hub.retained.before_trim(home, home.end_offset)
        assert [int(log.end_offset) for log in copies] == [0, 0, 0, 1]
        await client.publish("t", "", retain=True)
        await until(lambda: copies[3].end_offset == 2)
