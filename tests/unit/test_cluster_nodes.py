"""Do several whole brokers make one cluster: one log, one leader for each partition, one owner of
each name?"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import InvalidRequest, NotLeader, NotOwner, StorageFull, Unavailable
from onelog.base.ids import PartitionId
from onelog.broker import LOCAL, Durability, Retention, StreamConfig
from onelog.broker.audit import AUDIT_STREAM, AUDIT_TROUBLE, AuditTrail
from onelog.broker.audit_event import AuditEvent
from onelog.cluster import nodes as cluster_nodes
from onelog.cluster import replica
from onelog.cluster.rows import NOBODY, ReplicaSet
from onelog.kernel import BatchBuilder, scan_batches
from onelog.log import catalog
from onelog.record.record import Message
from tests.batches import read_all
from tests.support.cluster_nodes import SHARDS, Nodes, OneNode, eventually


class SlowService:
    """A service that takes shards only while it may."""

    name = "slow"

    def __init__(self, may_take: asyncio.Event) -> None:
        self._may_take = may_take

    async def take(self, shard: int) -> None:
        del shard
        await self._may_take.wait()

    async def drop(self, shard: int) -> None:
        """It has nothing."""


def config(name: str, partitions: int = 6) -> StreamConfig:
    return StreamConfig(
        name=name, captures=(name,), partitions=partitions, durability=Durability.OS
    )


async def say(nodes: Nodes, stream: str, partition: int, *values: bytes) -> None:
    """Publish at the leader; returns when it is answered."""
    broker = nodes.leader_of(stream, partition).broker
    messages = [Message(stream, value) for value in values]
    await broker.publish_many(messages, principal=LOCAL, partition=partition)


def bytes_of(node: OneNode, stream: str, partition: int) -> bytes:
    return read_all(node.broker.streams.get(stream).local[partition].log)


async def test_a_stream_of_any_node_lies_on_three_and_each_leads_a_part(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await nodes[2].broker.streams.create(config("orders"))
    await nodes.until_whole("orders")
    led = [nodes[n].leads("orders") for n in (1, 2, 3)]
    assert sorted(number for some in led for number in some) == list(range(6))
    assert [len(some) for some in led] == [2, 2, 2]
    for partition in range(6):
        await say(nodes, "orders", partition, b"a", b"b")
    for partition in range(6):
        held = [nodes[n].broker.streams.get("orders").partitions[partition] for n in (1, 2, 3)]
        await eventually(lambda held=held: all(row.high_watermark == 2 for row in held))
        assert len({bytes_of(nodes[n], "orders", partition) for n in (1, 2, 3)}) == 1


async def test_a_batch_of_a_client_is_taken_by_the_leader_only(nodes: Nodes) -> None:
    """Kafka's clients go to leaders; what others forward is in test_forwarding_nodes."""
    await nodes.start(1, 2, 3)
    await nodes[1].broker.streams.create(config("orders", 1))
    await nodes.until_whole("orders")
    leader = nodes.leader_of("orders", 0)
    other = next(nodes[n] for n in (1, 2, 3) if nodes[n] is not leader)
    stream = other.broker.streams.get("orders")
    builder = BatchBuilder(False)
    builder.add(None, None, b"x", (), 1)
    data = bytearray(builder.seal(0, 0))
    with pytest.raises(NotLeader):
        other.broker.publisher.publish_batch(
            stream, stream.partitions[0], data, scan_batches(data)[0], principal=LOCAL
        )
    await say(nodes, "orders", 0, b"y")
    assert leader.broker.streams.get("orders").partitions[0].end_offset == 1


async def test_an_orderly_stop_hands_over_and_a_return_copies_what_was_missed(
    nodes: Nodes,
) -> None:
    await nodes.start(1, 2, 3)
    await nodes[1].broker.streams.create(config("orders", 3))
    await nodes.until_whole("orders")
    for partition in range(3):
        await say(nodes, "orders", partition, b"before")
    gone = nodes.leader_of("orders", 0).number
    await nodes.stop(gone)
    left = list(nodes.running)
    await eventually(lambda: nodes[left[0]].leads("orders") | nodes[left[1]].leads("orders") == {
        0, 1, 2,
    })  # fmt: skip
    for partition in range(3):
        await say(nodes, "orders", partition, b"meanwhile")
    await nodes.start(gone)
    await nodes.until_whole("orders")
    for partition in range(3):
        held = [
            node.broker.streams.get("orders").partitions[partition]
            for node in nodes.running.values()
        ]
        await eventually(lambda held=held: all(row.high_watermark == 2 for row in held))
        assert len({bytes_of(node, "orders", partition) for node in nodes.running.values()}) == 1


async def test_a_controller_and_another_node_that_die_at_once_are_both_taken_out(
    nodes: Nodes,
) -> None:
    """Long before their leases end: the next controller judges what was reported before it was."""
    await nodes.start(1, 2, 3, 4, 5)
    controller = nodes[1].cluster.known.controller
    other = next(n for n in nodes.running if n != controller)
    left = sorted(nodes.running.keys() - {controller, other})
    known = nodes[left[0]].cluster.known
    for number in (controller, other):
        node = nodes[number].cluster
        node.registration.end()
        await node._plan.inner.close()
        assert node.links is not None
        await node.links.close()
    await eventually(lambda: [row.id for row in known.nodes()] == left)
    assert known.controller == left[0]


async def test_a_report_that_could_not_be_said_is_said_when_the_other_node_is_linked_again(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nodes.start(1, 2, 3)
    dead = nodes[1].cluster.known.controller
    one, two = (nodes[number].cluster for number in nodes.running if number != dead)

    async def unreachable(*_: object) -> None:
        raise Unavailable("there is no link")

    for node in (one, two):
        monkeypatch.setattr(node, "call", unreachable)
    victim = nodes[dead].cluster
    victim.registration.end()
    await victim._plan.inner.close()
    await victim.links.close()
    await eventually(lambda: one._suspicions.own() == two._suspicions.own() == [dead])
    assert dead in {row.id for row in one.known.nodes()}
    monkeypatch.undo()
    for connection in list(one.links.pairs[two.known.node].connections.values()):
        connection.end("cut")
    await eventually(lambda: dead not in {row.id for row in one.known.nodes()})


async def test_each_shard_has_one_owner_who_serves_its_names(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await eventually(
        lambda: (
            sorted(s for n in (1, 2, 3) for s in nodes[n].broker.shards.owned)
            == list(range(SHARDS))
        )
    )
    names = [b"client-%d" % n for n in range(40)]
    for name in names:
        owners = {nodes[n].broker.cluster.owner(name) for n in (1, 2, 3)}
        assert len(owners) == 1
        owner = owners.pop()
        for number in (1, 2, 3):
            if number == owner:
                nodes[number].broker.shards.check_led(name)
            else:
                with pytest.raises(NotOwner, match=f"node {owner}"):
                    nodes[number].broker.shards.check_led(name)


async def test_an_owner_that_is_cut_off_from_all_does_not_answer_for_its_shards(
    nodes: Nodes,
) -> None:
    await nodes.start(1, 2, 3)
    one = nodes[1]
    await eventually(lambda: bool(one.broker.shards.owned))
    name = next(n for n in (b"client-%d" % n for n in range(99)) if one.broker.shards.leads(n))
    assert one.broker.shards.holds(name)
    one.cluster.registration.kept_at = float("-inf")
    # All replicas follow it: nobody else was elected.
    await eventually(lambda: one.broker.shards.holds(name))
    assert one.cluster.links is not None
    await one.cluster.links.forget(2)
    await one.cluster.links.forget(3)
    assert one.broker.shards.leads(name)
    assert not one.broker.shards.holds(name)


async def test_an_owner_whose_replica_was_deposed_before_the_rows_say_so_does_not_answer(
    nodes: Nodes,
) -> None:
    """C5: a node that stood still is told by one row that it reads; all the others come later."""
    await nodes.start(1, 2, 3)
    one = nodes[1]
    await eventually(lambda: bool(one.broker.shards.owned))
    name = next(n for n in (b"client-%d" % n for n in range(99)) if one.broker.shards.leads(n))
    one.cluster.registration.kept_at = float("-inf")
    await eventually(lambda: one.broker.shards.holds(name))
    key = one.cluster.known.shards()[one.broker.shards.of(name)][0]
    known = one.cluster.known.row(key)
    assert known is not None
    row, revision = known
    other = msgspec.structs.replace(row, leader=2, epoch=row.epoch + 1)
    now = asyncio.get_running_loop().time()
    one.cluster.host.drivers[key].replica.row_read(other, revision + 1, now)
    assert one.broker.shards.leads(name)
    assert not one.broker.shards.holds(name)


async def test_what_a_session_of_another_node_needs_stays_also_while_its_shard_moves(
    nodes: Nodes,
) -> None:
    """C11: retention asks all owners, and waits while there is none."""
    await nodes.start(1, 2, 3)
    small = msgspec.structs.replace(
        config("orders", 1), segment_bytes=1 << 20, retention=Retention(bytes=0)
    )
    await nodes[1].broker.streams.create(small)
    await nodes.until_whole("orders")
    leader = nodes.leader_of("orders", 0)
    cluster = leader.cluster
    owns = next(n for n in (1, 2, 3) if nodes[n] is not leader)
    name = next(
        f"kept-{n}"
        for n in range(100)
        if cluster.known.owner_of(leader.broker.cursors.shard_of(f"kept-{n}")) == owns
    )
    session = await nodes[owns].broker.cursors.open_session(name, ["orders"], principal=LOCAL)
    partition = leader.broker.streams.get("orders").local[0]

    async def start_after_retention() -> int:
        assert cluster.node_pins is not None
        await cluster.node_pins.ask()
        await leader.broker.maintenance.retain_once()
        return int(partition.start_offset)

    for value in (b"a", b"b"):
        await say(nodes, "orders", 0, value)
        partition.log.roll()
    assert await start_after_retention() == 0
    await nodes[owns].broker.cursors.close_cursor(session)
    shard, may_take = leader.broker.cursors.shard_of(name), asyncio.Event()
    may_take.set()
    for number in {1, 2, 3} - {owns}:
        shards = nodes[number].broker.shards
        await shards.register(SlowService(may_take))
        shards._services.insert(0, shards._services.pop())  # the cursors take after it
    may_take.clear()
    await nodes.stop(owns)
    await eventually(lambda: owns not in {row.id for row in cluster.known.nodes()})
    await eventually(lambda: cluster.known.owner_of(shard) in nodes.running)
    assert await start_after_retention() == 0, "nobody knows what the shard needs"
    may_take.set()
    heir = nodes[cluster.known.owner_of(shard)]
    await eventually(lambda: shard in heir.broker.shards.owned)
    assert await start_after_retention() == 0
    await heir.broker.cursors.delete(name)
    async with asyncio.timeout(20):
        while await start_after_retention() < 2:  # noqa: ASYNC110 - pins are looked up now and then
            await asyncio.sleep(0.1)


async def test_a_deleted_stream_is_gone_on_every_node(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    stream = await nodes[1].broker.streams.create(config("orders", 3))
    await nodes.until_whole("orders")
    folder = f"segment/{stream.record.id}"
    assert all((nodes[n].folder / folder).is_dir() for n in (1, 2, 3))
    await nodes[3].broker.streams.delete("orders")
    await eventually(lambda: all(nodes[n].broker.streams.find("orders") is None for n in (1, 2, 3)))
    await eventually(lambda: not any((nodes[n].folder / folder).exists() for n in (1, 2, 3)))
    assert not [
        key for key in nodes[1].cluster.known.all_rows() if key.stream_id == stream.record.id
    ]

    async def is_ended() -> bool:
        return not (await nodes[1].store.range("deleting/")).entries

    async with asyncio.timeout(20):
        while not await is_ended():  # noqa: ASYNC110 - other nodes write it
            await asyncio.sleep(0.02)


async def test_a_stream_that_is_deleted_while_a_node_is_away_is_gone_when_it_returns(
    nodes: Nodes,
) -> None:
    await nodes.start(1, 2, 3)
    stream = await nodes[1].broker.streams.create(config("orders", 3))
    await nodes.until_whole("orders")
    store, away = nodes[1].store, nodes[3].folder / f"segment/{stream.record.id}"
    noted = f"deleting/{stream.record.id}"
    await nodes.stop(3)
    assert away.is_dir()
    await nodes[1].broker.streams.delete("orders")
    await eventually(lambda: nodes[2].broker.streams.find("orders") is None)
    assert await store.get(noted) is not None, "node 3 still has it"
    await nodes.start(3)
    assert nodes[3].broker.streams.find("orders") is None
    assert not away.exists()
    assert not nodes[3].broker.streams.orphans

    async def is_ended() -> bool:
        return not (await store.range("deleting/")).entries

    async with asyncio.timeout(20):
        while not await is_ended():  # noqa: ASYNC110 - other nodes write it
            await asyncio.sleep(0.02)
    assert not (await store.range(f"partitions/{stream.record.id}/")).entries


async def test_a_partition_moves_to_another_node_and_leaves_the_one_before(
    tmp_path: Path, nodes: Nodes
) -> None:
    del tmp_path
    nodes._factor, nodes._min_insync = 1, 1
    await nodes.start(1, 2)
    stream = await nodes[1].broker.streams.create(config("orders", 1))
    await nodes.until_whole("orders")
    await say(nodes, "orders", 0, b"a", b"b")
    home = nodes.leader_of("orders", 0).number
    other = 3 - home
    handle = nodes[other].broker.streams.get("orders").partitions[0]
    assert isinstance(handle.stopped, NotLeader)
    before = bytes_of(nodes[home], "orders", 0)
    await nodes[home].broker.cluster.reassign(stream.record.id, stream.partitions[0].id, (other,))
    await eventually(lambda: nodes[other].leads("orders") == {0})
    assert bytes_of(nodes[other], "orders", 0) == before
    await say(nodes, "orders", 0, b"c")
    await eventually(
        lambda: isinstance(
            nodes[home].broker.streams.get("orders").partitions[0].stopped, NotLeader
        )
    )


async def test_with_too_few_replicas_nothing_is_taken(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    await nodes[1].broker.streams.create(config("orders", 1))
    await nodes.until_whole("orders")
    others = [n for n in (1, 2, 3) if nodes[n] is not nodes.leader_of("orders", 0)]
    leader = nodes.leader_of("orders", 0)
    await nodes.stop(*others)
    partition = leader.broker.streams.get("orders").partitions[0]
    await eventually(lambda: partition.refusal is not None)
    assert "have to be" in str(partition.refusal)
    await nodes.start(others[0])
    await eventually(lambda: bool(nodes[others[0]].leads("orders") or leader.leads("orders")))


async def test_the_audit_trail_has_what_every_node_noted(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    trails = []
    for number in (1, 2, 3):
        broker = nodes[number].broker
        trail = await AuditTrail.open(broker, SystemClock(), age_ms=-1, size_bytes=-1)
        trails.append(trail)
        trail.take(AuditEvent(action="user.add", resource=f"by-{number}", door="test"))
    await eventually(lambda: [trail.written for trail in trails] == [1, 1, 1])
    end = nodes.leader_of(AUDIT_STREAM, 0).broker.streams.get(AUDIT_STREAM).partitions[0].end_offset
    assert end == 3
    for trail in trails:
        await trail.close()


async def trail_whose_leader_is_elsewhere(nodes: Nodes) -> tuple[OneNode, AuditTrail]:
    """The trail of a node of three that does not lead it."""
    await nodes.start(1, 2, 3)
    trail = await AuditTrail.open(nodes[1].broker, SystemClock(), age_ms=-1, size_bytes=-1)
    leader = nodes.leader_of(AUDIT_STREAM, 0)
    other = next(node for node in nodes.running.values() if node is not leader)
    await trail.close()
    return other, await AuditTrail.open(other.broker, SystemClock(), age_ms=-1, size_bytes=-1)


async def test_an_election_is_no_trouble_of_the_audit_trail_and_a_second_failure_is(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, trail = await trail_whose_leader_is_elsewhere(nodes)
    told: list[bool] = []

    async def refuse(*_: object) -> None:
        told.append(bool(other.troubles.standing()))
        raise Unavailable("an election")

    real = other.cluster.append
    monkeypatch.setattr(other.cluster, "append", refuse)
    for _ in range(2):
        trail.take(AuditEvent(action="user.add", resource="a", door="test"))
        await trail.flush()
    assert told == [False, False]
    assert [row.kind for row in other.troubles.standing()] == [AUDIT_TROUBLE]
    monkeypatch.setattr(other.cluster, "append", real)
    await trail.flush()
    await eventually(lambda: trail.written == 2)
    assert not other.troubles.standing()
    await trail.close()


async def test_records_of_the_audit_trail_that_one_election_stops_are_no_trouble(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches were under way."""
    other, trail = await trail_whose_leader_is_elsewhere(nodes)
    elected = asyncio.Event()
    sent: list[object] = []

    async def refuse(*batch: object) -> None:
        sent.append(batch)
        await elected.wait()
        raise Unavailable("an election")

    real = other.cluster.append
    monkeypatch.setattr(other.cluster, "append", refuse)
    for number in range(3):
        trail.take(AuditEvent(action="user.add", resource="a", door="test"))
        await eventually(lambda number=number: len(sent) == number + 1)
    monkeypatch.setattr(other.cluster, "append", real)
    elected.set()
    await eventually(lambda: not trail._unwritten)
    assert not other.troubles.standing()
    await trail.flush()
    await eventually(lambda: trail.written == 3)
    await trail.close()


async def test_durability_is_not_raised_where_replicas_may_hold_less(nodes: Nodes) -> None:
    await nodes.start(1, 2, 3)
    made = config("orders", 1)
    await nodes[1].broker.streams.create(made)
    with pytest.raises(InvalidRequest, match="cannot be raised"):
        await nodes[1].broker.streams.alter(
            msgspec.structs.replace(made, durability=Durability.FSYNC)
        )


async def test_a_new_cluster_waits_for_as_many_nodes_as_a_record_needs(nodes: Nodes) -> None:
    starting = asyncio.create_task(nodes.start(1))
    await asyncio.sleep(0.5)
    assert not starting.done()
    await nodes.start(2)
    await starting
    await nodes.until_whole("main")


NO_ROOM = StorageFull("no room")
WATCHED_S = 1.5
"""So long leaders have to give way, and to be elected, once too often."""


def only_row(nodes: Nodes) -> ReplicaSet:
    """The row of the only partition, as the first node knows it."""
    key = nodes[1].broker.streams.get("orders").key(PartitionId(0))
    found = nodes[1].cluster.known.row(key)
    assert found is not None
    return found[0]


@pytest.fixture
async def full_nodes(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Three nodes with a stream. A disk that is full stays so until the test finds room, leaders
    give way soon, and preferred ones are elected soon."""
    monkeypatch.setattr(replica, "FULL_S", 0.1)
    monkeypatch.setattr(cluster_nodes, "CALM_S", 0.2)
    monkeypatch.setattr(catalog, "has_room", lambda _engines: False)
    await nodes.start(1, 2, 3)
    await nodes[1].broker.streams.create(config("orders", 1))
    await nodes.until_whole("orders")
    await eventually(lambda: only_row(nodes).leader == only_row(nodes).replicas[0])
    return nodes


async def test_a_node_whose_disk_is_full_lets_others_lead_until_it_has_room(
    full_nodes: Nodes,
) -> None:
    """A record that one disk has no room for is taken by another one, which leads on."""
    nodes = full_nodes
    full = nodes.leader_of("orders", 0)
    room = full.broker.streams.shared.room
    room.refused(NO_ROOM)
    await eventually(lambda: only_row(nodes).leader not in (NOBODY, full.number))
    await eventually(lambda: nodes.leader_of("orders", 0).leads("orders") == {0})
    second, epoch = nodes.leader_of("orders", 0), only_row(nodes).epoch
    await say(nodes, "orders", 0, b"a")
    await asyncio.sleep(WATCHED_S)
    row = only_row(nodes)
    assert (row.leader, row.epoch) == (second.number, epoch)
    assert full.number not in row.isr
    room.found()
    await eventually(lambda: full.number in only_row(nodes).isr)
    await nodes.until_whole("orders")
    assert bytes_of(full, "orders", 0) == bytes_of(second, "orders", 0) != b""


async def test_where_all_disks_are_full_leaders_stay(full_nodes: Nodes) -> None:
    """One gives way, and who leads then has too few in sync without it."""
    nodes = full_nodes
    first, epoch = only_row(nodes).leader, only_row(nodes).epoch
    for number in (1, 2, 3):
        nodes[number].broker.streams.shared.room.refused(NO_ROOM)
    await eventually(lambda: only_row(nodes).epoch == epoch + 1)
    await asyncio.sleep(WATCHED_S)
    row = only_row(nodes)
    assert row.epoch == epoch + 1
    assert first not in row.isr
    for number in (1, 2, 3):
        nodes[number].broker.streams.shared.room.found()
    await eventually(lambda: only_row(nodes).leader == first)
    await nodes.until_whole("orders")
    await say(nodes, "orders", 0, b"a")
