"""Does a node register once per process and lease, and does its epoch fence what came before?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import (
    ConfigError,
    Conflict,
    Fenced,
    NotFound,
    StorageError,
    Unavailable,
)
from onelog.cluster import registration
from onelog.cluster.identity import load_identity, new_identity, save_identity
from onelog.cluster.joining import check_store, join
from onelog.cluster.moving import move_metadata
from onelog.cluster.node_rows import (
    CLUSTER,
    ClusterMember,
    ClusterRow,
    RegisteredNode,
    decode_row,
    member_key,
    next_member,
    node_key,
)
from onelog.cluster.registration import NodeSettings, Registration
from onelog.cluster.rows import CONTROLLER
from onelog.cluster.seat import Seat
from onelog.metadata.local import LocalStore
from onelog.metadata.store import Entry, Put
from onelog.observe.troubles import Troubles
from tests.support.metadata import Fault, FaultyStore
from tests.support.mqtt import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    made = await LocalStore.open(tmp_path / "cluster.db", SystemClock())
    yield made
    await made.close()


class Node:
    """A node with a folder of its own."""

    def __init__(self, store: LocalStore, folder: Path, number: int = 1, ttl_s: float = 30.0):
        self.store = FaultyStore(store)
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.number, self.ttl_s = number, ttl_s
        self.troubles = Troubles(SystemClock())
        self.taken = False

    async def start(self) -> Registration:
        identity = load_identity(self.folder) or new_identity()
        save_identity(self.folder, identity)
        settings = NodeSettings(
            node=self.number,
            name="n",
            roles=("engine",),
            rack="r1",
            version="1",
            ttl_s=self.ttl_s,
            data_dir=self.folder,
        )
        made = Registration(self.store, settings, identity, self.troubles, self._taken)
        await made.open({"mqtt": "mqtt://127.0.0.1:1883"})
        return made

    def _taken(self) -> None:
        self.taken = True

    async def member(self) -> ClusterMember:
        entry = await self.store.get(member_key(self.number))
        assert entry is not None
        return decode_row(entry, ClusterMember)


class DeafStore(FaultyStore):
    """What is asked arrives, and no answer does while it is deaf."""

    is_deaf = False

    async def get(self, key: str) -> Entry | None:
        found = await super().get(key)
        if self.is_deaf:
            raise Unavailable("nothing is heard")
        return found

    async def keep_alive(self, lease: int) -> None:
        await super().keep_alive(lease)
        if self.is_deaf:
            raise Unavailable("nothing is heard")


async def kill(made: Registration) -> None:
    """As kill -9 does: nothing is revoked, nothing is marked."""
    made._closing = True
    for task in (made._task, made._seating):
        if task is not None:
            task.cancel()
    for rows in (made.nodes, made.members, made.controller):
        await rows.close()


async def test_the_epoch_is_the_revision_of_the_registration(
    store: LocalStore, tmp_path: Path
) -> None:
    node = Node(store, tmp_path / "a")
    made = await node.start()
    entry = await store.get(node_key(1))
    assert entry is not None
    assert made.epoch == entry.mod_revision > 0
    assert decode_row(entry, RegisteredNode).listeners == {"mqtt": "mqtt://127.0.0.1:1883"}
    assert (await node.member()).registrations == 1
    await made.close(is_clean=True)
    assert await store.get(node_key(1)) is None  # the lease is revoked
    assert (await node.member()).registrations == 1


async def test_a_restart_waits_for_no_old_lease_and_has_a_higher_epoch(
    store: LocalStore, tmp_path: Path
) -> None:
    node = Node(store, tmp_path / "a")
    first = await node.start()
    await kill(first)
    second = await node.start()
    assert second.epoch > first.epoch
    await second.close(is_clean=True)


async def test_a_node_that_hears_nothing_lets_its_lease_end_and_registers_anew_when_it_hears(
    store: LocalStore, tmp_path: Path
) -> None:
    node = Node(store, tmp_path / "a", ttl_s=0.5)
    deaf = node.store = DeafStore(store)
    made = await node.start()
    first = made.epoch
    deaf.is_deaf = True
    async with asyncio.timeout(20):
        while await store.get(node_key(1)) is not None:  # noqa: ASYNC110 - by the store's clock
            await asyncio.sleep(0.02)
    deaf.is_deaf = False
    await until(lambda: made.epoch > first)
    assert await store.get(node_key(1)) is not None
    await made.close(is_clean=True)


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_stop_is_clean_only_of_the_last_registration(
    store: LocalStore, tmp_path: Path, is_clean: bool
) -> None:
    node = Node(store, tmp_path / "a")
    await (await node.start()).close(is_clean=True)
    second = await node.start()
    assert (await node.member()).is_clean
    if is_clean:
        await second.close(is_clean=True)
    else:
        await kill(second)  # the file may still say that an older stop was clean
        known = load_identity(node.folder)
        assert known is not None
        save_identity(node.folder, msgspec.structs.replace(known, registrations=1, is_clean=True))
    third = await node.start()
    assert (await node.member()).is_clean is is_clean
    await third.close(is_clean=True)


def test_what_a_start_may_have_lost_is_told_by_the_first_epoch_that_counts() -> None:
    before = ClusterMember(
        data_uuid="d", boot_id="b1", registrations=3, disk_since=5, cache_since=7
    )

    def after(**changes: object) -> tuple[int, int]:
        now = msgspec.structs.replace(
            ClusterMember(data_uuid="d", boot_id="b1", is_clean=False), **changes
        )
        row = next_member(before, 40, now, is_same_process=False)
        return row.disk_since, row.cache_since

    assert after() == (5, 7)  # kill -9 alone loses nothing
    assert after(boot_id="b2") == (5, 41)  # the page cache went with the machine
    assert after(boot_id="b2", is_clean=True) == (5, 7)
    assert after(data_uuid="e") == (41, 41)  # another disk
    lives = next_member(
        before, 40, ClusterMember(data_uuid="d", boot_id="b2"), is_same_process=True
    )
    assert (lives.disk_since, lives.cache_since) == (5, 7)


async def test_a_lost_lease_costs_a_registration_and_nothing_else(
    store: LocalStore, tmp_path: Path
) -> None:
    node = Node(store, tmp_path / "a", ttl_s=0.6)
    made = await node.start()
    first = made.epoch
    await until(lambda: made.seat.revision > 0)
    await store.revoke(made._lease)
    await until(lambda: made.epoch > first)
    assert made.registered == 2
    await until(lambda: made.seat.revision > first)  # the seat is taken again
    assert not node.taken
    await made.close(is_clean=True)


async def test_a_node_whose_row_is_taken_away_was_fenced_and_registers_anew(
    store: LocalStore, tmp_path: Path
) -> None:
    node = Node(store, tmp_path / "a")
    made = await node.start()
    first = made.epoch
    await store.delete(node_key(1))  # as a controller does that suspects it
    await until(lambda: made.epoch > first)
    await made.close(is_clean=True)


async def test_a_second_process_with_the_same_data_ends_the_first(
    store: LocalStore, tmp_path: Path
) -> None:
    node = Node(store, tmp_path / "a")
    first = await node.start()
    second = await Node(store, tmp_path / "a").start()
    await until(lambda: node.taken)
    assert second.epoch > 0
    assert node.troubles.problem() is not None
    await kill(first)
    await second.close(is_clean=True)


async def test_a_number_that_a_node_with_other_data_has_is_refused(
    store: LocalStore, tmp_path: Path
) -> None:
    made = await Node(store, tmp_path / "a").start()
    with pytest.raises(ConfigError, match=r"node\.id = 1 is taken"):
        await Node(store, tmp_path / "b").start()
    await made.close(is_clean=True)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_LATE])
async def test_a_registration_of_unknown_outcome_is_read_back(
    store: LocalStore, tmp_path: Path, fault: Fault
) -> None:
    node = Node(store, tmp_path / "a")
    node.store.faults.extend([Fault.NONE, fault])  # the lease, then the rows
    made = await node.start()
    await node.store.deliver()
    entry = await store.get(node_key(1))
    assert entry is not None
    await until(lambda: made.epoch > 0)
    assert made.epoch == entry.mod_revision
    assert (await node.member()).registrations == 1
    await made.close(is_clean=True)


async def test_while_the_store_is_away_the_node_stays_and_says_so(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RETRY_S", 0.01)
    node = Node(store, tmp_path / "a")
    made = await node.start()
    node.store.faults.extend([Fault.REFUSED] * 5)
    await store.delete(node_key(1))
    await until(lambda: bool(node.troubles.standing()))
    assert node.troubles.problem() is None  # it goes on
    await until(lambda: made.epoch > 0 and not node.troubles.standing())
    await made.close(is_clean=True)


# ---- the seat ----


async def test_of_two_nodes_one_controls_and_the_other_takes_over(
    store: LocalStore, tmp_path: Path
) -> None:
    one = await Node(store, tmp_path / "a", 1).start()
    await until(lambda: one.seat.revision > 0)
    two = await Node(store, tmp_path / "b", 2).start()
    assert two.seat.revision == 0
    assert two.controller.get(CONTROLLER).value.node == 1
    await one.close(is_clean=True)
    await until(lambda: two.seat.revision > 0)
    await two.close(is_clean=True)


async def test_a_controller_that_was_replaced_without_noticing_changes_nothing(
    store: LocalStore,
) -> None:
    old, new = Seat(store, 1), Seat(store, 2)
    lease = await store.grant(60)
    assert await old.take(10, lease)
    assert (await old.write((), (Put("a", b"1"),))).succeeded
    assert not await new.take(11, lease)
    assert await new.take(11, lease, over=old.revision)
    with pytest.raises(Fenced):
        await old.write((), (Put("a", b"2"),))
    assert old.revision == 0
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == b"1"


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
async def test_a_seat_of_unknown_outcome_is_read_back(store: LocalStore, fault: Fault) -> None:
    faulty = FaultyStore(store)
    seat = Seat(faulty, 1)
    lease = await store.grant(60)
    faulty.faults.append(fault)
    assert await seat.take(10, lease) is (fault is Fault.UNKNOWN_DONE)
    entry = await store.get(CONTROLLER)
    assert (entry is not None) is (fault is Fault.UNKNOWN_DONE)
    assert seat.revision == (0 if entry is None else entry.mod_revision)


# ---- commands ----


async def test_a_node_is_drained_and_removed_only_when_it_does_not_run(
    store: LocalStore, tmp_path: Path
) -> None:
    one = await Node(store, tmp_path / "a", 1).start()
    other = Node(store, tmp_path / "b", 2)
    two = await other.start()
    await until(lambda: one.nodes.get(node_key(2)) is not None)
    await one.drain(2, draining=True)
    assert (await other.member()).draining
    with pytest.raises(Conflict, match="runs"):
        await one.remove(2)
    with pytest.raises(NotFound):
        await one.drain(3, draining=True)
    await two.close(is_clean=True)
    await until(lambda: one.nodes.get(node_key(2)) is None)
    await one.remove(2)
    assert await store.get(member_key(2)) is None
    await one.close(is_clean=True)


# ---- whether data and metadata belong together ----


async def test_the_first_node_makes_the_cluster_and_another_one_joins_it(
    store: LocalStore, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    row, identity = await join(store, tmp_path / "a", 1)
    assert (row.owner, identity.cluster_id) == (1, row.id)
    assert await join(store, tmp_path / "a", 1) == (row, identity)
    other, joined = await join(store, tmp_path / "b", 2)
    assert (other, joined.cluster_id) == (row, row.id)


async def test_two_nodes_do_not_share_an_object_store(store: LocalStore, tmp_path: Path) -> None:
    del tmp_path
    await check_store(store, 1, has_store=True)
    alone = ClusterMember(data_uuid="a", has_store=True)
    await store.put(member_key(1), msgspec.json.encode(alone))
    await check_store(store, 1, has_store=True)
    with pytest.raises(ConfigError, match="node 1 has an object store"):
        await check_store(store, 2, has_store=False)
    await store.put(member_key(1), msgspec.json.encode(ClusterMember(data_uuid="a")))
    await check_store(store, 2, has_store=False)
    with pytest.raises(ConfigError, match="this node has an object store"):
        await check_store(store, 2, has_store=True)


async def test_an_emptied_store_is_not_taken_for_a_new_cluster(
    store: LocalStore, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    await join(store, folder, 1)
    await store.delete("", prefix=True)
    with pytest.raises(StorageError, match="emptied"):
        await join(store, folder, 1)


async def test_a_store_from_an_old_copy_is_refused(store: LocalStore, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    await join(store, folder, 1)
    node = Node(store, folder)
    await (await node.start()).close(is_clean=True)
    old = await store.get(member_key(1))
    assert old is not None
    await (await node.start()).close(is_clean=True)
    await store.put(member_key(1), old.value)
    with pytest.raises(StorageError, match="old copy"):
        await join(store, folder, 1)
    await store.delete(member_key(1))
    with pytest.raises(StorageError, match="old copy"):
        await join(store, folder, 1)


async def test_other_data_of_the_same_node_is_refused(store: LocalStore, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    await join(store, tmp_path / "a", 1)
    await (await Node(store, tmp_path / "a").start()).close(is_clean=True)
    with pytest.raises(StorageError, match="other data"):
        await join(store, tmp_path / "b", 1)


async def test_data_without_words_about_it_is_refused(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "a" / "segment" / "s" / "0").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"node\.json"):
        await join(store, tmp_path / "a", 1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metadata.db").write_bytes(b"x")
    with pytest.raises(ConfigError, match="cluster init"):
        await join(store, tmp_path / "b", 1)


async def test_metadata_is_moved_whole_and_a_move_that_broke_can_be_done_again(
    store: LocalStore, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    local = await LocalStore.open(folder / "metadata.db", SystemClock())
    await local.write([Put(f"streams/{number}", b"%d" % number) for number in range(300)])
    await local.put(member_key(7), b"from a backup of another cluster")
    await store.put("streams/0", b"0")  # an attempt that broke off here
    moved = await move_metadata(local, store, folder, 1)
    assert moved.rows == 300
    assert len((await store.range("streams/")).entries) == 300
    assert await store.get(member_key(7)) is None
    again = await move_metadata(local, store, folder, 1)
    assert again == moved
    await store.delete(CLUSTER)
    await store.put("streams/x", b"another")
    with pytest.raises(Exception, match="not this node's"):
        await move_metadata(local, store, folder, 1)
    await store.put(CLUSTER, msgspec.json.encode(ClusterRow(id="other", owner=7)))
    with pytest.raises(ConfigError, match="another cluster"):
        await move_metadata(local, store, folder, 1)
    await local.close()
    await asyncio.sleep(0)
