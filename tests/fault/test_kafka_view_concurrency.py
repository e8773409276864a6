"""Looks through views run in threads while the log is written and trimmed: nothing is missed."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import msgspec
import pytest

from onelog.base.ids import Offset
from onelog.broker import LOCAL, Message
from onelog.kernel import ATTR_CONTROL, scan_batches
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.views import looking
from onelog.record.batch import decode
from tests.support.kafka_hub import desk
from tests.unit.test_kafka_view_fetching import VIEW, ask, number_of

ROUNDS = 120
TOPICS = ("a/1/t", "a/2/t", "noise/1", "noise/2")


@pytest.fixture
async def here(tmp_path):
    async with desk(tmp_path) as made:
        config = made.broker.streams.get("main").config
        await made.broker.streams.alter(msgspec.structs.replace(config, segment_bytes=65_536))
        yield made


async def follow(here, name, number, last, seen):
    """Read one partition of a view until its last record; offsets and values go to `seen`."""
    client, offset = here.client(), 0
    while last not in seen.values():
        (row,) = await ask(client, [(number, offset)], topic=name, wait_ms=50)
        if row.error_code is ErrorCode.offset_out_of_range:  # trimmed meanwhile
            offset = row.log_start_offset
            continue
        assert row.error_code is ErrorCode.none
        data = bytes(row.records or b"")
        for info in scan_batches(data):
            if not info.attributes & ATTR_CONTROL:
                slices = decode(data, info)
                for at in range(len(slices)):
                    if slices.offset(at) >= offset:
                        assert slices.offset(at) not in seen
                        seen[slices.offset(at)] = slices.value(at)
            offset = max(offset, info.last_offset + 1)


async def test_consumers_see_every_record_that_was_not_trimmed_before(here):
    written: dict[str, list[tuple[int, bytes]]] = {topic: [] for topic in TOPICS}

    async def write() -> None:
        for number in range(ROUNDS):
            values = [(topic, b"%d" % number + b"." * 500) for topic in TOPICS for _ in range(3)]
            places = await here.broker.publish_many(
                [Message(*row) for row in values], principal=LOCAL
            )
            for (topic, value), place in zip(values, places, strict=True):
                written[topic].append((place.offset, value))
            if number % 20 == 19:
                _number, log = number_of(here, TOPICS[0])
                await log.trim(Offset(int(log.high_watermark) // 2))
        for topic in TOPICS[:2]:
            place = await here.broker.publish(
                Message(topic, b"last " + topic.encode()), principal=LOCAL
            )
            written[topic].append((place.offset, b"last " + topic.encode()))

    number, log = number_of(here, TOPICS[0])
    last = b"last " + TOPICS[0].encode()
    shown: list[dict[int, bytes]] = [{} for _ in range(4)]
    with patch.object(looking, "NEAR_OFFSETS", 0), patch.object(looking, "RUN_BYTES", 4096):
        async with asyncio.timeout(60):
            await asyncio.gather(
                write(), *(follow(here, VIEW, number, last, seen) for seen in shown)
            )
    live = [
        row
        for topic in TOPICS[:2]
        if number_of(here, topic)[1] is log
        for row in written[topic]
        if row[0] >= log.start_offset
    ]
    for seen in shown:
        assert {at: value for at, value in seen.items() if at >= log.start_offset} == dict(live)
        everything = {row for topic in TOPICS[:2] for row in written[topic]}
        assert set(seen.items()) <= everything
