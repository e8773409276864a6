"""Lists of listeners: one that raises harms none of the others, wherever the list is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from onelog.base.clock import ManualClock, SystemClock
from onelog.broker import LOCAL, Message
from onelog.broker.kept import KeptTable
from onelog.observe import Troubles
from onelog.protocols.kafka.groups.journal import Journal
from onelog.security.authenticator import Authenticator
from tests.support.brokers import running


def raises(*_facts: object) -> None:
    raise ValueError("a listener")


async def test_every_protocol_hears_of_a_changed_user_though_one_raises(tmp_path: Path) -> None:
    """Else the connections of a removed user would go on in the protocols behind it."""
    async with running(tmp_path) as broker:
        troubles = Troubles(ManualClock())
        door = await Authenticator.open(broker.store, SystemClock(), troubles=troubles)
        heard: list[str] = []
        door.on_change(raises)
        door.on_change(heard.append)
        await door.users.add("ann", "a long enough password")
        await door.users.remove("ann")
        assert heard[-1] == "ann"
        assert troubles.count("user-listener") == len(heard)
        await door.close()


async def test_every_listener_hears_of_a_changed_view_though_one_raises(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        heard: list[str] = []
        broker.views.on_change += [raises, heard.append]
        await broker.views.create("telemetry", "sensors/+/telemetry")
        assert heard == ["telemetry"]
        assert broker.troubles.count("view-listener") == 1


async def test_every_commit_of_a_batch_is_answered_though_one_answer_raises(
    tmp_path: Path,
) -> None:
    """I4: rows that are durable are answered, whoever waits beside them."""
    async with running(tmp_path) as broker:
        journal = Journal(await KeptTable.open(broker.streams, ManualClock(), "~groups"))
        answers: asyncio.Queue[object] = asyncio.Queue()
        journal.put([(b"a", b"1")], raises)
        journal.put([(b"b", b"2")], answers.put_nowait)
        async with asyncio.timeout(10):
            assert await answers.get() is None
        assert broker.troubles.count("group-answer") == 1


async def test_every_waiter_of_a_queue_is_woken_though_one_raises(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        queue = await broker.cursors.open_queue("q", ["t"], principal=LOCAL)
        await broker.publish(Message("t", b"x"), principal=LOCAL)
        heard: list[str] = []
        queue.listen(raises)
        queue.listen(lambda: heard.append("told"))
        (delivery,) = queue.acquire("c")
        queue.release(delivery.token)
        assert heard
        assert broker.troubles.count("queue-listener") == len(heard)
