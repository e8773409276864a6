"""Exchanges, queues and bindings whatever the store answers: memory is what the rows say, and a
crash at any time comes to the same rules and the same messages (I4, I9)."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from onelog.base.errors import Conflict, NotFound, Timeout, Unavailable
from onelog.broker import LOCAL, Message
from onelog.metadata import projection
from onelog.metadata.projection import Projection
from onelog.metadata.store import MetadataStore
from onelog.queues.addresses import message_topic
from onelog.queues.definitions import ROOT, binding_key, encode_row, key_of, parse_key
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.ready import unpack
from onelog.queues.settings import QueueRecord
from onelog.queues.vhosts import VirtualHost
from tests.support.amqp import Node, serving
from tests.support.metadata import Fault, FaultyStore
from tests.support.turns import passes_until

QUEUES = ("a", "b")
KEYS = ("k", "l")
Contents = dict[str, set[bytes]]


class Crashing(FaultyStore):
    """A store before and after whose every mutation the data directory is copied, as a crash
    leaves it."""

    def __init__(self, store: MetadataStore, live: Path, copies: Path) -> None:
        super().__init__(store)
        self._live = live
        self._copies = copies
        self.count = 0

    def copy(self) -> Path:
        self.count += 1
        return Path(shutil.copytree(self._live, self._copies / str(self.count)))

    async def _mutate(self, mutate: Callable[[], Any]) -> Any:
        self.copy()
        try:
            return await super()._mutate(mutate)
        finally:
            self.copy()


def binding(queue: str, key: str) -> Binding:
    return Binding(source="x", destination=Destination("queue", queue), routing_key=key)


async def truth(node: Node) -> dict[str, int]:
    """The rows, each with the revision that made it."""
    entries = (await node.broker.store.range(ROOT)).entries
    return {entry.key: entry.create_revision for entry in entries}


class World:
    """One node, another writer beside it, and what is known of its messages."""

    def __init__(self, node: Node, store: Crashing, there: Projection[bytes]) -> None:
        self.node = node
        self.store = store
        self.there = there
        found = node.hub.vhosts.find("/")
        assert found is not None
        self.vhost: VirtualHost = found
        self.sent = 0

    async def publish(self, key: str) -> bytes:
        self.sent += 1
        value = b"%d" % self.sent
        topic = message_topic("/", "x", key)
        await self.node.broker.publish(Message(topic, value), principal=LOCAL)
        return value

    async def do(self, command: str, queue: str, key: str) -> None:
        vhost = self.vhost
        match command:
            case "declare":
                record = QueueRecord(name=queue, durable=True)
                await vhost.declare_queue(record, None, passive=False)
            case "delete":
                if queue in vhost.queues:
                    await vhost.delete_queue(vhost.queues[queue])
            case "bind":
                if queue in vhost.queues:
                    await vhost.bind(binding(queue, key))
            case "unbind":
                await vhost.unbind(binding(queue, key))
            case "exchange":
                await vhost.declare_exchange(ExchangeRecord(name="x", type="direct", durable=True),
                                             passive=False)  # fmt: skip
            case "no exchange":
                await vhost.delete_exchange("x", if_unused=False)

    async def do_there(self, command: str, queue: str, key: str) -> None:
        """What the other writer does, if the rows that it sees allow it."""
        row, bound = key_of("/", "queues", queue), binding(queue, key)
        known = self.there.get(row)
        if command == "delete" and known is not None:
            await self.there.delete(row)
        elif command == "declare" and known is None:
            record = QueueRecord(name=queue, durable=True)
            await self.there.put(row, encode_row(record))
        elif command == "unbind" and self.there.get(binding_key("/", bound)) is not None:
            await self.there.delete(binding_key("/", bound))

    async def settle(self) -> None:
        """Let what is late come, and wait until all of it is applied."""
        self.store.faults.clear()
        await self.store.deliver()
        mark = key_of("/", "exchanges", "mark")
        record = ExchangeRecord(name="mark", type="fanout", durable=True)
        await self.vhost.declare_exchange(record, passive=False)
        assert self.vhost.rows.has(mark)
        await self.vhost.delete_exchange("mark", if_unused=False)
        hub = self.node.hub.queues
        await passes_until(lambda: not hub._changes and not len(hub._tasks))
        await passes_until(lambda: self.there.revision >= hub.topology._rows.revision)

    def contents(self) -> Contents:
        return contents(self.node)


def contents(node: Node) -> Contents:
    """The messages that wait in each queue."""
    vhost = node.hub.vhosts.find("/")
    assert vhost is not None
    found: Contents = {}
    for queue in vhost.queues.values():
        places = list(queue.ready.places())
        assert len(places) == len(set(places)) == queue.cursor.count, "each message once"
        rows = [vhost.hub.read(number, [offset]) for number, offset in map(unpack, places)]
        found[queue.name] = {record.value or b"" for (record,) in rows}
    return found


def check_memory(node: Node, rows: dict[str, int]) -> None:
    """What counts is what the rows say: a binding, while both its ends are there."""
    vhost = node.hub.vhosts.find("/")
    assert vhost is not None
    of_kind: dict[str, set[str]] = {"queues": set(), "exchanges": set(), "bindings": set()}
    for key in rows:
        of_kind[parse_key(key)[1]].add(key)
    assert {key_of("/", "queues", name) for name in vhost.queues} == of_kind["queues"]
    has_exchange = vhost.router.find("x") is not None
    assert has_exchange == (key_of("/", "exchanges", "x") in of_kind["exchanges"])
    counts = {binding_key("/", row) for row in vhost.router.bindings()}
    expected = {
        key
        for queue in vhost.queues
        for name in KEYS
        if has_exchange and (key := binding_key("/", binding(queue, name))) in of_kind["bindings"]
    }
    assert counts == expected


async def in_world(path: Path, work: Callable[[World], Awaitable[None]]) -> None:
    live = path / "live"
    async with serving(live) as node:
        rows = node.hub.queues.topology._rows
        store = Crashing(rows._store, live, path)
        rows._store = store
        real = node.broker.store
        there = Projection(real, ROOT, lambda entry: entry.value, node.broker.troubles)
        await there.open()
        with patch.object(projection, "ASK_AGAIN_S", (0.01, 0.01)):
            await work(World(node, store, there))
        await there.close()


COMMANDS = ("declare", "delete", "bind", "bind", "unbind", "exchange", "no exchange")
HERE = (NotFound, Conflict, Unavailable, Timeout)


@pytest.mark.parametrize("seed", range(4))
async def test_memory_is_what_the_rows_say_and_a_crash_finds_the_same_messages(tmp_path, seed):
    chance = random.Random(seed)
    crashes: list[tuple[Path, dict[str, int], Contents]] = []

    async def command(world: World) -> None:
        names = chance.choice(COMMANDS), chance.choice(QUEUES), chance.choice(KEYS)
        world.store.faults.extend(chance.choices(list(Fault), (6, 1, 1, 1, 1), k=2))
        await world.do(*names)

    async def step(world: World) -> None:
        work = [command(world) for _ in range(chance.randint(1, 3))]
        work += [world.publish(chance.choice(KEYS)) for _ in range(2)]  # type: ignore[misc]
        if chance.random() < 0.3:
            what = chance.choice(("delete", "declare", "unbind"))
            work.append(world.do_there(what, chance.choice(QUEUES), chance.choice(KEYS)))
        chance.shuffle(work)
        for answer in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, HERE):
                raise answer

    async def work(world: World) -> None:
        for name in QUEUES:
            await world.do("declare", name, "")
        await world.do("exchange", "", "")
        await world.do("bind", "a", "k")
        for _ in range(12):
            await step(world)
            await world.settle()
            rows, before = await truth(world.node), world.contents()
            check_memory(world.node, rows)
            await check_routing(world, before)
            crashes.append((world.store.copy(), rows, world.contents()))

    async def check_routing(world: World, before: Contents) -> None:
        for key in KEYS:
            expected = world.vhost.router.route("x", key, {})
            value = await world.publish(key)
            now = world.contents()
            assert {name for name in now if value in now[name]} == expected
            assert all(before[name] <= now[name] for name in now), "nothing was lost"

    await in_world(tmp_path, work)
    for copy, rows, expected in chance.sample(crashes, 5):
        async with serving(copy) as node:
            left = await truth(node)
            assert left.items() <= rows.items()
            assert {key for key in rows if "/bindings/" not in key} <= left.keys()
            check_memory(node, left)
            assert contents(node) == expected


CRASHES = [
    ("bind", "b", "k"),
    ("unbind", "a", "k"),
    ("no exchange", "", ""),
    ("delete", "a", ""),
    ("declare", "c", ""),
]


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.UNKNOWN_DONE, Fault.REFUSED])
@pytest.mark.parametrize("command", CRASHES, ids=[row[0] for row in CRASHES])
async def test_a_crash_at_any_step_of_a_command_loses_no_message_and_makes_none(
    tmp_path, command, fault
):
    """What was sent before it is where it belongs, and what was sent meanwhile at most there."""
    must: Contents = {}
    may: set[bytes] = set()
    revisions: dict[str, int] = {}

    async def work(world: World) -> None:
        for name in QUEUES:
            await world.do("declare", name, "")
        await world.do("exchange", "", "")
        await world.do("bind", "a", "k")
        await world.do("bind", "b", "l")
        for key in KEYS * 3:
            await world.publish(key)
        must.update(world.contents())
        assert {name: len(found) for name, found in must.items()} == {"a": 3, "b": 3}
        revisions.update(await truth(world.node))
        first = world.store.count
        world.store.faults.append(fault)
        doing = asyncio.gather(world.do(*command), return_exceptions=True)
        for key in KEYS * 2:
            may.add(await world.publish(key))
        await doing
        world.store.copy()
        assert world.store.count >= first + 3
        for number in range(1, first + 1):
            shutil.rmtree(tmp_path / str(number))

    await in_world(tmp_path, work)
    copies = [path for path in tmp_path.iterdir() if path.name != "live"]
    for copy in sorted(copies, key=lambda path: int(path.name)):
        async with serving(copy) as node:
            rows, found = await truth(node), contents(node)
            check_memory(node, rows)
            for name, values in found.items():
                key = key_of("/", "queues", name)
                needed = must[name] if rows[key] == revisions.get(key) else set()
                assert needed <= values <= needed | may
            assert {"b"} <= found.keys()
