"""Do clients find a view at every node, also where only others know its records or its name?"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onelog.base.clock import ManualClock, SystemClock
from onelog.broker import LOCAL, Message
from onelog.broker.node_calls import NoOtherNodes
from onelog.config import Config
from onelog.config.model import Node
from onelog.metadata.local import LocalStore
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.hub import Hub
from onelog.security.authenticator import Authenticator, SecuritySettings
from tests.support.cluster_nodes import WAIT_S, Nodes
from tests.support.kafka_admin import Desk

E, K = ErrorCode, ApiKey
TOPIC = "plant/d1"
NAME, FILTER = "plant.d1", "plant._x2B_"


@pytest.fixture
async def desks(tmp_path: Path) -> AsyncIterator[dict[int, Desk]]:
    """Three nodes; each partition lies on one of them, and one holds a record of the topic."""
    store = await LocalStore.open(tmp_path / "cluster.db", SystemClock())
    nodes = Nodes(tmp_path, store, factor=1, min_insync=1)
    await nodes.start(1, 2, 3)
    async with contextlib.AsyncExitStack() as opened:
        made = {}
        for number, node in nodes.running.items():
            clock = ManualClock()
            authenticator = await Authenticator.open(node.broker.store, clock, SecuritySettings())
            opened.push_async_callback(authenticator.close)
            hub = Hub(node.broker, authenticator, Config(node=Node(id=number)), clock)
            await hub.open()
            opened.push_async_callback(hub.close)
            made[number] = Desk(hub, clock)
        await made[holder(made)].broker.publish(Message(TOPIC, b"1"), principal=LOCAL)
        yield made
    for number in [*nodes.running]:
        await nodes.stop(number)
    await store.close()


def holder(desks: dict[int, Desk]) -> int:
    """The node that has the topic's partition."""
    found = []
    for number, desk in desks.items():
        stream = desk.broker.streams.home(TOPIC)
        if stream.partition_of(TOPIC.encode()).stopped is None:
            found.append(number)
    (number,) = found
    return number


def others(desks: dict[int, Desk]) -> list[Desk]:
    here = holder(desks)
    return [desk for number, desk in desks.items() if number != here]


async def metadata(desk: Desk, name: str | None, topic_id: uuid.UUID | None = None) -> Any:
    told = await desk.ask(
        K.METADATA,
        topics=[{"name": name, "topic_id": topic_id}],
        allow_auto_topic_creation=False,
    )
    return told.topics[0]


async def test_a_topic_whose_records_lie_elsewhere_is_known_at_every_node(desks) -> None:
    leader = holder(desks)
    for desk in desks.values():
        row = await metadata(desk, NAME)
        assert row.error_code is E.none
        assert [part.leader_id for part in row.partitions] == [leader]
        assert (await metadata(desk, "plant.none")).error_code is E.unknown_topic_or_partition


async def group_of(desk: Desk) -> str:
    """The name of a group that a node owns, as soon as its shards are elected."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for number in range(100):
                if desk.broker.cluster.owner(b"g%d" % number) == desk.hub.node_id:
                    return f"g{number}"
            await asyncio.sleep(0.02)


async def test_offsets_of_a_topic_that_lies_elsewhere_are_committed(desks) -> None:
    for desk in others(desks):
        group = await group_of(desk)
        told = await desk.ask(
            K.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": NAME, "partitions": [
                {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
            ]}],
        )  # fmt: skip
        assert told.topics[0].partitions[0].error_code is E.none


async def test_a_node_describes_and_refuses_to_make_a_topic_that_lies_elsewhere(desks) -> None:
    for desk in others(desks):
        assert (await desk.describe(NAME)).error_code is E.none
        assert (await desk.create(NAME)).error_code is E.topic_already_exists
        told = await desk.ask(
            K.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": NAME}], response_partition_limit=9
        )
        assert told.topics[0].error_code is E.none


@pytest.mark.parametrize("name", [NAME, FILTER])
async def test_the_id_of_a_view_that_one_node_gave_is_known_to_the_others(desks, name) -> None:
    first, *rest = [desks[holder(desks)], *others(desks)]
    wanted = (await metadata(first, name)).topic_id
    for desk in rest:
        assert desk.hub.elsewhere.lacks_id(wanted.bytes)
        assert await desk.hub.elsewhere.learn([wanted]) == set()
        assert not desk.hub.elsewhere.lacks_id(wanted.bytes)
        assert (await metadata(desk, None, wanted)).name == name


async def test_while_the_leader_does_not_answer_nobody_says_that_a_topic_is_unknown(
    desks, monkeypatch
) -> None:
    for desk in others(desks):
        monkeypatch.setattr(desk.broker, "calls", NoOtherNodes())
        assert (await metadata(desk, NAME)).error_code is E.leader_not_available


async def test_an_id_that_nobody_knows_stays_unknown(desks) -> None:
    wanted = uuid.uuid4()
    for desk in desks.values():
        assert (await metadata(desk, None, wanted)).error_code is E.unknown_topic_id
