"""Visits leave nothing behind: neither objects nor memory, whatever the client did (I8)."""

from __future__ import annotations

import gc
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from onelog.protocols.mqtt.packets import Pubrec, Pubrel, Will
from tests.support.mqtt import Client, Node, connect, serving, until

VISITS = 20

Visit = Callable[[Node, str], Awaitable[Client]]


async def subscribe(node: Node, name: str) -> Client:
    client = await connect(node.port, name, expiry_s=1)
    await client.subscribe("visits/many/#", 1)
    return client


async def share_and_replay(node: Node, name: str) -> Client:
    client = await connect(node.port, name, expiry_s=1)
    for text in ("$share/g/visits/#", "$replay/0/visits/+", "$exclusive/visits/one"):
        await client.subscribe(text, 1)
    return client


async def leave_a_message_unanswered(node: Node, name: str) -> Client:
    client = await connect(node.port, name, expiry_s=1)
    await client.subscribe("visits/one", 2)
    await node.clients[0].publish("visits/one", "x", 2)
    message = await client.message()
    if name[-1] in "13579":
        await client.send(Pubrec(message.packet_id))
        await client.receive(Pubrel)
    return client


async def have_a_will(node: Node, name: str) -> Client:
    will = Will(topic="visits/will", payload=b"gone")
    return await connect(node.port, name, expiry_s=1, will=will)


def objects() -> Counter[str]:
    """What there is of ours."""
    kinds = (type(row) for row in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith("onelog."))


def mentions(name: str) -> list[str | bytes]:
    """Texts with a name in them, also in dicts of texts, of which the collector does not know."""
    found = gc.get_referents(*gc.get_objects())
    found += gc.get_referents(*(row for row in found if isinstance(row, dict | tuple)))
    texts = {id(row): row for row in found if isinstance(row, str | bytes)}
    return [
        row
        for row in texts.values()
        if row != name and (name if isinstance(row, str) else name.encode()) in row
    ]


def is_over(node: Node) -> bool:
    """Whether only the resident is left, and nothing is under way."""
    sessions, wills = node.broker.sessions, node.hub.wills
    left = len(node.hub.connections), sessions.count()
    return left == (1, 1) and not sessions._turns and not sessions._tasks and wills._idle.is_set()


@pytest.mark.parametrize(
    "visit", [subscribe, share_and_replay, leave_a_message_unanswered, have_a_will]
)
async def test_visits_whose_sessions_expired_leave_nothing(tmp_path, visit: Visit):
    async with serving(tmp_path) as node:
        resident = await node.client("resident")

        async def come_and_go(names: str) -> Counter[str]:
            for at in range(VISITS):
                client = await visit(node, f"{names}{at}")
                await client.drop()
            await until(lambda: is_over(node))
            for at in range(32):  # to each partition: it lets go of who waited for a message
                await resident.publish(f"others/{at}")
            gc.collect()
            return objects()

        first, second = secrets.token_hex(8), secrets.token_hex(8)
        before = await come_and_go(first)
        after = await come_and_go(second)
        more = (after - before).items()
        assert not {kind: count for kind, count in more if count >= VISITS // 2}
        assert not mentions(first)
        assert len(mentions(second)) < 3  # the last one may be held by who spoke last
