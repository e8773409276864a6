"""The tick of the kernel has a short way for batches that need no look: it does what the long one
does.

Each script runs twice, on brokers of their own: once as it is, and once with a fault point armed,
which makes every batch take the long way. Everything that anybody can see must be the same: I1
(once, in order), I4 (answers after visibility), and the isolation of feeds and calls that raise.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base import faults
from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import LOCAL, Broker, Durability, Message, Notice
from onelog.broker.live import LiveSource
from onelog.kernel import COMPILED, Unconcerned, scan_batches
from onelog.record.record import Record
from tests.support.brokers import FAST, history, running

TOPICS = ("a", "b/c", "d", "e/f/g")
SETTINGS = msgspec.structs.replace(
    FAST, main=msgspec.structs.replace(FAST.main, partitions=2, durability=Durability.OS)
)

steps = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(0, 3)),
    st.tuples(st.just("echo"), st.sampled_from(TOPICS), st.booleans()),
    st.tuples(st.just("tick")),
    st.tuples(st.just("wait"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("stable"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("feed"), st.sampled_from(("plain", "raises", "echoes"))),
    st.tuples(st.just("listen"), st.sampled_from(("takes", "raises", "leaves", "unconcerned"))),
    st.tuples(st.just("concern")),
    st.tuples(st.just("call raises"), st.sampled_from(TOPICS)),
    st.tuples(st.just("pass")),
)


class Listener:
    """Follows the end as a protocol does, and notes what it gets."""

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.unconcerned = Unconcerned()
        self.live = world.broker.new_live(f"listener {len(world.listeners)}")
        self.live.start(self, unconcerned=self.unconcerned)

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        infos = scan_batches(data, 0, False)
        first, end = int(infos[0].base_offset), int(infos[-1].last_offset) + 1
        if self.kind == "unconcerned":
            source.unconcerned_since = self.unconcerned.turn
            return end
        self.world.say("deliver", int(source.partition.id), first, end)
        if self.kind == "raises" and first % 3 == 1:
            raise ValueError("a listener that raises")
        return first if self.kind == "leaves" and first % 3 == 2 else end

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        self.world.say("records", int(source.partition.id), *(int(row.offset) for row in records))

    def release(self, numbers: set[int]) -> set[int]:
        del numbers
        return set()


class World:
    """A broker, and everything that was seen of it, in order."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.seen: list[tuple[object, ...]] = []
        self.listeners: list[Listener] = []
        self.echoes = 0

    def say(self, *what: object) -> None:
        self.seen.append(what)

    def publish(self, topic: str, calls: int) -> None:
        number = len(self.seen)
        self.say("published", topic)
        messages = [Message(topic, b"%d" % number)] * max(1, calls)
        call: Any = None
        if calls:
            call = Notice(lambda error: self.say("answer", number, error is None))
        self.broker.publisher.publish(messages, call, principal=LOCAL)

    def echo(self, topic: str, ticks: bool) -> None:
        """A message whose answer publishes another one, and may tick at once."""

        def answered(error: OnelogError | None) -> None:
            self.say("echo", topic, error is None)
            if self.echoes < 20:
                self.echoes += 1
                self.publish(topic, 1)
                if ticks:
                    self.broker.publisher.tick()

        self.broker.publisher.publish([Message(topic, b"e")], Notice(answered), principal=LOCAL)

    def feed(self, kind: str) -> None:
        partition = self.broker.streams.get("main").partition(0)

        def heard(data: bytes | bytearray) -> None:
            first = int.from_bytes(data[:8], "big")
            self.say("feed", kind, first)
            if kind == "raises":
                raise ValueError("a feed that raises")
            if kind == "echoes" and self.echoes < 20:
                self.echoes += 1
                self.publish("a", 1)
                self.broker.publisher.tick()

        partition.follow(heard)

    def call_raises(self, topic: str) -> None:
        def answered(_error: OnelogError | None) -> None:
            self.say("call", topic)
            raise ValueError("a call that raises")

        self.broker.publisher.publish([Message(topic, b"r")], Notice(answered), principal=LOCAL)

    def wait(self, kind: str, number: int, ahead: int) -> None:
        partition = self.broker.streams.get("main").partition(number)
        offset = Offset(partition.end_offset + ahead)
        act = partition.when_visible if kind == "wait" else partition.when_stable
        act(offset, lambda error: self.say(kind, number, offset, error is None))

    async def run(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("publish", topic, calls):
                self.publish(topic, calls)
            case ("echo", topic, ticks):
                self.echo(topic, ticks)
            case ("tick",):
                self.broker.publisher.tick()
            case ("wait" | "stable" as kind, number, ahead):
                self.wait(kind, number, ahead)
            case ("feed", kind):
                self.feed(kind)
            case ("listen", kind):
                self.listeners.append(Listener(self, kind))
            case ("concern",):
                for row in self.listeners:
                    row.unconcerned.turn += 1
            case ("call raises", topic):
                self.call_raises(topic)
            case _:
                await asyncio.sleep(0)

    async def outcome(self) -> tuple[object, ...]:
        self.broker.publisher.tick()
        for _ in range(5):
            await asyncio.sleep(0)
        stream = self.broker.streams.get("main")
        ends = [(row.end_offset, row.high_watermark, row.records_appended) for row in stream.local]
        stands = [[source.position for source in row.live.sources()] for row in self.listeners]
        troubles = self.broker.troubles
        counts = sorted((row.kind, row.count) for row in troubles.rows())
        return (
            list(self.seen),
            ends,
            stands,
            self.broker.publisher.messages,
            counts,
            await history(self.broker, "#"),
        )


async def outcome_of(script: list[tuple[Any, ...]]) -> tuple[object, ...]:
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), SETTINGS) as broker:
            world = World(broker)
            for topic in TOPICS:  # each partition is begun, so that the short way is open
                world.publish(topic, 1)
            broker.publisher.tick()
            for step in script:
                await world.run(step)
            return await world.outcome()


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has a short way")
@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_the_short_way_does_what_the_long_one_does(script: list[tuple[Any, ...]]) -> None:
    short = asyncio.run(outcome_of(script))
    faults.arm("nowhere", lambda: None)
    try:
        long = asyncio.run(outcome_of(script))
    finally:
        faults.disarm("nowhere")
    assert short == long


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has a short way")
async def test_plain_messages_take_the_short_way(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as broker:
        world = World(broker)
        Listener(world, "takes")
        for topic in TOPICS:
            world.publish(topic, 1)
        broker.publisher.tick()
        before = broker.publisher._ticker.messages
        for topic in TOPICS:
            world.publish(topic, 1)
        broker.publisher.tick()
        assert broker.publisher._ticker.messages == before + len(TOPICS)


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has a short way")
async def test_records_that_failed_before_they_were_sealed_are_not_written_later(
    tmp_path: Path,
) -> None:
    """Their publisher got an error: they must not come with the next batch."""
    async with running(tmp_path, SETTINGS) as broker:
        world = World(broker)
        world.publish("a", 1)
        broker.publisher.tick()
        visible = broker.streams.get("main").partition_of(b"a").visible  # type: ignore[attr-defined]
        waiters, visible.waiters = visible.waiters, None
        broker.publisher.publish(
            [Message("a", b"failed")],
            Notice(lambda error: world.say("failed", error is not None)),
            principal=LOCAL,
        )
        broker.publisher.tick()
        visible.waiters = waiters
        world.publish("a", 1)
        broker.publisher.tick()
        assert ("failed", True) in world.seen
        assert await history(broker, "#") == ["a=0", "a=3"]
