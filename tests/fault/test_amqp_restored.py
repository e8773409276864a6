"""AMQP queues over a partition that is damaged at one start and restored at the next.

What a queue gave out and what it still holds is kept in another place than the records (I3): damage
of the records changes nothing of it, and neither does a power cut that took their end.
"""

from __future__ import annotations

import shutil

import pytest

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset
from onelog.broker import Stream
from onelog.config.streams import StreamDefaults
from onelog.log.partition import Partition
from onelog.queues.addresses import message_topic
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine
from tests.conformance.amqp_raw import Raw, RawChannel
from tests.support.amqp import Node, serving, talk


def home_of(node: Node, exchange: str) -> tuple[Stream, Partition]:
    """Where messages of an exchange for the queue lie."""
    stream, partition, _topic = node.broker.publisher._home(
        message_topic("/", exchange, "jobs"), None
    )
    return stream, partition


def filled(raw: Raw, exchange: str) -> str:
    """A durable queue that gave three of six messages out, and was told that two are done with."""
    channel = raw.channel()
    queue = channel.kept_queue("jobs")
    if exchange:
        channel.bind(queue, exchange, queue)
    for number, text in enumerate("123456", 1):
        channel.publish(exchange, queue, text, delivery_mode=2)
        assert channel.count(queue) == number  # each is a batch of its own
    held = [channel.get(queue, no_ack=False) for _ in range(3)]
    channel.ack(held[0].tag)
    channel.ack(held[1].tag)
    assert channel.count(queue) == 3
    return queue


def left(raw: Raw) -> list[str]:
    return raw.channel().all("jobs")


def ask_in_vain(raw: Raw) -> None:
    """What cannot be read is neither handed out nor done with."""
    channel: RawChannel = raw.channel()
    channel.count("jobs")


@pytest.mark.parametrize("exchange", ["", "amq.direct"])
async def test_a_queue_goes_on_where_it_stood_when_its_partition_is_restored(tmp_path, exchange):
    data = tmp_path / "data"
    async with serving(data) as node:
        await talk(node.port, lambda raw: filled(raw, exchange))
        stream, partition = home_of(node, exchange)
        lies = data / "segment" / stream.record.id / str(partition.id)
    shutil.move(lies, tmp_path / "away")
    async with serving(data) as node:
        assert node.broker.stopped_partitions()
        await talk(node.port, ask_in_vain)
    shutil.rmtree(lies, ignore_errors=True)
    shutil.move(tmp_path / "away", lies)
    async with serving(data) as node:
        assert not node.broker.stopped_partitions()
        assert await talk(node.port, left) == ["3", "4", "5", "6"]


async def test_a_queue_forgets_what_a_power_cut_took_of_its_log(tmp_path):
    """Offsets that were lost are given to other messages: those are not the queue's twice."""
    streams = StreamDefaults(durability="os")
    async with serving(tmp_path, streams=streams) as node:
        await talk(node.port, lambda raw: filled(raw, ""))
        stream, partition = home_of(node, "")
        end = partition.end_offset
    engine = SegmentEngine(tmp_path / "segment", ManualClock())
    log = engine.open(PartitionKey(stream.record.id, partition.id), LogSettings())
    log.truncate(Offset(end - 2))  # 5 and 6 are gone
    engine.close()

    def go_on(raw: Raw) -> list[str]:
        channel = raw.channel()
        channel.kept_queue("others")
        for name, text in (("others", "a"), ("jobs", "b"), ("others", "c")):
            channel.publish("", name, text, delivery_mode=2)
        assert channel.count("jobs") == 3
        return channel.all("jobs")

    async with serving(tmp_path, streams=streams) as node:
        assert await talk(node.port, go_on) == ["3", "4", "b"]
