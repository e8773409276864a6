"""Does a client subscribe at any node to what lies on other nodes only, and get all of it once, in
order?"""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.errors import NotLeader, StorageError
from onelog.base.ids import PartitionId
from onelog.broker import StreamConfig, observing
from onelog.cluster.observed import LEFTOVERS
from onelog.cluster.rows import NOBODY
from onelog.log.config import Replication
from onelog.log.stream import Stream
from onelog.protocols.mqtt.packets import Suback, Subscribe, Subscription
from onelog.record.batch import iterate_batches
from onelog.storage.engine import PartitionKey
from tests.batches import read_all
from tests.support.cluster_nodes import Nodes, OneNode
from tests.support.mqtt import Client, until
from tests.unit.test_forwarding_mqtt import KEPT, client_of, mqtt_at

PARTITIONS = 2


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that nobody needs go soon."""
    monkeypatch.setattr(observing, "LINGER_S", 0.6)
    monkeypatch.setattr(observing, "LOOK_S", 0.1)
    monkeypatch.setattr(observing, "CALM_S", 0.05)


@pytest.fixture
async def far(nodes: Nodes) -> tuple[Nodes, OneNode, OneNode]:
    """Three nodes, one that leads all of the stream `far`, and one without any of it."""
    await nodes.start(1, 2, 3)
    await make(nodes, "far", 1)
    return nodes, nodes[1], nodes[2]


async def make(nodes: Nodes, name: str, home: int) -> None:
    """A stream of one replica, on this node."""
    config = StreamConfig(
        name=name,
        captures=(f"{name}/#",),
        partitions=PARTITIONS,
        replication=Replication(factor=1),
    )
    await nodes[home].broker.streams.create(config, [(home,)] * PARTITIONS)
    await nodes.until_whole(name)


def stream_at(node: OneNode, name: str = "far") -> Stream:
    return node.broker.streams.get(name)


def written_at(node: OneNode, partition: int) -> list[str]:
    """What lies in a partition of `far` at a node, in order."""
    data = read_all(stream_at(node).local[partition].log)
    return [
        slices.record(index)[3].decode()
        for _info, slices in iterate_batches(data)
        for index in range(len(slices))
    ]


def has_files(node: OneNode, name: str = "far") -> bool:
    found = stream_at(node, name).record.id
    return any(path.name.startswith(found) for path in (node.folder / "segment").rglob("*"))


async def say(client: Client, topic: str, numbers: range) -> list[str]:
    for number in numbers:
        assert await client.publish(topic, str(number)) == 0
    return [str(number) for number in numbers]


async def test_every_filter_is_granted_and_gets_what_comes_after_it_in_order(far) -> None:
    _nodes, leader, other = far
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        writer = await client_of(there, "writer")
        await say(writer, "far/x", range(5))
        readers = []
        for number, text in enumerate(("far/x", "far/#", "#")):
            readers.append(await client_of(here, f"r{number}"))
            assert await readers[-1].subscribe(text, 1) == 1
        sent = await say(writer, "far/x", range(5, 45))
        own = await client_of(here, "own")
        sent += await say(own, "far/x", range(45, 60))
        for reader in readers:
            assert await reader.take(len(sent)) == sent
        # One copy of each partition serves all of them, and none of the copies counts.
        assert len(other.cluster.observers.keys) == PARTITIONS
        for partition in stream_at(leader).partitions:
            row = leader.cluster.known.row(stream_at(leader).key(partition.id))
            assert row is not None
            assert set(row[0].replicas) == set(row[0].isr) == {leader.number}


async def test_shares_and_replays_read_what_lies_elsewhere(far) -> None:
    _nodes, leader, other = far
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        writer = await client_of(there, "writer")
        before = await say(writer, "far/x", range(5))
        broker = other.broker
        names = ((f"g{n}", broker.cursors.shard_of(f"share/g{n}/far/x")) for n in range(1000))
        await until(lambda: bool(broker.shards.owned))
        group = next(group for group, shard in names if shard in broker.shards.owned)
        member, replayed = await client_of(here, "m"), await client_of(here, "p")
        assert await replayed.subscribe("$replay/earliest/far/x", 1) == 1
        await member.send(Subscribe(7, (Subscription(f"$share/{group}/far/x", 1),)))
        answer = await member.receive(Suback)
        assert [int(reason) for reason in answer.reasons] == [1], answer
        after = await say(writer, "far/x", range(5, 15))
        assert await replayed.take(15) == before + after
        assert await member.take(10) == after


async def test_what_is_retained_elsewhere_is_known_with_the_subscription(far) -> None:
    _nodes, leader, other = far
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        writer = await client_of(there, "writer")
        assert await writer.publish("far/x", "old", retain=True) == 0
        assert await writer.publish("far/x", "kept", retain=True) == 0
        assert await writer.publish("far/y", "gone", retain=True) == 0
        assert await writer.publish("far/y", "", retain=True) == 0
        reader = await client_of(here, "reader")
        assert await reader.subscribe("far/#", 1) == 1
        assert await reader.take(1) == ["kept"]
        assert await writer.publish("far/z", "live") == 0
        assert await reader.take(1) == ["live"]


async def test_a_copy_goes_after_its_last_reader_and_comes_again(far, quick) -> None:
    del quick
    _nodes, leader, other = far
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        writer = await client_of(there, "writer")
        for turn in range(3):
            reader = await client_of(here, f"r{turn}")
            assert await reader.subscribe("far/#", 1) == 1
            sent = await say(writer, "far/x", range(10 * turn, 10 * turn + 5))
            assert await reader.take(5) == sent
            assert has_files(other)
            await asyncio.sleep(1.2)  # longer than a copy lingers: somebody needs it
            assert len(other.cluster.observers.keys) == PARTITIONS
            await reader.drop()
            await until(
                lambda: all(isinstance(p.stopped, NotLeader) for p in stream_at(other).local)
            )
            await until(lambda: not has_files(other))
            await say(writer, "far/x", range(10 * turn + 5, 10 * turn + 10))  # nobody reads these


async def test_a_wildcard_gets_streams_that_come_later(far) -> None:
    nodes, leader, other = far
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        reader, writer = await client_of(here, "reader"), await client_of(there, "writer")
        assert await reader.subscribe("+/x", 1) == 1
        await make(nodes, "later", 1)
        sent = await say(writer, "later/x", range(30))
        assert await reader.take(30) == sent


async def test_a_copy_follows_the_next_leader_without_loss_or_repetition(far) -> None:
    nodes, leader, other = far
    known, numbers = leader.cluster.known, (1, 3)
    async with mqtt_at(nodes[3]) as there, mqtt_at(other) as here:
        reader, writer = await client_of(here, "reader"), await client_of(there, "writer")
        assert await reader.subscribe("far/x", 1) == 1
        stream = stream_at(leader)
        place = stream.partition_of(b"far/x")
        saying = asyncio.create_task(say(writer, "far/x", range(300)))
        for home in (numbers[1], numbers[0], numbers[1]):
            await known.reassign(stream.record.id, place.id, (home,))
            await until(lambda home=home: nodes.homes("far", int(place.id)) == (home, (home,)))
        sent = await saying
        written = written_at(nodes[numbers[1]], int(place.id))
        assert list(dict.fromkeys(written)) == sent
        assert await reader.take(len(written)) == written
        # What was in doubt may have been written twice (C6); all that was written comes, once.


async def test_a_copy_becomes_a_replica_and_an_observer_again(far) -> None:
    nodes, leader, other = far
    known = leader.cluster.known
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        reader, writer = await client_of(here, "reader"), await client_of(there, "writer")
        assert await reader.subscribe("far/x", 1) == 1
        stream = stream_at(leader)
        place = stream.partition_of(b"far/x").id
        sent = await say(writer, "far/x", range(20))
        for turn, homes in enumerate(((1, 2), (1,), (1, 2), (2,), (1,))):
            await known.reassign(stream.record.id, PartitionId(place), homes)
            await until(lambda homes=homes: nodes.homes("far", int(place))[1] == homes)
            sent += await say(writer, "far/x", range(20 * turn + 20, 20 * turn + 40))
        assert await reader.take(len(sent)) == sent


async def test_a_kept_session_gets_what_was_written_while_nobody_observed(far, quick) -> None:
    del quick
    _nodes, leader, other = far
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        reader, writer = await client_of(here, "reader", **KEPT), await client_of(there, "writer")
        assert await reader.subscribe("far/#", 1) == 1
        sent = await say(writer, "far/x", range(10))
        assert await reader.take(10) == sent
        await reader.drop()
        await until(lambda: not has_files(other))
        sent = await say(writer, "far/x", range(10, 40))
        again = await client_of(here, "reader", **KEPT)
        assert again.connack.session_present
        assert await again.take(30) == sent


async def test_a_start_drops_what_observers_left(far) -> None:
    nodes, leader, other = far
    async with mqtt_at(other) as here:
        reader = await client_of(here, "reader")
        assert await reader.subscribe("far/#", 1) == 1
        assert await reader.publish("far/x", "1") == 0
        assert await reader.take(1) == ["1"]
    assert has_files(other)
    await nodes.stop(2)
    await nodes.start(2)
    await until(lambda: not has_files(nodes[2]))
    assert all(isinstance(p.stopped, NotLeader) for p in stream_at(nodes[2]).local)
    again = nodes[2].broker.observing
    assert again is not None
    await again.bring(["far/#"])
    again.check("far/#")
    number = stream_at(leader).partition_of(b"far/x").id
    found, copy = stream_at(leader).local[number], stream_at(nodes[2]).local[number]
    await until(lambda: copy.high_watermark == found.high_watermark)
    assert read_all(copy.log) == read_all(found.log)


async def test_new_readers_are_refused_where_the_copies_take_too_much(far) -> None:
    nodes, leader, other = far
    await make(nodes, "near", 1)
    other.cluster.host.observed.bytes_max = 1
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        writer, reader = await client_of(there, "writer"), await client_of(here, "reader")
        assert await reader.subscribe("far/x", 1) == 1
        sent = await say(writer, "far/x", range(5))
        assert await reader.take(5) == sent
        await reader.send(Subscribe(7, (Subscription("near/x", 1), Subscription("far/x", 1))))
        answer = await reader.receive(Suback)
        assert [int(reason) for reason in answer.reasons] == [0x83, 1]
        assert "cluster.cache_bytes" in (answer.properties.reason_string or "")
        # Who reads already gets what comes later all the same.
        await make(nodes, "late", 1)
        assert "observers-full" in str(other.troubles.standing())


async def test_a_leader_that_is_away_refuses_and_grants_when_it_is_back(far, monkeypatch) -> None:
    monkeypatch.setattr(observing, "WAIT_S", 0.3)
    nodes, _leader, other = far
    await nodes.until_whole("main")
    await nodes.stop(1)
    async with mqtt_at(other) as here:
        await until(lambda: len(here.broker.shards.owned) > 0)
        reader = await client_of(here, "reader")
        await reader.send(Subscribe(7, (Subscription("far/x", 1),)))
        answer = await reader.receive(Suback)
        assert [int(reason) for reason in answer.reasons] == [0x83]
        assert "try again" in (answer.properties.reason_string or "")
        await nodes.start(1)
        await nodes.until_whole("far")
        async with asyncio.timeout(30):
            while await reader.subscribe("far/x", 1) != 1:  # noqa: ASYNC110 - it asks again
                await asyncio.sleep(0.1)
        assert await reader.publish("far/x", "1") == 0
        assert await reader.take(1) == ["1"]


async def test_changes_of_streams_are_looked_at_together_and_in_pieces(far, monkeypatch) -> None:
    nodes, _leader, other = far
    filters, looks, pieces = 2000, 0, 0
    ticking = True

    def wants():
        nonlocal looks
        looks += 1
        return (given(number) for number in range(filters))

    def given(number: int) -> str:
        nonlocal ticking, pieces
        pieces += ticking
        ticking = False
        return f"many/{number}"

    async def tick() -> None:
        nonlocal ticking
        while True:
            ticking = True
            await asyncio.sleep(0)

    here = other.broker.observing
    assert here is not None
    await until(lambda: all(task.get_name() != "observing" for task in asyncio.all_tasks()))
    monkeypatch.setattr(observing, "CALM_S", 60.0)
    here.wants.append(wants)
    ticks = asyncio.create_task(tick())
    try:
        for number in range(5):
            await make(nodes, f"one{number}", 1)
        await until(lambda: pieces >= filters // observing.FILTERS_PER_PASS)
    finally:
        ticks.cancel()
    assert looks == 1


async def test_streams_that_come_soon_after_another_lose_nothing_to_a_wildcard(far) -> None:
    nodes, leader, other = far
    async with mqtt_at(leader) as there, mqtt_at(other) as here:
        reader, writer = await client_of(here, "reader"), await client_of(there, "writer")
        assert await reader.subscribe("+/x", 1) == 1
        sent = []
        for turn in range(3):
            await make(nodes, f"later{turn}", 1)
            sent += await say(writer, f"later{turn}/x", range(10 * turn, 10 * turn + 10))
        assert sorted(await reader.take(30), key=int) == sent


async def test_an_observer_that_is_made_a_replica_while_it_is_down_has_what_is_committed(
    far,
) -> None:
    nodes, leader, other = far
    stream = stream_at(leader)
    place = stream.partition_of(b"far/x").id
    async with mqtt_at(other) as here:
        reader = await client_of(here, "reader")
        assert await reader.subscribe("far/x", 1) == 1
        sent = await say(reader, "far/x", range(20))
        assert await reader.take(20) == sent
    await nodes.stop(2)
    known = leader.cluster.known
    async with mqtt_at(nodes[3]) as there:
        writer = await client_of(there, "writer")
        sent += await say(writer, "far/x", range(20, 30))
        await known.reassign(stream.record.id, place, (3,))  # another epoch
        await until(lambda: nodes.homes("far", int(place)) == (3, (3,)))
        sent += await say(writer, "far/x", range(30, 40))
        await known.reassign(stream.record.id, place, (2,))
        await nodes.start(2)
        await until(lambda: nodes.homes("far", int(place)) == (2, (2,)))
        sent += await say(writer, "far/x", range(40, 50))
    assert written_at(nodes[2], int(place)) == sent


async def test_a_leftover_that_cannot_be_dropped_keeps_no_other(far, monkeypatch) -> None:
    _nodes, _leader, other = far
    host, dropped = other.cluster.host, []
    keys = [PartitionKey("gone", PartitionId(number)) for number in range(3)]
    for key in keys:
        await host.observed.note(key)

    async def drop(key: PartitionKey) -> None:
        dropped.append(key)
        if key == keys[0]:
            raise StorageError("this one stays")

    monkeypatch.setattr(host, "drop_leftover", drop)
    host.observed.begin()
    await until(lambda: len(dropped) == len(keys))
    assert dropped == keys
    await until(lambda: other.troubles.count(LEFTOVERS) == 1)


async def test_what_is_observed_is_no_replica_in_the_numbers(far) -> None:
    nodes, _leader, other = far
    here = other.broker.observing
    assert here is not None
    watch = other.cluster.watch
    await watch.look()
    before = watch.numbers.replicas
    await here.bring(["far/#"])
    await nodes.stop(1)
    stream = stream_at(other)
    await watch.look()
    assert len(other.cluster.host.observed.keys) == PARTITIONS
    assert all(stream.key(p.id) in other.cluster.host.drivers for p in stream.partitions)
    assert watch.numbers.replicas == before
    row = other.cluster.known.row
    await until(lambda: all(row(stream.key(p.id))[0].leader == NOBODY for p in stream.partitions))
    async with asyncio.timeout(30):
        while True:  # other partitions may be without a leader for a moment
            await watch.look()
            if not watch.numbers.offline:
                break
            await asyncio.sleep(0.1)
