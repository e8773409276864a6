"""Do real partitions that the machines of replication drive hold the same bytes on every node?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import NotLeader, OnelogError, PartitionCorrupt, Timeout
from onelog.base.ids import Offset
from onelog.cluster.controller import ClusterView, plan, reassign
from onelog.cluster.frames import FeedBatches, FeedFrame
from onelog.cluster.membership import RowOutcome
from onelog.cluster.row_store import MetadataRows
from onelog.cluster.rows import NodeFacts, PartitionChange, ReplicaSet
from onelog.log.compaction import compact, scope_of
from onelog.log.config import Compaction
from onelog.log.partition import Durability
from onelog.log.progress import Role
from onelog.log.syncer import Syncer
from onelog.metadata.local import LocalStore
from tests.batches import read_all
from tests.logs import KEY, pairs, put, row
from tests.support.replicas import LAG_S, WAIT_S, ReplicaCluster, ReplicaNode, publish

TOMBSTONE_MS = 1000


@pytest.fixture
async def cluster(tmp_path: Path, syncer: Syncer) -> AsyncIterator[ReplicaCluster]:
    clock = ManualClock()
    store = await LocalStore.open(tmp_path / "metadata.db", clock)
    made = ReplicaCluster(tmp_path, store, clock, syncer)
    yield made
    await made.close()
    await store.close()


@pytest.mark.parametrize("level", [Durability.FSYNC, Durability.OS])
async def test_an_answer_means_that_every_replica_in_sync_has_the_same_bytes(
    cluster: ReplicaCluster, level: Durability
) -> None:
    cluster.level = level
    await cluster.begin()
    leader = await cluster.leader()
    await publish(leader, b"a", b"b", b"c")
    isr = [cluster.up[number].partition for number in leader.driver.replica.row.isr]
    assert len(isr) > 1
    for copy in isr:
        assert (copy.durable if level is Durability.FSYNC else copy.end_offset) >= 3
    await cluster.agree(3)
    roles = {node.partition.replica.role for node in cluster.up.values()}
    assert roles == {Role.LEADER, Role.FOLLOWER}


async def test_a_follower_refuses_appends(cluster: ReplicaCluster) -> None:
    await cluster.begin()
    await cluster.leader()
    with pytest.raises(NotLeader):
        put(cluster.up[2].partition, row(b"k", b"v"))


async def test_nothing_is_answered_until_a_silent_replica_has_left_the_isr(
    cluster: ReplicaCluster,
) -> None:
    await cluster.begin()
    leader = await cluster.leader()
    await publish(leader, b"a")
    cluster.cuts = [{1, 3}]
    put(leader.partition, row(b"k", b"b"))
    await asyncio.sleep(LAG_S / 4)
    assert leader.partition.high_watermark == 1
    await cluster.until(lambda: leader.partition.high_watermark == 2)
    assert set((await cluster.row())[0].isr) == {1, 2}


async def test_with_too_few_replicas_nothing_is_answered(cluster: ReplicaCluster) -> None:
    await cluster.begin()
    leader = await cluster.leader()
    cluster.cuts = [{1, 2}, {1, 3}]
    end = put(leader.partition, row(b"k", b"a")).end_offset
    await asyncio.sleep(2 * LAG_S)
    made, _revision = await cluster.row()
    assert (set(made.isr), set(made.elr)) == ({1}, {2, 3})
    assert leader.partition.high_watermark == 0
    assert leader.driver.replica.leader is not None
    assert not leader.driver.replica.leader.takes_records
    cluster.cuts = []
    for node in cluster.up.values():
        for other in cluster.up.keys() - {node.number}:
            node.link(other, is_up=False)
    await cluster.tell()
    await cluster.agree(end)


async def test_a_leader_that_dies_leaves_everything_to_the_next_one(
    cluster: ReplicaCluster,
) -> None:
    await cluster.begin()
    old = await cluster.leader()
    await publish(old, b"a", b"b")
    await old.kill()
    await cluster.control()
    leader = await cluster.leader()
    assert leader.number != 1
    assert leader.partition.leader_epoch == 2
    await publish(leader, b"c")
    back = ReplicaNode(cluster, 1)
    await back.start()
    await cluster.control()
    await cluster.agree(3)
    assert [value for _key, value in pairs(back.partition.log)] == [b"a", b"b", b"c"]
    await cluster.until(lambda: back.partition.epochs.rows() == [(1, 0), (2, 2)])


async def test_every_copy_knows_the_epoch_that_its_leader_leads_in(cluster: ReplicaCluster) -> None:
    """A consumer that reads from a copy names the epoch (KIP-320, KIP-392)."""

    def epochs() -> set[int]:
        return {int(node.partition.leader_epoch) for node in cluster.up.values()}

    await cluster.begin()
    old = await cluster.leader()
    await cluster.until(lambda: epochs() == {1})
    await publish(old, b"a")
    await old.kill()
    await cluster.control()
    await cluster.leader()
    await cluster.until(lambda: epochs() == {2})
    await cluster.agree(1)


async def test_what_only_a_deposed_leader_has_is_cut_and_its_publisher_gets_no_answer(
    cluster: ReplicaCluster,
) -> None:
    await cluster.begin()
    old = await cluster.leader()
    await publish(old, b"a")
    cluster.cuts = [{1, 2}, {1, 3}]
    lost = put(old.partition, row(b"k", b"lost"))
    answer = old.partition.wait_visible(Offset(lost.end_offset - 1))
    made, revision = await cluster.row()
    elected = PartitionChange(
        partition=KEY, expected=revision, row=with_next(made, cluster), controller=0
    )
    assert (await MetadataRows(cluster.store).write(elected))[0] is RowOutcome.DONE
    for number in (2, 3):
        node, (now_row, now_revision) = cluster.up[number], await cluster.row()
        node.driver.replica.row_seen(now_row, now_revision, cluster.now)
        node.driver.wake()
    leader = await cluster.leader()
    assert leader.number == 2
    await publish(leader, b"kept", b"too")
    cluster.cuts = []
    await cluster.tell()
    with pytest.raises(Timeout):
        async with asyncio.timeout(WAIT_S):
            await answer
    await cluster.agree(3)
    assert [value for _key, value in pairs(old.partition.log)] == [b"a", b"kept", b"too"]


def with_next(made: ReplicaSet, cluster: ReplicaCluster) -> ReplicaSet:
    """The row with node 2 as its leader, and without node 1."""
    facts = {n: NodeFacts(node=n, node_epoch=cluster.up[n].epoch) for n in (2, 3)}
    view = ClusterView(controller=0, nodes=facts, rows={KEY: (made, 1)})
    return plan(view)[0].row


async def test_a_node_with_an_empty_disk_copies_everything_on_the_bulk_lane(
    cluster: ReplicaCluster,
) -> None:
    await cluster.begin(nodes=3, factor=2)
    leader = await cluster.leader()
    await publish(leader, *[b"%d" % n for n in range(50)])
    before = dict(cluster.lanes)
    made, revision = await cluster.row()
    moved = PartitionChange(partition=KEY, expected=revision, row=reassign(made, (1, 3)))
    await MetadataRows(cluster.store).write(moved)
    await cluster.tell()
    third = cluster.up[3]
    await cluster.until(lambda: third.partition.end_offset == 50)
    assert cluster.lanes["BULK"] > before.get("BULK", 0)
    await publish(leader, b"live")
    await cluster.until(lambda: third.partition.high_watermark == 51)
    assert read_all(third.partition.log) == read_all(leader.partition.log)


async def test_a_copy_that_is_older_than_the_leaders_start_begins_anew(
    cluster: ReplicaCluster,
) -> None:
    await cluster.begin()
    leader = await cluster.leader()
    await publish(leader, b"a", b"b")
    gone = cluster.up[3]
    await gone.kill()
    await cluster.control()
    await publish(leader, b"c", b"d")
    leader.partition.log.roll()
    await leader.partition.trim(Offset(4))
    await publish(leader, b"e")
    back = ReplicaNode(cluster, 3)
    await back.start()
    await cluster.control()
    await cluster.agree(5)
    assert [value for _key, value in pairs(back.partition.log)] == [b"e"]
    await cluster.until(lambda: back.partition.start_offset == 4)


async def test_a_replica_that_was_away_longer_than_tombstones_stay_brings_no_deleted_key_back(
    cluster: ReplicaCluster,
) -> None:
    cluster.compacts = True
    await cluster.begin()
    leader = await cluster.leader()
    put(leader.partition, row(b"gone", b"1"), row(b"kept", b"1"))
    await cluster.agree(2)
    away = cluster.up[3]
    await away.kill()
    await cluster.control()
    put(leader.partition, row(b"gone", None))
    await cluster.until(lambda: leader.partition.high_watermark == 3)
    leader.partition.log.roll()
    for later_ms in (0, TOMBSTONE_MS):
        compact(
            leader.partition.log, scope_of(leader.partition),
            now_ms=cluster.clock.now_ms() + later_ms, config=Compaction(tombstone_ms=TOMBSTONE_MS),
            segment_bytes=1 << 20, pace=lambda: None,
        )  # fmt: skip
    await publish(leader, b"next")
    assert pairs(leader.partition.log) == [(b"kept", b"1"), (b"k", b"next")]
    back = ReplicaNode(cluster, 3)
    await back.start()
    await cluster.control()
    await cluster.until(lambda: back.partition.high_watermark == 4)
    assert pairs(back.partition.log) == pairs(leader.partition.log)


async def test_the_start_of_the_leader_becomes_that_of_the_others(cluster: ReplicaCluster) -> None:
    await cluster.begin()
    leader = await cluster.leader()
    await publish(leader, b"a", b"b")
    leader.partition.log.roll()
    await leader.partition.trim(Offset(2))
    await publish(leader, b"c")
    nodes = list(cluster.up.values())
    await cluster.until(lambda: all(node.partition.start_offset == 2 for node in nodes))


async def test_a_damaged_replica_leaves_the_isr_before_it_copies_anew(
    cluster: ReplicaCluster,
) -> None:
    await cluster.begin()
    leader = await cluster.leader()
    await publish(leader, b"a", b"b")
    sick = cluster.up[2]
    copied: list[bool] = []

    def look(frame: FeedFrame) -> None:
        if isinstance(frame, FeedBatches) and frame.after == 0:
            copied.append(2 in leader.driver.replica.row.isr)

    cluster.look = look
    sick.partition.stop(OnelogError("the disk is bad"))
    sick.driver.wake()
    await cluster.until(lambda: 2 not in leader.driver.replica.row.isr)
    await cluster.tell()  # as the watch would
    await publish(leader, b"c")
    await cluster.agree(3)
    assert copied[-1] is False
    await cluster.until(lambda: 2 in leader.driver.replica.row.isr)


@pytest.mark.parametrize(
    "at", [77, 8, 65], ids=["in its offset", "in its length", "in its records"]
)
async def test_a_leader_whose_old_batch_is_damaged_has_a_successor_and_copies_anew(
    cluster: ReplicaCluster, at: int
) -> None:
    """A copy that needs the batch finds it; else that copy would ask for it for ever."""
    await cluster.begin()
    leader = await cluster.leader()
    await publish(leader, *[b"%d" % n for n in range(20)])
    await cluster.agree(20)
    gone = next(node for node in cluster.up.values() if node is not leader)
    await gone.kill()
    await cluster.control()
    shutil.rmtree(gone.folder)
    (log,) = leader.folder.rglob("*.log")
    with log.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 0x01]))
    back = ReplicaNode(cluster, gone.number)
    await back.start()
    await cluster.control()
    await cluster.until(lambda: leader.driver.replica.row.leader != leader.number)
    await cluster.control()
    heir = await cluster.leader()
    assert heir is not leader
    await cluster.until(lambda: leader.partition.stopped is None)
    await cluster.agree(20)
    assert len(pairs(leader.partition.log)) == 20


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
async def test_damage_that_a_reader_finds_is_copied_anew_and_the_files_are_kept(
    cluster: ReplicaCluster, *, leads: bool
) -> None:
    """Nobody writes meanwhile: nothing but the reader calls the replica."""
    await cluster.begin()
    leader = await cluster.leader()
    await publish(leader, *[b"%d" % n for n in range(20)])
    await cluster.agree(20)
    sick = leader if leads else next(node for node in cluster.up.values() if node is not leader)
    (log,) = sick.folder.rglob("*.log")
    with log.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff")  # the length of the first batch
    broken = log.read_bytes()
    with pytest.raises(PartitionCorrupt):
        sick.partition.read(Offset(0), 1 << 20)
    await cluster.until(lambda: sick.driver.replica.row.leader != sick.number)
    await cluster.control()
    await cluster.until(lambda: sick.partition.stopped is None)
    heir = await cluster.leader()
    assert heir is not sick
    await cluster.agree(20)
    assert len(pairs(sick.partition.log)) == 20
    (kept,) = sick.folder.glob("*/*.damaged")
    assert (kept / log.name).read_bytes() == broken


@pytest.mark.parametrize("is_linked", [False, True], ids=["by the loop", "over real links"])
async def test_three_nodes_keep_every_answered_record_over_the_loss_of_each_of_them_in_turn(
    cluster: ReplicaCluster, is_linked: bool
) -> None:
    cluster.is_linked = is_linked
    await cluster.begin()
    answered: list[bytes] = []
    for turn in range(3):
        leader = await cluster.leader()
        values = [b"%d-%d" % (turn, n) + bytes(20_000) for n in range(30)]
        await publish(leader, *values)
        answered += values
        gone = await cluster.leader()
        await gone.kill()
        await cluster.control()
        heir = await cluster.leader()
        await publish(heir, b"heir of %d" % gone.number)
        answered.append(b"heir of %d" % gone.number)
        back = ReplicaNode(cluster, gone.number)
        await back.start()
        await cluster.control()
        await cluster.agree(len(answered))
        await cluster.until(lambda heir=heir: len(heir.driver.replica.row.isr) == 3)
        await cluster.tell()
    for node in cluster.up.values():
        assert [value for _key, value in pairs(node.partition.log)] == answered
