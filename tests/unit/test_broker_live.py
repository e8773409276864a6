"""The live feed: each listener has its own positions, and sees every record once."""

from __future__ import annotations

from pathlib import Path

from onelog.broker import Broker, LiveSource, Message, Record, StreamConfig
from onelog.kernel import scan_batches
from onelog.record.batch import build_batch
from tests.support.brokers import running


class Follower:
    """Takes plain batches, or leaves everything to the log."""

    def __init__(self, broker: Broker, *, takes: bool) -> None:
        self.takes = takes
        self.seen: list[tuple[str, int]] = []
        broker.new_live().start(self)

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        position = source.position
        for info in scan_batches(data):
            if not self.takes or info.attributes:
                return position
            for offset in range(info.base_offset, info.last_offset + 1):
                self.seen.append((source.stream.name, offset))
            position = info.last_offset + 1
        return position

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        self.seen += [(source.stream.name, record.offset) for record in records]


async def test_two_listeners_see_every_record_once_each_in_its_own_way(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("a/#", "$x/#")))
        fast, slow = Follower(broker, takes=True), Follower(broker, takes=False)
        for topic in ("a/b", "$x/logs/a"):
            await broker.publish(Message(topic, b"1"))
        data = bytearray(build_batch([(None, b"$x/c", b"2", (), 0)], codec=1))
        await broker.publisher.publish_batches(broker.streams.get("s"), 0, data)
        assert fast.seen == [("s", 0), ("s", 1), ("s", 2)]
        assert slow.seen == fast.seen
