"""Are exchanges, queues and bindings kept and forgotten whole, however many there are? (I4, I9)"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from onelog.base.errors import NotFound, OutcomeUnknown, Unavailable
from onelog.metadata.projection import ASK_AGAIN_S, Projection
from onelog.metadata.store import Compare, Delete, Op, TxnResult
from onelog.protocols.amqp.management.hosts import HostNote, Hosts
from onelog.queues import vhosts
from onelog.queues.definitions import ROOT, binding_key, encode_row, key_of
from onelog.queues.errors import NotDeclared
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.hub import BACKGROUND
from onelog.queues.ready import unpack
from onelog.queues.settings import QueueRecord
from onelog.queues.vhosts import VirtualHost
from tests.conformance.amqp_raw import Exchange, Queue, Raw
from tests.support.amqp import Node, serving
from tests.support.metadata import Fault, FaultyStore
from tests.support.turns import passes_until

MANY = 300
"""More than two transactions of the metadata store take."""


def exchange(name: str, *, durable: bool = True) -> ExchangeRecord:
    return ExchangeRecord(name=name, type="topic", durable=durable)


def binding(source: str, key: str, *, to: str = "q", kind: Any = "queue") -> Binding:
    return Binding(source=source, destination=Destination(kind, to), routing_key=key)


async def declare(vhost: VirtualHost, queue: str = "q", *sources: str) -> None:
    await vhost.declare_queue(QueueRecord(name=queue, durable=True), None, passive=False)
    for source in sources:
        await vhost.declare_exchange(exchange(source), passive=False)


async def bind_many(vhost: VirtualHost, source: str, **where: Any) -> None:
    rows = (vhost.bind(binding(source, f"key.{number}", **where)) for number in range(MANY))
    await asyncio.gather(*rows)


async def keys(node: Node) -> list[str]:
    return [entry.key for entry in (await node.broker.store.range(ROOT)).entries]


def host(node: Node) -> VirtualHost:
    found = node.hub.vhosts.find("/")
    assert found is not None
    return found


# -- many of them


async def test_a_broker_starts_with_any_number_of_transient_exchanges(tmp_path):
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost)
        names = [f"t{number}" for number in range(MANY)]
        await asyncio.gather(
            *(
                vhost.declare_exchange(exchange(name, durable=False), passive=False)
                for name in names
            )
        )
        await asyncio.gather(*(vhost.bind(binding(name, "#")) for name in names))
    async with serving(tmp_path) as node:
        assert not [row for row in host(node).router.exchanges() if row.name.startswith("t")]
        assert [key for key in await keys(node) if "/queues/" not in key] == []


def delete_queue(raw: Raw) -> None:
    raw.channel().ask(Queue.Delete(queue="q"), Queue.DeleteOk)


def delete_exchange(raw: Raw) -> None:
    raw.channel().ask(Exchange.Delete(exchange="x"), Exchange.DeleteOk)


@pytest.mark.parametrize("delete", [delete_queue, delete_exchange])
async def test_what_has_many_bindings_is_deleted_and_stays_so(
    tmp_path, delete: Callable[[Raw], None]
):
    def work(port: int) -> None:
        with Raw(port) as raw:
            delete(raw.open())

    async with serving(tmp_path) as node:
        await declare(host(node), "q", "x")
        await bind_many(host(node), "x")
        async with asyncio.timeout(30):
            await asyncio.to_thread(work, node.port)
        assert not [key for key in await keys(node) if "/bindings/" in key]
    async with serving(tmp_path) as node:
        vhost = host(node)
        assert ("q" in vhost.queues) == (delete is delete_exchange)
        assert (vhost.router.find("x") is not None) == (delete is delete_queue)
        assert vhost.router.bindings() == []


async def test_an_exchange_that_many_exchanges_feed_is_deleted(tmp_path):
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x", "y")
        await bind_many(vhost, "x", to="y", kind="exchange")
        await vhost.delete_exchange("y", if_unused=False)
    async with serving(tmp_path) as node:
        assert host(node).router.find("y") is None
        assert host(node).router.bindings() == []


async def test_a_virtual_host_goes_with_any_number_of_rows(tmp_path):
    async with serving(tmp_path) as node:
        hosts = Hosts(node.hub)
        await hosts.make("v", HostNote())
        vhost = hosts.find("v")
        await declare(vhost, "q", "x")
        await bind_many(vhost, "x")
        await hosts.delete("v")
        assert await keys(node) == []
    async with serving(tmp_path) as node:
        assert node.hub.vhosts.find("v") is None


async def test_4000_bindings_are_read_back_quickly(tmp_path):
    """It took more than ten seconds of CPU when each one rebuilt all before it."""
    count = 4000
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x")
        rows = [binding("x", f"a.{number}.#") for number in range(count)]
        await asyncio.gather(*map(vhost.bind, rows))
    before = time.process_time()
    async with serving(tmp_path) as node:
        assert time.process_time() - before < 3
        assert len(host(node).router.bindings()) == count
        assert host(node).router.route("x", "a.7.b", {}) == {"q"}


# -- a crash in the middle: the store may have done a first part


async def crashed(node: Node, ops: Sequence[Op]) -> None:
    """Leave the rows as a crash does that lets only these through."""
    await node.broker.store.write(ops)


def doomed(rows: Sequence[str], *order: str) -> list[str]:
    return sorted(rows, key=lambda key: next(at for at, kind in enumerate(order) if kind in key))


@pytest.mark.parametrize("kind", ["queues", "exchanges"])
@pytest.mark.parametrize("done", [1, 2, MANY])
async def test_a_deletion_that_a_crash_cut_is_completed_at_the_next_start(tmp_path, kind, done):
    async with serving(tmp_path) as node:
        await declare(host(node), "q", "x")
        await bind_many(host(node), "x")
        rows = doomed(await keys(node), f"/{kind}/", "/bindings/", "/")
    async with serving(tmp_path) as node:
        await crashed(node, [Delete(key) for key in rows[:done]])
    async with serving(tmp_path) as node:
        left = await keys(node)
        assert host(node).router.bindings() == []
        assert not [key for key in left if "/bindings/" in key]
        if kind == "queues":
            assert not [name for name in node.broker.cursors.names() if name.startswith("amqp:")]


async def test_bindings_of_an_exchange_that_is_gone_do_not_come_back_with_its_name(tmp_path):
    async with serving(tmp_path) as node:
        await declare(host(node), "q", "x")
        await host(node).bind(binding("x", "old"))
        (row,) = [key for key in await keys(node) if "/exchanges/" in key]
    async with serving(tmp_path) as node:
        await crashed(node, [Delete(row)])
    async with serving(tmp_path) as node:
        await host(node).declare_exchange(exchange("x"), passive=False)
    async with serving(tmp_path) as node:
        assert host(node).router.bindings() == []


# -- a store that fails for a while


class Failing:
    """The real store; a test says whether it can write."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, compares: Sequence[Compare], ops: Sequence[Op]) -> TxnResult:
        fails = self.fails
        self.asked.set()
        await self.gate.wait()
        if fails:
            raise Unavailable("the disk is full")
        return await self._store.txn(compares, ops)


def break_store(node: Node) -> Failing:
    rows = node.hub.queues.topology._rows
    failing = Failing(rows._store)
    rows._store = failing  # type: ignore[assignment]
    return failing


def at_store(node: Node, *faults: Fault) -> FaultyStore:
    """What becomes of the next writes of rows."""
    rows = node.hub.queues.topology._rows
    faulty = FaultyStore(rows._store)
    faulty.faults.extend(faults)
    rows._store = faulty
    return faulty


async def test_a_bind_that_could_not_be_kept_is_no_binding(tmp_path):
    """Else the next try would be answered, and the binding gone after a restart."""
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x")
        store = break_store(node)
        store.fails = True
        with pytest.raises(Unavailable):
            await vhost.bind(binding("x", "a"))
        assert vhost.router.bindings() == []
        store.fails = False
        await vhost.bind(binding("x", "a"))
    async with serving(tmp_path) as node:
        assert host(node).router.bindings() == [binding("x", "a")]


async def test_an_exchange_is_found_when_it_is_kept_and_not_before(tmp_path):
    """A declaration that the store refuses was never seen by anybody (I9)."""
    async with serving(tmp_path) as node:
        vhost = host(node)
        store = break_store(node)
        store.fails = True
        store.gate.clear()
        first, second = (
            asyncio.create_task(vhost.declare_exchange(exchange("x"), passive=False))
            for _ in range(2)
        )
        await store.asked.wait()
        assert vhost.router.find("x") is None
        store.fails = False  # for the second
        store.gate.set()
        with pytest.raises(Unavailable):
            await first
        await second
        assert vhost.router.find("x") == exchange("x")
    async with serving(tmp_path) as node:
        assert host(node).router.find("x") == exchange("x")


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.UNKNOWN_NOT_DONE])
@pytest.mark.parametrize("what", ["queue", "exchange", "binding"])
async def test_a_deletion_that_was_not_made_takes_nothing_away(tmp_path, what, fault):
    """Nothing in memory, either: messages go where they went, and nothing is owed."""
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x")
        await vhost.bind(binding("x", "a"))
        before = await keys(node)
        store = at_store(node, *[fault] * len(ASK_AGAIN_S))
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await delete(vhost, what)
        store.faults.clear()
        assert vhost.queue("q", None) is vhost.queues["q"]
        assert vhost.router.route("x", "a", {}) == {"q"}
        assert await keys(node) == before
        await publish(node, "x", "a", "one")
        assert vhost.queues["q"].ready.size == 1
        await delete(vhost, what)
    async with serving(tmp_path) as node:
        assert host(node).router.bindings() == []
        assert ("q" in host(node).queues) == (what != "queue")


async def delete(vhost: VirtualHost, what: str) -> None:
    if what == "queue":
        await vhost.delete_queue(vhost.queues["q"])
    elif what == "exchange":
        await vhost.delete_exchange("x", if_unused=False)
    else:
        await vhost.unbind(binding("x", "a"))


async def publish(node: Node, exchange: str, key: str, *bodies: str) -> None:
    def run() -> None:
        with Raw(node.port) as raw:
            channel = raw.open().channel()
            channel.confirm()
            channel.put(exchange, key, *bodies)

    async with asyncio.timeout(30):
        await asyncio.to_thread(run)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_LATE])
@pytest.mark.parametrize("what", ["queue", "exchange", "binding"])
async def test_a_declaration_of_unknown_outcome_counts_as_soon_as_the_store_has_it(
    tmp_path, what, fault
):
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x")
        store = at_store(node, fault)
        with contextlib.suppress(OutcomeUnknown):
            if what == "queue":
                await declare(vhost, "new")
            elif what == "exchange":
                await declare(vhost, "q", "new")
            else:
                await vhost.bind(binding("x", "new"))
        await store.deliver()
        if what == "queue":
            await passes_until(lambda: "new" in vhost.queues)
            assert node.broker.cursors.find("amqp:/:new") is vhost.queues["new"].cursor
        elif what == "exchange":
            await passes_until(lambda: vhost.router.find("new") is not None)
        else:
            await passes_until(lambda: vhost.router.route("x", "new", {}) == {"q"})
        before = await keys(node)
    async with serving(tmp_path) as node:
        assert await keys(node) == before


async def test_a_queue_that_nobody_uses_is_deleted_when_the_store_writes_again(tmp_path):
    async with serving(tmp_path) as node:
        vhost = host(node)
        record = QueueRecord(name="q", durable=True, auto_delete=True)
        queue = await vhost.declare_queue(record, None, passive=False)
        at_store(node, Fault.REFUSED)
        with patch.object(vhosts, "RETRY_S", 0):
            vhost.queue_unused(queue)
            await passes_until(lambda: "q" not in vhost.queues)
        assert node.broker.troubles.count(BACKGROUND) == 1


@pytest.mark.parametrize("what", ["exchange", "binding"])
async def test_who_declares_what_is_being_declared_is_answered_when_it_is_durable(tmp_path, what):
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x")
        store = break_store(node)
        store.gate.clear()

        async def make() -> None:
            if what == "exchange":
                await vhost.declare_exchange(exchange("new"), passive=False)
            else:
                await vhost.bind(binding("x", "new"))

        first = asyncio.create_task(make())
        async with asyncio.timeout(10):
            await store.asked.wait()
            second = asyncio.create_task(make())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not second.done()
            store.gate.set()
            await asyncio.gather(first, second)


async def test_what_is_deleted_and_declared_again_at_once_is_there_after_a_restart(tmp_path):
    """The deletion waits for the disk; who declares the same meanwhile comes behind it."""
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x", "y")
        await vhost.bind(binding("y", "a"))
        async with asyncio.timeout(20):
            for _ in range(20):
                await asyncio.gather(
                    vhost.delete_exchange("x", if_unused=False),
                    vhost.unbind(binding("y", "a")),
                    vhost.delete_queue(vhost.queues["q"]),
                    declare(vhost, "q", "x"),
                )
                await asyncio.gather(
                    vhost.bind(binding("y", "a")),
                    vhost.unbind(binding("y", "a")),
                    vhost.bind(binding("y", "a")),
                )
    async with serving(tmp_path) as node:
        assert "q" in host(node).queues
        assert host(node).router.find("x") is not None
        assert host(node).router.bindings() == [binding("y", "a")]


# -- messages that come meanwhile


def texts(vhost: VirtualHost, queue: str = "q") -> list[str]:
    found = vhost.queues[queue]
    places = map(unpack, found.ready.places())
    rows = [vhost.hub.read(number, [offset]) for number, offset in places]
    return [(record.value or b"").decode() for (record,) in rows]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", ["bind", "unbind", "exchange"])
async def test_a_queue_has_what_came_while_its_bindings_changed_once_and_in_order(
    tmp_path, change, fails
):
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x", "y")
        await vhost.bind(binding("x", "a"))
        await vhost.bind(binding("y", "a"))
        await publish(node, "x", "a", "1")
        store = break_store(node)
        store.fails = fails
        store.gate.clear()
        if change == "bind":
            work = vhost.bind(binding("y", "b"))
        elif change == "unbind":
            work = vhost.unbind(binding("y", "a"))
        else:
            work = vhost.delete_exchange("y", if_unused=False)
        doing = asyncio.create_task(work)
        await store.asked.wait()
        for number in ("2", "3"):
            await publish(node, "x", "a", number)
            await publish(node, "y", "b" if change == "bind" else "a", f"y{number}")
        assert texts(vhost) == ["1"], "it stands still"
        store.gate.set()
        async with asyncio.timeout(10):
            (failure,) = await asyncio.gather(doing, return_exceptions=True)
        assert isinstance(failure, Unavailable) == fails
        await publish(node, "x", "a", "4")
        found = texts(vhost)
        assert [text for text in found if text[0] != "y"] == ["1", "2", "3", "4"]
        came = (change == "bind") != fails
        assert [text for text in found if text[0] == "y"] == (["y2", "y3"] if came else [])
        assert not vhost.hub.follower.standing.queues
        assert not vhost.hub.follower._moments


async def test_a_full_queue_takes_what_was_confirmed_while_it_stood_still(tmp_path):
    """Its publisher could not be told that the queue refuses it."""
    async with serving(tmp_path) as node:
        vhost = host(node)
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        record = QueueRecord(name="q", durable=True, arguments=arguments)
        await vhost.declare_queue(record, None, passive=False)
        await declare(vhost, "other", "x")
        await publish(node, "", "q", "1")
        store = break_store(node)
        store.gate.clear()
        doing = asyncio.create_task(vhost.bind(binding("x", "a")))
        await store.asked.wait()
        await publish(node, "", "q", "2")
        store.gate.set()
        await doing
        assert texts(vhost) == ["1", "2"]


async def test_changes_of_many_queues_at_once_all_end(tmp_path):
    """Those that share queues wait for no other one in a circle."""
    async with serving(tmp_path) as node:
        vhost = host(node)
        names = [f"q{number}" for number in range(5)]
        for name in names:
            await declare(vhost, name, "x", "y")
        rows = [binding("x", str(number), to="y", kind="exchange") for number in range(5)]
        rows += [binding("x", str(number), to=name) for number in range(5) for name in names]
        async with asyncio.timeout(20):
            for _ in range(3):
                await asyncio.gather(*map(vhost.bind, rows))
                await asyncio.gather(*map(vhost.unbind, reversed(rows)))
                await asyncio.gather(*map(vhost.bind, rows[::2]), *map(vhost.unbind, rows[1::2]))
                await asyncio.gather(*map(vhost.unbind, rows))
        assert vhost.router.bindings() == []
        assert not vhost.hub.follower.standing.queues


# -- several writers


def other_node(node: Node) -> Projection[bytes]:
    """What another node of a cluster knows and writes, over the same store."""
    return Projection(node.broker.store, ROOT, lambda entry: entry.value, node.broker.troubles)


async def test_what_another_node_writes_counts_here(tmp_path):
    async with serving(tmp_path) as node:
        vhost, there = host(node), other_node(node)
        await there.open()
        await declare(vhost, "q")
        record, queue = exchange("x"), QueueRecord(name="far", durable=True)
        rows = [binding("x", "a"), binding("x", "b", to="far")]
        await there.put(key_of("/", "exchanges", "x"), encode_row(record))
        await there.put(binding_key("/", rows[0]), encode_row(rows[0]))
        # A binding counts when both ends are there, whichever comes first.
        await there.put(binding_key("/", rows[1]), encode_row(rows[1]))
        await there.put(key_of("/", "queues", "far"), encode_row(queue))
        await passes_until(lambda: vhost.router.route("x", "b", {}) == {"far"})
        assert vhost.router.route("x", "a", {}) == {"q"}
        await publish(node, "x", "a", "1")
        assert vhost.queues["q"].ready.size == 1
        gone = vhost.queues["far"]
        await there.delete(key_of("/", "queues", "far"))
        await there.delete(key_of("/", "exchanges", "x"))
        await passes_until(lambda: vhost.router.find("x") is None)
        assert gone.is_deleted
        assert vhost.router.bindings() == []
        await there.close()
    async with serving(tmp_path) as node:
        assert [key for key in await keys(node) if "/bindings/" in key] == []


async def test_a_binding_is_not_made_to_a_queue_that_another_node_just_deleted(tmp_path):
    async with serving(tmp_path) as node:
        vhost, there = host(node), other_node(node)
        await there.open()
        await declare(vhost, "q", "x")
        store = break_store(node)
        store.gate.clear()
        binding_it = asyncio.create_task(vhost.bind(binding("x", "a")))
        async with asyncio.timeout(10):
            await store.asked.wait()
            await there.delete(key_of("/", "queues", "q"))
            store.gate.set()
            with pytest.raises(NotDeclared):
                await binding_it
        assert [key for key in await keys(node) if "/bindings/" in key] == []
        await there.close()


async def test_what_is_left_of_a_deletion_does_not_come_back_with_the_name(tmp_path):
    """Another node ended in the middle of a deletion of many rows."""
    async with serving(tmp_path) as node:
        vhost, there = host(node), other_node(node)
        await there.open()
        await declare(vhost, "q", "x")
        await bind_many(vhost, "x")
        await there.delete(key_of("/", "queues", "q"))
        await passes_until(lambda: "q" not in vhost.queues)
        assert len([key for key in await keys(node) if "/bindings/" in key]) == MANY
        await declare(vhost, "q")
        assert vhost.router.bindings() == []
        assert [key for key in await keys(node) if "/bindings/" in key] == []
        await there.close()


async def test_one_of_two_makers_of_a_virtual_host_is_told_that_it_is_new(tmp_path):
    async with serving(tmp_path) as node:
        hosts, others = Hosts(node.hub), Hosts(node.hub)
        notes = [HostNote(description=text) for text in ("one", "two")]
        answers = await asyncio.gather(hosts.make("v", notes[0]), others.make("v", notes[1]))
        assert sorted(answers) == [False, True]
        assert hosts.note("v") == notes[answers.index(False)], "the later one counts"
    async with serving(tmp_path) as node:
        assert node.hub.vhosts.find("v") is not None


async def test_nothing_is_declared_in_a_virtual_host_that_is_gone(tmp_path):
    async with serving(tmp_path) as node:
        hosts = Hosts(node.hub)
        await hosts.make("v", HostNote())
        vhost = hosts.find("v")
        store = break_store(node)
        store.gate.clear()
        deleting = asyncio.create_task(hosts.delete("v"))
        await store.asked.wait()
        declaring = asyncio.create_task(vhost.declare_exchange(exchange("x"), passive=False))
        for _ in range(5):
            await asyncio.sleep(0)  # until its write waits behind the deletion
        store.gate.set()
        await deleting
        with pytest.raises(NotFound):
            await declaring
        assert await keys(node) == []
