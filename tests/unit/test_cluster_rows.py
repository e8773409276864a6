"""Is a row of a partition changed only as its rules allow, and do its compares guard it?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import Conflict, InvalidRequest
from onelog.base.ids import PartitionId
from onelog.cluster.controller import ClusterView, Wish, change_of, plan, reassign, recover
from onelog.cluster.known import KnownCluster
from onelog.cluster.node_rows import ClusterMember
from onelog.cluster.placement import Loads
from onelog.cluster.rows import (
    NOBODY,
    NodeFacts,
    PartitionChange,
    ReplicaSet,
    decode_row,
    encode_row,
    new_row,
    partition_of,
    row_key,
    seen_together,
    with_leader,
    with_member,
    with_promise,
    without_lost,
    without_members,
)
from onelog.log.promises import Durability
from onelog.metadata.local import LocalStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

KEY = PartitionKey("s-1", PartitionId(3))
EPOCHS = {1: 11, 2: 12, 3: 13}


def row(**changes: object) -> ReplicaSet:
    made = new_row((1, 2, 3), EPOCHS, 2, Durability.FSYNC)
    return with_changes(made, **changes)


def with_changes(made: ReplicaSet, **changes: object) -> ReplicaSet:
    fields = {name: getattr(made, name) for name in made.__struct_fields__}
    return ReplicaSet(**{**fields, **changes})  # type: ignore[arg-type]


def nodes(**changes: NodeFacts) -> dict[int, NodeFacts]:
    """Three nodes; `n2=…` replaces one."""
    made = {n: NodeFacts(node=n, node_epoch=epoch) for n, epoch in EPOCHS.items()}
    made.update({facts.node: facts for facts in changes.values()})
    return made


def gone(node: int) -> NodeFacts:
    return NodeFacts(node=node)


def decided(made: ReplicaSet, known: dict[int, NodeFacts], *, is_calm: bool = False) -> ReplicaSet:
    """What the controller makes of a row."""
    view = ClusterView(controller=5, nodes=known, rows={KEY: (made, 40)}, is_calm=is_calm)
    changes = plan(view)
    return changes[0].row if changes else made


# -- steps


def test_a_new_row_is_led_by_its_first_living_replica_and_all_living_ones_are_in_sync():
    made = new_row((2, 1, 3), {1: 11, 3: 13}, 2, Durability.OS)
    assert (made.leader, made.leader_node_epoch, made.epoch) == (1, 11, 1)
    assert made.isr == {1: 11, 3: 13}
    assert new_row((2,), {}, 1, Durability.OS).leader == NOBODY


def test_a_row_survives_its_encoding():
    made = row(elr={4: 9}, adding=(4,), removing=(2,), recover=7)
    assert decode_row(encode_row(made)) == made
    assert partition_of(row_key(KEY)) == KEY


def test_a_replica_that_leaves_stays_eligible_only_if_nothing_can_be_answered_without_it():
    left = without_members(row(), [3])
    assert (left.isr, left.elr) == ({1: 11, 2: 12}, {})
    left = without_members(left, [2])
    assert (left.isr, left.elr) == ({1: 11}, {2: 12})
    left = without_members(left, [1])
    assert (left.isr, left.elr) == ({}, {1: 11, 2: 12})


def test_replicas_that_leave_together_are_all_eligible():
    """Until this revision each answer waited for all of them."""
    left = without_members(row(), [2, 3])
    assert (left.isr, left.elr) == ({1: 11}, {2: 12, 3: 13})


def test_a_replica_that_lost_records_leaves_the_elr_too():
    left = without_members(without_members(row(), [3]), [2])
    assert without_lost(left, [2]).elr == {}
    assert without_lost(left, [1]).elr == {2: 12}


def test_an_isr_that_is_large_enough_needs_no_elr():
    short = row(isr={1: 11}, elr={2: 12})
    assert with_member(short, 3, 13).elr == {}
    assert with_member(row(isr={1: 11}, elr={2: 12}, min_insync=3), 3, 13).elr == {2: 12}


def test_only_a_member_of_isr_or_elr_leads():
    with pytest.raises(AssertionError):
        with_leader(row(isr={1: 11}), 2, 12)
    led = with_leader(row(isr={}, elr={2: 12}), 2, 15)
    assert (led.leader, led.leader_node_epoch, led.epoch, led.isr) == (2, 15, 2, {2: 15})


# -- what a restart may have lost


@pytest.mark.parametrize(
    ("level", "facts", "lost"),
    [
        (
            Durability.FSYNC,
            NodeFacts(node=1, node_epoch=20, process_since=20, cache_since=20),
            False,
        ),
        (Durability.FSYNC, NodeFacts(node=1, node_epoch=20, disk_since=20), True),
        (Durability.OS, NodeFacts(node=1, node_epoch=20, process_since=20), False),
        (Durability.OS, NodeFacts(node=1, node_epoch=20, cache_since=20), True),
        (Durability.OS, NodeFacts(node=1, node_epoch=20, disk_since=20), True),
        (Durability.MEMORY, NodeFacts(node=1, node_epoch=20, process_since=20), True),
        (Durability.MEMORY, NodeFacts(node=1, node_epoch=20, process_since=11), False),
        (Durability.OS, NodeFacts(node=1, node_epoch=20, cache_since=11), False),
    ],
)
def test_a_node_that_comes_back_counts_as_its_level_allows(level, facts, lost):
    assert facts.has_lost(11, level) is lost


def test_a_node_whose_members_row_has_not_come_yet_is_not_there():
    """Both are written at one revision, and come by two watches."""
    before = NodeFacts(node=1, node_epoch=11, disk_since=3)
    assert seen_together(before, 20, 20) == NodeFacts(node=1, node_epoch=20, disk_since=3)
    assert seen_together(before, 21, 20).is_up, "it was drained since"
    stale = seen_together(before, 19, 20)
    assert not stale.is_up
    only = row(isr={1: 11}, min_insync=1, leader=1, leader_node_epoch=11)
    assert decided(only, nodes(n1=stale)).leader == NOBODY, "it may have come back empty"


async def test_what_is_known_of_a_node_waits_for_both_of_its_rows():
    """The registration of an empty disk is seen, and the member's row is still the old one."""
    found: dict[str, Any] = {
        "nodes/1": SimpleNamespace(revision=20, value=None),
        "members/1": SimpleNamespace(revision=11, value=ClusterMember(data_uuid="old")),
    }
    registration: Any = SimpleNamespace(
        nodes=SimpleNamespace(get=found.get),
        members=SimpleNamespace(
            get=found.get, rows=lambda: iter([("members/1", found["members/1"].value)])
        ),
        is_stopping=lambda _node: False,
    )
    store: Any = None
    known = KnownCluster(store, registration, Troubles(ManualClock()), factor=3)
    assert not known.facts()[1].is_up
    empty = ClusterMember(data_uuid="new", disk_since=12)
    found["members/1"] = SimpleNamespace(revision=20, value=empty)
    facts = known.facts()[1]
    assert (facts.node_epoch, facts.has_lost(11, Durability.FSYNC)) == (20, True)


def test_a_node_back_without_its_records_is_neither_in_sync_nor_eligible_nor_elected():
    offline = row(leader=NOBODY, leader_node_epoch=0, isr={}, elr={1: 11}, level=Durability.OS)
    lost = NodeFacts(node=1, node_epoch=20, cache_since=20)
    made = decided(offline, nodes(n1=lost, n2=gone(2)))
    assert (made.leader, made.isr, made.elr) == (NOBODY, {}, {})


# -- elections


def test_a_leader_that_is_gone_is_replaced_by_the_next_of_the_isr():
    made = decided(row(), nodes(n1=gone(1)))
    assert (made.leader, made.leader_node_epoch, made.epoch) == (2, 12, 2)
    assert (made.isr, made.elr) == ({2: 12, 3: 13}, {})


def test_a_follower_that_is_gone_changes_no_epoch():
    made = decided(row(), nodes(n3=gone(3)))
    assert (made.leader, made.epoch, made.isr) == (1, 1, {1: 11, 2: 12})


def test_the_last_of_the_isr_stays_eligible_and_the_partition_waits_for_it():
    made = decided(row(isr={1: 11}, elr={}), nodes(n1=gone(1)))
    assert (made.leader, made.isr, made.elr) == (NOBODY, {}, {1: 11})
    assert decided(made, nodes(n1=gone(1))) == made, "the others are up, and lack records"
    back = decided(made, nodes(n1=NodeFacts(node=1, node_epoch=30, process_since=30)))
    assert (back.leader, back.leader_node_epoch, back.epoch, back.isr) == (1, 30, 2, {1: 30})


def test_a_leader_that_registered_anew_begins_another_epoch():
    """Its process may be another one, which lost records that others copied."""
    made = decided(row(), nodes(n1=NodeFacts(node=1, node_epoch=21)))
    assert (made.leader, made.leader_node_epoch, made.epoch) == (1, 21, 2)


def test_an_election_compares_the_registration_of_whom_it_elects():
    view = ClusterView(controller=5, nodes=nodes(n1=gone(1)), rows={})
    change = change_of(KEY, row(), 40, view)
    assert change is not None
    assert (change.expected, change.controller, change.nodes) == (40, 5, ((2, 12),))


def test_a_draining_leader_hands_over_and_a_draining_replica_is_not_elected():
    draining = NodeFacts(node=1, node_epoch=11, draining=True)
    assert decided(row(), nodes(n1=draining)).leader == 2
    both = nodes(n1=draining, n2=NodeFacts(node=2, node_epoch=12, draining=True))
    assert decided(row(), both).leader == 3
    alone = row(isr={1: 11}, elr={})
    assert decided(alone, nodes(n1=draining)) == alone, "nobody else has everything"


def test_a_leader_goes_back_to_its_preferred_node_only_when_all_is_calm():
    moved = decided(row(), nodes(n1=gone(1)))
    back = with_member(moved, 1, 21)
    known = nodes(n1=NodeFacts(node=1, node_epoch=21))
    assert decided(back, known) == back
    calm = decided(back, known, is_calm=True)
    assert (calm.leader, calm.epoch) == (1, 3)


def test_a_memory_stream_begins_anew_when_every_process_that_had_it_ended():
    known = {n: NodeFacts(node=n, node_epoch=20 + n, process_since=20 + n) for n in (1, 2, 3)}
    made = decided(row(level=Durability.MEMORY), known)
    assert (made.leader, made.epoch, made.recover, made.isr) == (1, 2, 2, {1: 21})
    some = {**known, 3: gone(3)}
    waits = decided(row(level=Durability.MEMORY, isr={1: 11, 3: 13}), some)
    assert (waits.leader, waits.recover, waits.elr) == (NOBODY, 0, {3: 13})


def test_a_lone_replica_goes_on_without_its_cache_and_waits_without_its_disk():
    alone = ReplicaSet(
        replicas=(1,), leader=1, leader_node_epoch=11, epoch=1, isr={1: 11}, level=Durability.OS
    )
    back = decided(alone, {1: NodeFacts(node=1, node_epoch=20, cache_since=20)})
    assert (back.leader, back.recover) == (1, 2)
    empty = decided(alone, {1: NodeFacts(node=1, node_epoch=20, disk_since=20)})
    assert (empty.leader, empty.recover) == (NOBODY, 0)


# -- reassignment


def test_a_reassignment_ends_when_those_that_come_are_in_sync():
    moving = reassign(row(), (2, 3, 4))
    assert moving.replicas == (2, 3, 4, 1)
    assert (moving.adding, moving.removing) == ((4,), (1,))
    known = nodes(n4=NodeFacts(node=4, node_epoch=14))
    assert decided(moving, known) == moving
    ended = decided(with_member(moving, 4, 14), known)
    assert (ended.replicas, ended.adding, ended.removing) == ((2, 3, 4), (), ())
    assert (ended.isr, ended.leader, ended.epoch) == ({2: 12, 3: 13, 4: 14}, 2, 2)


def test_a_removed_replica_ends_the_epoch_so_that_nothing_it_said_counts_later():
    moving = reassign(row(), (1, 2, 4))
    known = nodes(n4=NodeFacts(node=4, node_epoch=14))
    ended = decided(with_member(moving, 4, 14), known)
    assert (ended.replicas, ended.leader, ended.epoch) == ((1, 2, 4), 1, 2)


def test_a_replica_is_removed_only_when_enough_of_the_others_are_in_sync():
    moving = reassign(row(isr={1: 11, 2: 12}), (2, 3))
    assert decided(moving, nodes()) == moving
    assert decided(with_member(moving, 3, 13), nodes()).replicas == (2, 3)


def test_a_reassignment_can_be_changed_on_its_way():
    moving = reassign(reassign(row(), (2, 3, 4)), (1, 2, 3))
    assert (moving.replicas, moving.adding, moving.removing) == ((1, 2, 3, 4), (), (4,))


def test_an_operator_that_accepts_a_loss_names_the_epoch():
    made = recover(row(leader=NOBODY, isr={}, elr={1: 11}), NodeFacts(node=2, node_epoch=22))
    assert (made.leader, made.epoch, made.recover) == (2, 2, 2)
    assert (made.isr, made.elr) == ({2: 22}, {})


def test_an_isr_that_may_answer_after_a_change_of_promises_leaves_no_elr():
    made = with_promise(row(isr={1: 11}, elr={2: 12}), 1, Durability.OS)
    assert (made.min_insync, made.level, made.elr) == (1, Durability.OS, {})
    waits = with_promise(row(isr={1: 11}, elr={2: 12}), 3, Durability.FSYNC)
    assert (waits.min_insync, waits.elr) == (3, {2: 12})
    left = with_promise(row(isr={}, elr={1: 11, 2: 12}), 1, Durability.FSYNC)
    assert left.elr == {1: 11, 2: 12}


def test_a_level_is_never_raised_by_what_a_controller_heard_before():
    made = row(level=Durability.OS)
    wish = Wish(replicas=(1, 2, 3), min_insync=1, level=Durability.FSYNC, factor=3)
    view = ClusterView(controller=5, nodes=nodes(), rows={KEY: (made, 40)}, wishes={KEY: wish})
    (change,) = plan(view)
    assert (change.row.level, change.row.min_insync) == (Durability.OS, 1)


# -- placement


def test_replicas_lie_in_different_racks_while_there_are_some_and_loads_are_even():
    homes = {n: NodeFacts(node=n, node_epoch=1, rack=f"r{n % 2}") for n in range(4)}
    loads = Loads()
    placed = [loads.place(2, homes) for _ in range(12)]
    assert all(a % 2 != b % 2 for a, b in placed)
    for node in homes:
        assert sum(node in one for one in placed) == 6
        assert sum(one[0] == node for one in placed) == 3


def test_nothing_is_placed_on_nodes_that_drain_or_are_gone():
    homes = nodes(n1=gone(1), n2=NodeFacts(node=2, node_epoch=12, draining=True))
    assert Loads().place(1, homes) == (3,)
    with pytest.raises(InvalidRequest, match="2 replicas"):
        Loads().place(2, homes)


# -- the compares, in a real store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    made = await LocalStore.open(tmp_path / "metadata.db", ManualClock())
    yield made
    await made.close()


async def test_a_change_counts_only_while_row_nodes_and_controller_are_as_its_writer_knew_them(
    store: LocalStore,
) -> None:
    node = await store.put("nodes/2", b"{}")
    controller = await store.put("controller", b"{}")

    async def write(expected: int, node_epoch: int, term: int) -> bool:
        change = PartitionChange(
            partition=KEY, expected=expected, row=row(), nodes=((2, node_epoch),), controller=term
        )
        return (await store.txn(*change.transaction())).succeeded

    assert not await write(0, node, controller + 1), "another controller"
    assert not await write(0, node + 1, controller), "another process of the node"
    assert await write(0, node, controller)
    entry = await store.get(row_key(KEY))
    assert entry is not None
    assert decode_row(entry.value) == row()
    assert not await write(0, node, controller), "the row is there"
    assert await write(entry.mod_revision, node, controller)


async def test_nobody_is_elected_on_request_whose_records_are_gone_since_it_was_in_sync(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = await store.put("nodes/1", b"{}")
    await store.put(row_key(KEY), encode_row(row(leader=2, leader_node_epoch=12)))
    registration: Any = SimpleNamespace()
    known = KnownCluster(store, registration, Troubles(ManualClock()), factor=3)
    seen = NodeFacts(node=1, node_epoch=epoch, disk_since=EPOCHS[1] + 1)
    monkeypatch.setattr(known, "facts", lambda: {1: seen})
    with pytest.raises(Conflict, match="not in sync"):
        await known.elect(KEY.stream_id, KEY.partition)
    seen = NodeFacts(node=1, node_epoch=epoch, disk_since=EPOCHS[1])
    assert await known.elect(KEY.stream_id, KEY.partition)
    entry = await store.get(row_key(KEY))
    assert entry is not None
    assert decode_row(entry.value).leader == 1


async def test_an_accepted_loss_does_not_override_a_leader_that_is_there_meanwhile(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = await store.put("nodes/2", b"{}")
    await store.put(row_key(KEY), encode_row(row()))
    registration: Any = SimpleNamespace()
    known = KnownCluster(store, registration, Troubles(ManualClock()), factor=3)
    monkeypatch.setattr(known, "facts", lambda: {2: NodeFacts(node=2, node_epoch=epoch)})
    with pytest.raises(Conflict, match="node 1 leads"):
        await known.recover(KEY, 2)
    entry = await store.get(row_key(KEY))
    assert entry is not None
    assert decode_row(entry.value) == row()
    await store.put(row_key(KEY), encode_row(row(leader=NOBODY, isr={}, elr={1: 11})))
    assert await known.recover(KEY, 2)
    entry = await store.get(row_key(KEY))
    assert entry is not None
    assert (decode_row(entry.value).leader, decode_row(entry.value).isr) == (2, {2: epoch})
