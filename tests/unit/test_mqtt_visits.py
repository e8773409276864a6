"""Visits leave nothing behind: neither objects nor memory, whatever the client did (I8)."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from onelog.protocols.mqtt.packets import Publish, Will
from tests.support.mqtt import Client, Node, connect, serving, until

VISITS = 60
BLOCKS_PER_VISIT_MAX = 1
"""Nothing at all would be below one; what is kept per message for its segment is a part of one."""

Visit = Callable[[Node, str], Awaitable[Client]]


async def subscribe(node: Node, name: str) -> Client:
    client = await connect(node.port, name, expiry_s=1)
    await client.subscribe(f"visits/{name}/#", 1)
    return client


async def share_and_replay(node: Node, name: str) -> Client:
    client = await connect(node.port, name, expiry_s=1)
    for text in ("$share/g/visits/#", "$replay/0/visits/+", f"$exclusive/visits/{name}"):
        await client.subscribe(text, 1)
    return client


async def leave_a_message_unanswered(node: Node, name: str) -> Client:
    client = await connect(node.port, name, expiry_s=1)
    await client.subscribe("visits/one", 2)
    await client.publish("visits/one", "x", 0)
    await client.message()
    await client.send(Publish(topic="visits/two", payload=b"x", qos=2, packet_id=9))
    await client.sync()
    return client


async def have_a_will(node: Node, name: str) -> Client:
    will = Will(topic="visits/will", payload=b"gone")
    return await connect(node.port, name, expiry_s=1, will=will)


def objects() -> Counter[str]:
    """What there is of ours."""
    gc.collect()
    kinds = (type(row) for row in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith("onelog."))


@pytest.mark.parametrize(
    "visit", [subscribe, share_and_replay, leave_a_message_unanswered, have_a_will]
)
async def test_visits_whose_sessions_expired_leave_nothing(tmp_path, visit: Visit):
    async with serving(tmp_path) as node:

        async def come_and_go(names: str) -> tuple[Counter[str], int]:
            for number in range(VISITS):
                client = await visit(node, f"{names}{number}")
                await client.drop()
            await until(lambda: not node.hub.connections and not node.broker.sessions.count())
            return objects(), sys.getallocatedblocks()

        await come_and_go("first")
        before, blocks_before = await come_and_go("second")
        after, blocks_after = await come_and_go("third")
        assert not {kind: count for kind, count in (after - before).items() if count > 2}
        assert blocks_after - blocks_before < VISITS * BLOCKS_PER_VISIT_MAX
        assert not node.broker.cursors.names() or node.broker.cursors.names() == ["~retained"]
        assert not node.broker.sessions._timers
