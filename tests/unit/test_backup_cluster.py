"""Is a backup of several nodes one cut, or refused?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onelog.broker import EARLIEST, LOCAL, Message, StreamConfig
from onelog.log.config import Replication
from tests.support.backups import back_up, restore_into, until
from tests.support.brokers import FAST, history, running, spoken
from tests.support.cluster_nodes import SHARDS, Nodes, OneNode


@pytest.fixture
async def nodes(nodes: Nodes) -> Nodes:
    await nodes.start(1, 2, 3)
    await nodes.until_whole("main")
    return nodes


def leads_all(node: OneNode) -> bool:
    logs = [log for stream in node.broker.streams.streams() for log in stream.local]
    return all(log.refusal is None and log.is_settled for log in logs)


async def drain(node: OneNode, *others: int, draining: bool = True) -> None:
    for number in others:
        await node.cluster.registration.drain(number, draining=draining)


async def test_a_backup_is_made_where_one_node_leads_all_and_refused_elsewhere(
    nodes: Nodes, tmp_path: Path
) -> None:
    node, url = nodes[1], str(tmp_path / "store")
    await node.broker.streams.create(StreamConfig(name="orders", captures=("orders",)))
    for number in range(20):
        topic = f"a/{number % 4}"
        await nodes[1 + number % 3].broker.publish(Message(topic, b"%d" % number), principal=LOCAL)
    refused = await back_up(node.broker, url)
    assert refused.state == "failed"
    assert "does not lead" in refused.message
    assert "onelog cluster drain" in refused.message

    await drain(node, 2, 3)
    await until(lambda: leads_all(node))
    cursor = await node.broker.cursors.open_offset("c", ["a/#"], start=EARLIEST, principal=LOCAL)
    cursor.fetch(7)
    cursor.commit_read()
    await node.broker.cursors.save(cursor)
    done = await back_up(node.broker, url)
    assert done.state == "done", done.message
    assert done.left_out == ()
    expected = await history(node.broker, "a/#")
    await drain(node, 2, 3, draining=False)
    await node.broker.publish(Message("a/1", b"later"), principal=LOCAL)

    restore_into(tmp_path / "again", url)
    alone = msgspec.structs.replace(FAST, internal_partitions=SHARDS)
    async with running(tmp_path / "again", alone) as broker:
        found = await history(broker, "a/#")
        assert sorted(found) == sorted(expected)
        assert len(found) == 20
        cursor = await broker.cursors.open_offset("c", ["a/#"], start=EARLIEST, principal=LOCAL)
        assert len(spoken(cursor.fetch(100))) == 13
        await broker.publish(Message("a/1", b"new"), principal=LOCAL)


async def test_a_backup_is_refused_where_a_partition_has_no_copy(
    nodes: Nodes, tmp_path: Path
) -> None:
    await nodes[1].broker.streams.create(
        StreamConfig(name="far", captures=("far",), replication=Replication(factor=1)), [(2,)]
    )
    await nodes.until_whole("far")
    run = await back_up(nodes[1].broker, str(tmp_path / "store"))
    assert run.state == "failed"
    assert "no copy of 1 partitions, such as far/0" in run.message
