"""The kernel appends, syncs and shows records of durability `fsync` as the long way does.

Each script runs twice, on brokers of their own: once as it is, and once with outlets that the
kernel does not know, so that every batch takes the long way. The disk does what the script says, in
any order: a sync of a partition ends, fails, or takes its time; a thread syncs beside it; segments
turn. Everything that anybody can see must be the same: I1, I4 (nothing is answered or shown before
its sync), I9 (a failed sync stops the partition), and the isolation of feeds and calls that raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.errors import OnelogError
from onelog.broker import publish
from onelog.kernel import COMPILED
from onelog.log.partition import Durability, Partition
from tests.property.test_tick import SETTINGS as AT_ONCE
from tests.property.test_tick import TOPICS, Listener, World
from tests.property.test_tick import steps as other_steps
from tests.support.brokers import running

PARTITIONS = 2
SETTINGS = msgspec.structs.replace(
    AT_ONCE, main=msgspec.structs.replace(AT_ONCE.main, durability=Durability.FSYNC)
)
numbers = st.integers(0, PARTITIONS - 1)
steps = st.one_of(
    other_steps,
    other_steps,
    st.tuples(st.just("disk"), numbers),
    st.tuples(st.just("disk"), numbers),
    st.tuples(st.just("disk"), numbers),
    st.tuples(st.just("disk fails"), numbers),
    st.tuples(st.just("sync beside"), numbers),
    st.tuples(st.just("roll"), numbers),
    st.tuples(st.just("promise"), numbers, st.sampled_from((Durability.OS, Durability.FSYNC))),
    st.tuples(st.just("room"), st.sampled_from((100, 200, 100_000))),
    st.tuples(st.just("written")),
)


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Syncs fail for the length of a block."""

    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    honest, os.fdatasync = os.fdatasync, fail
    try:
        yield
    finally:
        os.fdatasync = honest


class Ticket:
    """A sync of a file; it is done when somebody waits for it."""

    def __init__(self, file: Any) -> None:
        self.error = 0
        self._file = file
        self._is_over = False

    def wait(self) -> None:
        if not self._is_over:
            self._is_over = True
            try:
                os.fdatasync(self._file.fd)
            except OSError as error:
                self.error = error.errno or errno.EIO


class ScriptedSyncer:
    """The syncs of one partition, which end when the script says so."""

    disk = None

    def __init__(self, real: Any) -> None:
        self.chores = real.chores
        self.asked: list[Callable[[], None]] = []

    def ask(self, file: Any, done: Callable[[Any], None]) -> Ticket:
        ticket = Ticket(file)

        def end() -> None:
            ticket.wait()
            done(ticket)

        self.asked.append(end)
        return ticket

    def start(self, work: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        def end() -> None:
            result, failure = None, None
            try:
                result = work()
            except OnelogError as error:
                failure = error
            done(result, failure)

        self.asked.append(end)


class SlowWorld(World):
    """A broker whose disk the script moves."""

    def begin(self) -> None:
        stream = self.broker.streams.get("main")
        self.partitions: list[Any] = [stream.partition(at) for at in range(PARTITIONS)]
        self.syncers: list[ScriptedSyncer] = []
        for partition in self.partitions:
            shared = copy.copy(partition.shared)
            shared.syncer = ScriptedSyncer(shared.syncer)
            partition.shared = shared
            self.syncers.append(shared.syncer)
        self.feed("plain")
        self.listeners.append(Listener(self, "takes"))

    def move(self, number: int) -> None:
        """Let the oldest sync of a partition end."""
        asked = self.syncers[number].asked
        if asked:
            asked.pop(0)()

    def look(self) -> None:
        """I4: what is seen is durable; at most one sync is under way."""
        for partition, syncer in zip(self.partitions, self.syncers, strict=True):
            assert len(syncer.asked) <= 1
            if partition.by_sync:
                assert partition.high_watermark <= partition.log.durable_offset or (
                    partition.high_watermark == self.promised.get(partition.id)
                )

    async def run(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("disk", number):
                self.move(number)
            case ("disk fails", number):
                with failing():
                    self.move(number)
            case ("sync beside", number):
                with contextlib.suppress(OnelogError):
                    self.partitions[number].log.sync()
            case ("roll", number):
                with contextlib.suppress(OnelogError):
                    self.partitions[number].log.roll()
            case ("promise", number, level):
                self.partitions[number].promise(level)
                self.promised[self.partitions[number].id] = self.partitions[number].high_watermark
            case ("room", size):
                for partition in self.partitions:
                    partition.visible.budget.limit = partition.visible.budget.share = size
            case ("written",):
                number = len(self.seen)
                self.broker.publisher.when_written(lambda: self.say("written", number))
            case _:
                try:
                    await super().run(step)
                except OnelogError as error:  # a partition that stopped
                    self.say("refused", type(error).__name__)
        self.look()

    @property
    def promised(self) -> dict[int, int]:
        """How far a partition was seen when it promised less."""
        return self.__dict__.setdefault("_promised", {})

    async def outcome(self) -> tuple[object, ...]:
        self.broker.publisher.tick()
        for _ in range(200):
            for number in range(PARTITIONS):
                self.move(number)
            await asyncio.sleep(0)
        assert not any(row.asked for row in self.syncers)
        ends = [
            (row.durable, row.syncs, row.syncing, row.unsnapshotted_bytes, row.visible.waiting,
             row.visible.budget.held, row.visible.unseen_bytes, str(row.stopped))
            for row in self.partitions
        ]  # fmt: skip
        try:
            rest = await super().outcome()
        except OnelogError as error:  # a partition that stopped is not read
            rest = (list(self.seen), type(error).__name__)
        return ([row[:-1] for row in ends], *rest)


async def outcome_of(script: list[tuple[Any, ...]]) -> tuple[object, ...]:
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), SETTINGS) as broker:
            world = SlowWorld(broker)
            for topic in TOPICS:  # each partition is begun, so that the short way is open
                world.publish(topic, 1)
            broker.publisher.tick()
            async with asyncio.timeout(20):
                while len(world.seen) < 2 * len(TOPICS):  # noqa: ASYNC110 - threads tell no test
                    await asyncio.sleep(0.001)
            world.seen.sort(key=str)
            world.begin()
            for step in script:
                await world.run(step)
            return await world.outcome()


class Nobody:
    """No partition is one."""


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has a short way")
@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40))
def test_the_short_way_of_a_sync_does_what_the_long_one_does(script: list[tuple[Any, ...]]) -> None:
    short = asyncio.run(outcome_of(script))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "PartitionEnd", Nobody)
        long = asyncio.run(outcome_of(script))
    assert short == long


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has a short way")
async def test_plain_messages_are_synced_without_a_python_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, SETTINGS) as broker:
        world = World(broker)
        Listener(world, "unconcerned")
        answers = 0

        async def say_all() -> None:
            nonlocal answers
            for topic in TOPICS:
                world.publish(topic, 1)
            broker.publisher.tick()
            answers += len(TOPICS)
            async with asyncio.timeout(20):
                while sum(row[0] == "answer" for row in world.seen) < answers:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

        await say_all()
        calls: list[str] = []
        for name in ("request_sync", "append_built", "made_durable", "_synced"):
            monkeypatch.setattr(Partition, name, lambda *_, name=name: calls.append(name))
        before = broker.publisher._ticker.messages
        await say_all()
        assert broker.publisher._ticker.messages == before + len(TOPICS)
        assert calls == []
        monkeypatch.undo()
