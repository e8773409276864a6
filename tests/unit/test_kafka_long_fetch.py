"""A fetch of thousands of partitions is served in turns, and misses nothing meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema

from onelog.base.names import to_dotted
from onelog.broker import LOCAL, Durability, Message, StreamConfig
from onelog.kernel import COMPILED
from onelog.protocols.kafka import fetching, turns
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_entities import entity
from tests.support.kafka_hub import Client, batch, desk
from tests.support.turns import Others, passes_until

VERSION = 12
TURN_S_MAX = 0.05 if COMPILED else 0.5
"""The interpreted kernel encodes the answer many times slower, in one piece."""
"""Time of the processor that the others wait at most; a turn is meant to take a tenth of it."""
PARTS = fetching.AT_ONCE + 100
PATIENCE_MS = 60_000


@pytest.fixture
async def wire(tmp_path: Path):
    async with desk(tmp_path) as made:
        yield made


async def stream(wire, name: str, capture: str, partitions: int) -> None:
    await wire.broker.streams.create(
        StreamConfig(
            name=name, captures=(capture,), partitions=partitions, durability=Durability.OS
        )
    )


def part(number: int, offset: int = 0) -> dict[str, Any]:
    return {
        "partition": number,
        "fetch_offset": offset,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
    }


def fetch(client: Client, topics: dict[str, list[dict[str, Any]]], **changes: Any) -> bytes:
    asked = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0} | changes
    rows = [{"topic": name, "partitions": parts} for name, parts in topics.items()]
    body = entity(load_request_schema(int(ApiKey.FETCH), VERSION), asked | {"topics": rows})
    return client.frame(ApiKey.FETCH, VERSION, body)


def rows_of(answer: Any) -> list[Any]:
    return [row for topic in answer.responses for row in topic.partitions]


@pytest.mark.warm
async def test_a_fetch_of_a_thousand_filters_leaves_the_others_their_turn(wire) -> None:
    await stream(wire, "plant", "plant/#", 8)
    sent = [Message(f"plant/{number}/temperature", b"x" * 100) for number in range(100)]
    await wire.broker.publish_many(sent, principal=LOCAL)
    reader = wire.client()
    names = [to_dotted(f"plant/+/{number}/#") for number in range(999)]
    names.append(to_dotted("plant/+/temperature"))
    count = wire.hub.topics.get(names[0]).partition_count
    assert count >= 8
    request = fetch(reader, {name: [part(at) for at in range(count)] for name in names})
    async with Others() as others:
        reader.send(request)
        await reader.wait_for_bytes()
    ((_, answer),) = reader.answers()
    rows = rows_of(answer)
    assert len(rows) == 1000 * count
    assert {row.error_code for row in rows} == {ErrorCode.none}
    assert b"".join(row.records or b"" for row in rows[-count:]).count(b"x" * 100) == 100
    assert others.turns >= 10
    assert others.longest_s < TURN_S_MAX


@pytest.fixture
def slow_turns(monkeypatch):
    """Others have their turn after each row."""
    monkeypatch.setattr(turns, "TURN_S", -1.0)


async def test_what_comes_while_a_long_fetch_reads_is_answered(wire, slow_turns) -> None:
    """Its partition was read already, and nobody waits for it yet."""
    await stream(wire, "wide", "wide", PARTS)
    writer, reader = wire.client(), wire.client()
    reader.send(fetch(reader, {"wide": [part(at) for at in range(PARTS)]}, max_wait=PATIENCE_MS))
    for _ in range(PARTS + PARTS // 2):  # all are found, and half of them are read
        await asyncio.sleep(0)
    assert not reader.answers()
    writer.send(writer.produce(batch(b"news"), topic="wide"))
    await writer.wait_for(1)
    ((_, answer),) = await reader.wait_for(1)
    assert [row.partition_index for row in rows_of(answer) if row.records] == [0]


@pytest.mark.parametrize("committed", [0, 1])
async def test_a_long_fetch_waits_for_news_and_then_answers(wire, committed) -> None:
    await stream(wire, "wide", "wide", PARTS)
    writer, reader = wire.client(), wire.client()
    request = fetch(
        reader,
        {"wide": [part(at) for at in range(PARTS)]},
        max_wait=PATIENCE_MS,
        isolation_level=committed,
    )
    reader.send(request)
    seen = wire.log(PARTS - 1, "wide").visible
    await passes_until(lambda: seen.waiting)
    writer.send(writer.produce(batch(b"news"), topic="wide", partition=PARTS - 1))
    await writer.wait_for(1)
    ((_, answer),) = await reader.wait_for(1)
    assert [row.partition_index for row in rows_of(answer) if row.records] == [PARTS - 1]
    assert not seen.waiting


async def test_a_long_fetch_answers_when_its_time_is_over(wire) -> None:
    await stream(wire, "wide", "wide", PARTS)
    reader = wire.client()
    reader.send(fetch(reader, {"wide": [part(at) for at in range(PARTS)]}, max_wait=20))
    ((_, answer),) = await reader.wait_for(1)
    assert [row.records for row in rows_of(answer)] == [b""] * PARTS


async def test_a_client_that_goes_leaves_no_waiter_of_a_long_fetch(wire) -> None:
    await stream(wire, "wide", "wide", PARTS)
    reader = wire.client()
    reader.send(fetch(reader, {"wide": [part(at) for at in range(PARTS)]}, max_wait=PATIENCE_MS))
    seen = wire.log(PARTS - 1, "wide").visible
    await passes_until(lambda: seen.waiting)
    reader.connection.connection_lost(None)
    await passes_until(lambda: not seen.waiting)
    assert not any(wire.log(at, "wide").visible.waiting for at in range(PARTS))


async def test_a_long_fetch_keeps_to_its_bytes(wire) -> None:
    await stream(wire, "wide", "wide", PARTS)
    writer, reader = wire.client(), wire.client()
    writer.send(writer.produce(*[batch(b"x" * 100)] * PARTS, topic="wide"))
    await writer.wait_for(1)
    parts = [part(at) for at in range(PARTS)]
    reader.send(fetch(reader, {"wide": parts}, max_bytes=1000))
    ((_, answer),) = await reader.wait_for(1)
    sizes = [len(row.records or b"") for row in rows_of(answer)]
    assert 0 < sum(sizes) <= 1000
    assert sizes[0]
