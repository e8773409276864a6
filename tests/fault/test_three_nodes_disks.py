"""Do three real nodes keep what they answered when a disk fails, and when clocks jump?"""

from __future__ import annotations

import contextlib
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.cluster_load import LATE_S, WRITERS, ClusterLoad
from tests.support.cluster_workers import Worker, write
from tests.support.etcd import needs_etcd
from tests.support.faulty_nodes import WALL, Plan, full_disk, lose_page_cache
from tests.support.three_nodes import STOP_S, NodeProcess, ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault_long]

PARTITIONS = 2
FAULT_S = 6.0
ALONE_S = 4.0
"""How long a node that is back alone has to do something wrong."""
HOUR_S = 3600.0
WHOLE = Plan()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path / "nodes", is_faulty=True) as nodes:
        nodes.create("t", PARTITIONS)
        yield nodes


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[ThreeNodes]:
    """Nodes whose answers do not wait for the disk."""
    with ThreeNodes(tmp_path / "nodes", 'defaults.stream.durability="os"', is_faulty=True) as nodes:
        nodes.create("t", PARTITIONS)
        yield nodes


def follower(cluster: ThreeNodes) -> NodeProcess:
    """A node that does not lead partition 0."""
    leader = cluster.leader("t", 0)
    return next(node for node in cluster.nodes if node is not leader)


def in_sync(cluster: ThreeNodes) -> list[int]:
    """Who has everything of partition 0."""
    return list(cluster.rows("t")[0].isrs)


def test_the_disk_of_a_follower_may_be_slow(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = follower(cluster)
        node.suffer(Plan(slow_s={"segment.fsync": 0.1}))
        load.wait_progress()
        time.sleep(FAULT_S)
        load.wait_progress()
        assert node.hits("segment.fsync") > FAULT_S
        node.suffer(WHOLE)
        load.healed()
    load.prove()


def test_a_follower_whose_disk_is_full_is_left_out_until_there_is_room(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = follower(cluster)
        node.suffer(full_disk(copies_only=True))
        cluster.until(lambda: node.number not in in_sync(cluster), 20, "the follower counts")
        load.wait_progress()
        assert node.hits("segment.write") > 0
        node.suffer(WHOLE)
        cluster.until(lambda: node.number in in_sync(cluster), 30, "the follower stays out")
        load.healed()
    load.prove()


def test_a_leader_whose_disk_is_full_has_a_successor(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = cluster.leader("t", 0)
        node.suffer(full_disk())
        cluster.until(lambda: cluster.leader("t", 0) is not node, 30, "nobody else leads")
        load.wait_progress()
        assert node.hits("segment.write") > 0
        node.suffer(WHOLE)
        load.healed()
    load.prove()


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_replica_whose_sync_fails_copies_anew(
    cluster: ThreeNodes, tmp_path: Path, *, leads: bool
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = cluster.leader("t", 0) if leads else follower(cluster)
        node.suffer(Plan(fails={"segment.fsync": "EIO"}))
        cluster.until(lambda: node.hits("segment.fsync") > 0, 20, "nothing was synced")
        load.wait_progress()
        node.suffer(WHOLE)
        cluster.until(lambda: cluster.is_synced("t"), 30, "not all copies are in sync")
        load.healed()
    load.prove()


def test_a_node_with_a_damaged_segment_copies_anew(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = follower(cluster)
        node.kill()
        load.wait_progress()
        for log in sorted((node.folder / "data" / "segment").glob("t-*/*/*.log")):
            damage(log)
        node.restart()
        cluster.until(lambda: cluster.is_synced("t"), 30, "not all copies are in sync")
        load.healed()
    load.prove()


def test_a_node_whose_old_records_are_damaged_copies_anew(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    """It was stopped in good order: no torn tail is looked for."""
    kept = tmp_path / "damaged"
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = follower(cluster)
        node.terminate()
        kept.hardlink_to(log_of(node))  # its number is not given to another file
        damage(kept)
        node.restart()
        cluster.until(lambda: cluster.is_synced("t"), 60, "not all copies are in sync")
        assert not log_of(node).samefile(kept)
        load.healed()
    load.prove()


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_replica_that_is_damaged_while_it_runs_copies_anew_and_keeps_its_files(
    cluster: ThreeNodes, tmp_path: Path, *, leads: bool
) -> None:
    """A reader finds the damage; another node leads before the damaged one copies."""
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        load.wait_progress()
        node = cluster.leader("t", 0) if leads else follower(cluster)
        log = log_of(node)
        with log.open("r+b") as file:  # in place: the process has it mapped
            file.seek(8)
            file.write(b"\xff")  # the length of the first batch
        find_damage(node)
        cluster.until(lambda: len(kept(log)) == 1, 60, "no damaged file was set aside")
        cluster.until(lambda: cluster.is_synced("t"), 60, "not all copies are in sync")
        load.healed()
    load.prove()
    assert kept(log)[0].read_bytes()[8] == 0xFF


def find_damage(node: NodeProcess) -> None:
    """Read a node's own copy from its start on."""
    place = f"http://127.0.0.1:{node.ports['admin']}/api/v1/messages"
    with contextlib.suppress(urllib.error.HTTPError):  # it has found it
        urllib.request.urlopen(f"{place}?filter=t&start=earliest&limit=10", timeout=20).close()


def kept(log: Path) -> list[Path]:
    """The file of a log, as it was set aside."""
    return list(log.parent.parent.glob(f"{log.parent.name}.*.damaged/{log.name}"))


def log_of(node: NodeProcess) -> Path:
    """The file of partition 0."""
    (found,) = (node.folder / "data" / "segment").glob("t-*/0/*.log")
    return found


def damage(log: Path) -> None:
    """Change the last byte of a batch in the middle of what was written."""
    data = bytearray(log.read_bytes())
    size, at = len(data.rstrip(b"\0")), 0
    assert size > 0
    while at < size // 2:
        at += 12 + int.from_bytes(data[at + 8 : at + 12])
    data[at - 1] ^= 0x40
    log.write_bytes(data)


def test_a_node_whose_disk_was_replaced_gets_everything(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = cluster.leader("t", 0)
        node.kill()
        load.wait_progress()
        shutil.rmtree(node.folder / "data")
        node.restart("node.replaced=true")
        cluster.until(lambda: cluster.is_synced("t"), 30, "not all copies are in sync")
        load.healed()
    load.prove()


def test_wall_clocks_may_jump(cluster: ThreeNodes, tmp_path: Path) -> None:
    """Each node by an hour, ahead and back, while the others have the time."""
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        for node in cluster.nodes:
            for shift_s in (HOUR_S, -HOUR_S):
                node.suffer(Plan(wall_shift_s=shift_s))
                load.healed()
            assert node.hits(WALL) > 0
            node.suffer(WHOLE)
        load.healed()
    load.prove()


# -- bytes that were written and not synced, and a machine that stops


PLAIN: tuple[Worker, ...] = (partial(write, once=False), partial(write, once=True))
"""Without a reader, whom a loss would end before the checker sees it."""
SLOW_SYNC_S = 0.3


def lose_power(node: NodeProcess, *, is_told: bool) -> int:
    """Cut a killed node to what is on its disk, and have it say at its next start that its machine
    started anew, too. Returns how many bytes of the topic that lost."""
    lost = lose_page_cache(node.folder, "t")
    node.suffer(Plan(boot_id="another") if is_told else WHOLE)
    return lost


def lose_power_everywhere(cluster: ThreeNodes, *, is_told: bool) -> None:
    """On all nodes at one moment, at which each of them has bytes that no disk has."""
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        assert lose_power(node, is_told=is_told) > 0, f"node {node.number} lost nothing"
        node.start(node.same_place)
    for node in cluster.nodes:
        node.wait_ready()


def test_power_may_be_lost_on_all_nodes_at_once(cluster: ThreeNodes, tmp_path: Path) -> None:
    for node in cluster.nodes:
        node.suffer(Plan(is_armed=True))  # every sync is noted
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        for node in cluster.nodes:
            node.suffer(Plan(slow_s={"segment.fsync": SLOW_SYNC_S}))
        load.wait_progress(LATE_S)
        lose_power_everywhere(cluster, is_told=True)
        load.healed()
    load.prove()


def test_the_checker_sees_answers_that_no_disk_had(cached: ThreeNodes, tmp_path: Path) -> None:
    """The same loss, where answers do not wait for disks and no node hears of it."""
    for node in cached.nodes:
        node.suffer(Plan(is_armed=True))
    with ClusterLoad(cached, tmp_path, "t", PARTITIONS, PLAIN) as load:
        load.wait_progress()
        lose_power_everywhere(cached, is_told=False)
        load.healed()
    with pytest.raises(AssertionError, match=r"C1: node \d lacks|C1: node \d has"):
        load.prove()


def lose_the_last_leader(cluster: ThreeNodes, load: ClusterLoad, *, is_told: bool) -> None:
    """The followers die one after the other; the last one leaves the leader alone, with all of the
    records, and so it is the only replica in sync. Then the leader's power is gone, too. It comes
    back first."""
    leader = cluster.leader("t", 0)
    first, last = (node for node in cluster.nodes if node is not leader)
    first.kill()
    leader.suffer(Plan(slow_s={"segment.fsync": STOP_S}))  # nothing is synced any more
    load.wait_progress(LATE_S)
    last.kill()
    cluster.until(
        lambda: all(row.isrs == [leader.number] for row in cluster.rows("t").values()),
        LATE_S, "the leader is not alone",
    )  # fmt: skip
    leader.kill()
    assert lose_power(leader, is_told=is_told) > 0
    leader.start(leader.same_place)
    time.sleep(ALONE_S)
    last.start(last.same_place)
    leader.wait_ready()
    last.wait_ready()
    first.restart(first.same_place)
    load.healed()


def test_a_leader_that_lost_its_page_cache_does_not_lead_before_it_has_copied(
    cached: ThreeNodes, tmp_path: Path
) -> None:
    for node in cached.nodes:
        node.suffer(Plan(is_armed=True))
    with ClusterLoad(cached, tmp_path, "t", PARTITIONS, WRITERS) as load:
        lose_the_last_leader(cached, load, is_told=True)
    load.prove()


def test_the_checker_sees_a_leader_that_lost_its_page_cache_and_leads(
    cached: ThreeNodes, tmp_path: Path
) -> None:
    """The same, where the leader does not hear of its loss."""
    for node in cached.nodes:
        node.suffer(Plan(is_armed=True))
    with ClusterLoad(cached, tmp_path, "t", PARTITIONS, PLAIN) as load:
        lose_the_last_leader(cached, load, is_told=False)
    with pytest.raises(AssertionError, match=r"C1: node \d lacks|C1: node \d has"):
        load.prove()
