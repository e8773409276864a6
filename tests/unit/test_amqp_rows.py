"""Are exchanges, queues and bindings kept and forgotten whole, however many there are? (I4, I9)"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import Unavailable
from onelog.metadata.local import LocalStore
from onelog.metadata.store import Delete, Op, Put
from onelog.protocols.amqp.management.hosts import HostNote, Hosts
from onelog.queues.definitions import ROOT
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.rows import Rows
from onelog.queues.settings import QueueRecord
from onelog.queues.vhosts import VirtualHost
from tests.conformance.amqp_raw import Exchange, Queue, Raw
from tests.support.amqp import Node, serving

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

    async def write(self, ops: Sequence[Op]) -> None:
        fails = self.fails
        self.asked.set()
        await self.gate.wait()
        if fails:
            raise Unavailable("the disk is full")
        await self._store.write(ops)


def break_store(node: Node) -> Failing:
    vhost = host(node)
    failing = Failing(node.broker.store)
    vhost._rows = Rows(failing)  # type: ignore[arg-type]
    return failing


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


async def test_a_deletion_that_failed_is_done_with_the_next_write(tmp_path):
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x")
        await vhost.bind(binding("x", "old"))
        store = break_store(node)
        store.fails = True
        with pytest.raises(Unavailable):
            await vhost.delete_queue(vhost.queues["q"])
        store.fails = False
        await declare(vhost, "q")
    async with serving(tmp_path) as node:
        assert "q" in host(node).queues
        assert host(node).router.bindings() == []


async def test_a_deletion_that_failed_is_done_at_the_latest_at_the_end(tmp_path):
    async with serving(tmp_path) as node:
        vhost = host(node)
        await declare(vhost, "q", "x")
        store = break_store(node)
        store.fails = True
        with pytest.raises(Unavailable):
            await vhost.delete_exchange("x", if_unused=False)
        store.fails = False
    async with serving(tmp_path) as node:
        assert host(node).router.find("x") is None


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


# -- what is owed


async def rows_of(path: Any) -> tuple[Failing, Rows]:
    store = Failing(await LocalStore.open(path / "metadata.db", SystemClock()))
    return store, Rows(store)  # type: ignore[arg-type]


async def test_a_row_that_was_put_again_is_not_taken_by_a_deletion_that_failed_before(tmp_path):
    store, rows = await rows_of(tmp_path)
    await rows.write(Put("a", b"old"))
    store.fails, store.gate = True, asyncio.Event()
    failing = asyncio.create_task(rows.write(Delete("a")))
    await asyncio.sleep(0)
    store.fails = False
    writing = asyncio.create_task(rows.write(Put("a", b"new")))
    await asyncio.sleep(0)
    store.gate.set()
    with pytest.raises(Unavailable):
        await failing
    await writing
    await rows.settle()
    found = await store.get("a")
    assert found is not None
    assert found.value == b"new"
    await store.close()


async def test_a_row_whose_writer_left_is_undone(tmp_path):
    """Memory has it not; the store may have it."""
    store, rows = await rows_of(tmp_path)
    writing = asyncio.create_task(rows.write(Put("a", b"1"), Put("b", b"1")))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await rows.write(Put("b", b"2"))
    assert await store.get("a") is None
    assert await store.get("b") is not None
    await store.close()
