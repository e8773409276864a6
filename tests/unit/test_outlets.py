"""Outlets: what a tick takes for a partition goes there; the outlet says when it is durable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onelog.base.errors import OnelogError, Unavailable
from onelog.base.ids import Offset
from onelog.broker import LOCAL, Broker, Message, Notice, Stream
from onelog.broker.answers import Waiting
from onelog.broker.outlets import Doubted, Written
from onelog.kernel import BatchBuilder, Stage, scan_batches
from onelog.log.partition import Partition
from tests.support.brokers import history, home_of, running


class Forwarding:
    """Sends batches elsewhere: they are answered when the other side says so."""

    def __init__(self, stream: Stream, partition: Partition) -> None:
        self.stream = stream
        self.partition = partition
        self.rows: list[Waiting] = []
        self.sent: list[tuple[int, Written]] = []
        """The records of each batch, and whom to tell."""

    def fits(self, stream: Stream) -> bool:
        return stream is self.stream

    def write(self, builder: BatchBuilder, done: Written, doubted: Doubted) -> None:
        del doubted
        batch = builder.seal(0, 0)
        self.sent.append((scan_batches(batch)[0].count, done))


def forward(broker: Broker, topic: str) -> Forwarding:
    """Let records of a topic's partition go elsewhere."""
    stream, partition = home_of(broker, topic)
    outlet = Forwarding(stream, partition)
    publisher = broker.publisher
    publisher._stages[partition] = Stage(outlet, BatchBuilder(stream.tags_topics), publisher.dirty)
    return outlet


def elsewhere(broker: Broker, topic: str) -> str:
    """A topic of another partition."""
    home = home_of(broker, topic)
    return next(f"o/{n}" for n in range(99) if home_of(broker, f"o/{n}") != home)


async def test_an_outlet_that_answers_later_holds_up_its_own_publishers_only(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        outlet, other = forward(broker, "t"), elsewhere(broker, "t")
        one = asyncio.ensure_future(broker.publish(Message("t", b"1"), principal=LOCAL))
        many = asyncio.ensure_future(
            broker.publish_many([Message("t", b"2"), Message(other, b"3")], principal=LOCAL)
        )
        async with asyncio.timeout(10):
            await broker.publish(Message(other, b"4"), principal=LOCAL)
        assert [count for count, _done in outlet.sent] == [2]
        assert not one.done()
        assert not many.done()
        outlet.sent[0][1](Offset(70), None)
        async with asyncio.timeout(10):
            assert (await one).offset == 70
            assert [row.offset for row in await many] == [71, 1]
        assert await history(broker, "#") == [f"{other}=4", f"{other}=3"]


async def test_an_outlet_that_fails_tells_who_waits_for_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        outlet = forward(broker, "t")
        publishing = asyncio.ensure_future(broker.publish(Message("t", b"1"), principal=LOCAL))
        await asyncio.sleep(0)
        broker.publisher.tick()
        outlet.sent[0][1](Offset(-1), Unavailable("the other node is gone"))
        with pytest.raises(Unavailable):
            await asyncio.wait_for(publishing, 10)
        assert broker.publisher.messages == 0


async def test_when_written_waits_for_all_that_is_under_way_and_for_nothing_later(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        publisher, outlet = broker.publisher, forward(broker, "t")
        heard: list[str] = []
        publisher.when_written(lambda: heard.append("nothing"))
        assert heard == ["nothing"]
        publisher.publish([Message("t", b"1")], None, principal=LOCAL)
        publisher.tick()
        publisher.publish([Message("t", b"2")], None, principal=LOCAL)
        publisher.when_written(lambda: heard.append("both"))
        publisher.publish([Message("t", b"3")], None, principal=LOCAL)
        publisher.tick()
        assert len(outlet.sent) == 3
        outlet.sent[1][1](Offset(1), None)
        assert heard == ["nothing"]
        outlet.sent[0][1](Offset(0), Unavailable("gone"))
        assert heard == ["nothing", "both"]


async def test_when_written_in_the_middle_of_a_tick_waits_for_what_the_tick_took(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        publisher, other = broker.publisher, elsewhere(broker, "t")
        outlet, heard = forward(broker, "t"), []

        def first(_error: OnelogError | None) -> None:
            publisher.when_written(lambda: heard.append(len(outlet.sent)))

        publisher.publish([Message(other, b"1")], Notice(first), principal=LOCAL)
        publisher.publish([Message("t", b"2")], None, principal=LOCAL)
        publisher.tick()
        assert heard == []
        outlet.sent[0][1](Offset(0), None)
        assert heard == [1]
