"""A change of streams costs what it changes: with thousands of them, too."""

from __future__ import annotations

from pathlib import Path

from onelog.base.clock import ManualClock
from onelog.broker import Broker, Stream, StreamConfig
from onelog.config import Config
from onelog.protocols.kafka.hub import Hub
from onelog.security.authenticator import Authenticator
from tests.support.brokers import running


async def kafka_hub(broker: Broker) -> tuple[Hub, Authenticator]:
    authenticator = await Authenticator.open(broker.store, ManualClock())
    hub = Hub(broker, authenticator, Config(), ManualClock())
    await hub.open()
    return hub, authenticator


async def test_listeners_look_at_the_streams_that_changed_and_at_no_other(
    tmp_path: Path, monkeypatch
) -> None:
    """Nobody lists all streams when one is made, altered or deleted."""
    async with running(tmp_path) as broker:
        hub, authenticator = await kafka_hub(broker)
        live = broker.new_live("test")
        live.start(Listener())
        listed: list[str] = []
        real = broker.streams.streams

        def streams() -> list[Stream]:
            listed.append("all")
            return real()

        monkeypatch.setattr(broker.streams, "streams", streams)
        for number in range(3):
            name = f"t{number}"
            await broker.streams.create(StreamConfig(name=name, captures=(name,), engine="memory"))
            assert hub.topics.find(name) is not None
        await broker.streams.alter(
            StreamConfig(name="t0", captures=("t0",), engine="memory", partitions=3)
        )
        found = hub.topics.find("t0")
        assert found is not None
        assert found.partition_count == 3
        assert len([row for row in live.sources() if row.stream.name == "t0"]) == 3
        await broker.streams.delete("t1")
        assert hub.topics.find("t1") is None or hub.topics.find("t1") is not found
        assert not [row for row in live.sources() if row.stream.name == "t1"]
        await broker.streams.create(StreamConfig(name="t1", captures=("t1",), engine="memory"))
        assert len([row for row in live.sources() if row.stream.name == "t1"]) == 1
        assert listed == []
        monkeypatch.undo()
        live.stop()
        await hub.close()
        await authenticator.close()


async def test_a_topic_that_is_made_anew_is_told_as_deleted_and_no_other_is(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        hub, authenticator = await kafka_hub(broker)
        gone: list[str] = []
        watched = hub.groups._deleted_topics
        assert watched is not None
        watched._on_deleted = gone.extend
        for name in ("a", "b"):
            await broker.streams.create(StreamConfig(name=name, captures=(name,), engine="memory"))
        first = hub.topics.get("a").id
        await broker.streams.delete("a")
        assert gone == ["a"]
        await broker.streams.create(StreamConfig(name="a", captures=("a",), engine="memory"))
        assert hub.topics.get("a").id != first
        await broker.streams.alter(StreamConfig(name="b", captures=("b", "c"), engine="memory"))
        assert gone == ["a", "b"], "a stream of many topics is no topic of Kafka"
        await hub.close()
        await authenticator.close()


class Listener:
    """Takes nothing."""

    def deliver(self, source, data):
        return source.partition.high_watermark

    def deliver_records(self, source, records):
        del source, records

    def release(self, numbers):
        del numbers
        return set()
