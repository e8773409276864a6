"""History with an object that is gone: each protocol answers or goes on, and nothing hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog.base.errors import ColdDamaged
from onelog.base.ids import Offset
from onelog.broker import Broker
from onelog.log import arrivals
from onelog.queues import history
from tests.conformance.amqp_raw import Raw, Refused
from tests.support import amqp, mqtt
from tests.support.admin import client_of, new_desk
from tests.support.brokers import FAST, running
from tests.support.tiered_brokers import fill, go_cold, part, payload, plant, with_store

COUNT = 30
BOUND_S = 15.0
EARLIEST = {"x-onelog-from": "earliest"}


async def cold_plant(broker: Broker) -> None:
    """Records of which nothing is on the disk."""
    await broker.streams.create(plant())
    await fill(broker, COUNT)
    await go_cold(broker)
    assert part(broker).local_start_offset == COUNT


def second_piece(store: Path) -> Path:
    return sorted(store.glob("t/**/*.p"))[1]


def bind(raw: Raw, name: str) -> list[str]:
    channel = raw.channel()
    queue = channel.queue(name, durable=True, arguments=EARLIEST)
    channel.bind(queue, "amq.topic", "plant.#")
    return channel.all(queue)


async def test_a_queue_that_wants_a_past_with_a_missing_object_is_refused_at_once(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    async with amqp.serving(tmp_path / "data", settings=with_store(store, FAST)) as node:
        await cold_plant(node.broker)
        missing = second_piece(store)
        missing.rename(tmp_path / "aside")

        def refused(raw: Raw) -> str:
            with pytest.raises(Refused) as error:
                bind(raw, "q")
            return str(error.value)

        said = await asyncio.wait_for(amqp.talk(node.port, refused), BOUND_S)
        assert "541" in said or "INTERNAL_ERROR" in said, said
        assert missing.name[:20] in said or "is gone" in said or "missing" in said, said

        def goes_on(raw: Raw) -> int:
            channel = raw.channel()
            channel.queue("other", durable=True)
            channel.confirm()
            channel.put("", "other", "x")
            return len(channel.all("other"))

        assert await asyncio.wait_for(amqp.talk(node.port, goes_on), BOUND_S) == 1


async def test_the_same_bind_takes_everything_once_the_object_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "DAMAGED_RETRY_S", 0.2)
    store = tmp_path / "store"
    async with amqp.serving(tmp_path / "data", settings=with_store(store, FAST)) as node:
        await cold_plant(node.broker)
        missing = second_piece(store)
        missing.rename(tmp_path / "aside")

        def refused(raw: Raw) -> None:
            with pytest.raises(Refused):
                bind(raw, "q")

        await asyncio.wait_for(amqp.talk(node.port, refused), BOUND_S)
        (tmp_path / "aside").rename(missing)
        await asyncio.sleep(0.5)  # until the failure is forgotten
        found = await asyncio.wait_for(amqp.talk(node.port, lambda raw: bind(raw, "q")), BOUND_S)
        assert sorted(found) == [payload(number).decode() for number in range(COUNT)]


async def test_a_past_waits_a_while_for_a_store_that_is_away_and_is_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "AWAY_S", 1.0)
    store = tmp_path / "store"
    async with amqp.serving(tmp_path / "data", settings=with_store(store, FAST)) as node:
        await cold_plant(node.broker)
        store.rename(tmp_path / "away")

        def refused(raw: Raw) -> str:
            with pytest.raises(Refused) as error:
                bind(raw, "q")
            return str(error.value)

        said = await asyncio.wait_for(amqp.talk(node.port, refused), BOUND_S)
        assert "mount" in said, said
        (tmp_path / "away").rename(store)


async def test_a_replay_goes_on_in_other_partitions_and_ends_when_the_object_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "DAMAGED_RETRY_S", 0.2)
    store = tmp_path / "store"
    settings = with_store(store, FAST)
    async with mqtt.serving(tmp_path / "data", settings=settings) as node:
        broker = node.broker
        await broker.streams.create(plant(partitions=2))
        for number in range(COUNT):
            await fill(broker, 1, topic=f"plant/{number % 7}", first=number)
        await go_cold(broker)
        homes = {one: part(broker, number=one).end_offset for one in (0, 1)}
        assert min(homes.values()) > 0
        damaged = [path for path in store.glob("t/**/*.p") if path.parent.name == "0"]
        for path in damaged:
            path.rename(tmp_path / path.name)
        client = await node.client("reader")
        async with asyncio.timeout(BOUND_S):
            assert await client.subscribe("$replay/earliest/plant/#", 1) == 1
            found = await client.take(homes[1])
            assert await client.is_silent()
            for path in damaged:
                (tmp_path / path.name).rename(path)
            found += await client.take(homes[0])
        assert sorted(found) == [payload(number).decode() for number in range(COUNT)]


async def told(broker: Broker) -> list[dict[str, Any]]:
    """The damage that /health shows."""
    desk = new_desk(troubles=broker.troubles)
    async with client_of(desk) as client:
        answer = await client.get("/health")
    assert answer.status_code == 200, "the broker is ready: everything else is read"
    body = answer.json()
    rows = [row for row in body["troubles"] if row["kind"] == arrivals.DAMAGED]
    assert body["status"] == ("degraded" if rows else "ok")
    return rows


async def read(broker: Broker, offset: int) -> None:
    """Read as a cursor does."""
    partition = part(broker)
    await partition.until_here(lambda: partition.log.read(Offset(offset), 100, Offset(COUNT)))


async def until_damaged(broker: Broker, places: int) -> None:
    """Until readers found so many of them."""
    await mqtt.until(lambda: len(part(broker).arrivals._damaged) == places)


async def test_damage_is_shown_by_health_until_the_object_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "DAMAGED_RETRY_S", 0.2)
    store = tmp_path / "store"
    async with running(tmp_path / "data", with_store(store)) as broker:
        await cold_plant(broker)
        assert await told(broker) == []
        missing = second_piece(store)
        missing.rename(tmp_path / "aside")
        row = part(broker).log.cold_rows(Offset(0), Offset(COUNT))[1]
        reading = asyncio.create_task(read(broker, row.base))
        await until_damaged(broker, 1)
        (shown,) = await told(broker)
        assert missing.name in shown["error"]
        assert f"offsets {row.base} to {row.end}" in shown["error"]
        assert shown["place"] == part(broker).place
        assert shown["standing"]
        with pytest.raises(ColdDamaged):
            await asyncio.wait_for(reading, BOUND_S)
        (tmp_path / "aside").rename(missing)
        await asyncio.wait_for(read(broker, row.base), BOUND_S)
        assert await told(broker) == []


async def test_damage_of_a_piece_whose_index_is_whole_is_over_when_the_piece_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "DAMAGED_RETRY_S", 0.2)
    store = tmp_path / "store"
    async with running(tmp_path / "data", with_store(store)) as broker:
        await cold_plant(broker)
        piece = second_piece(store)
        whole = piece.read_bytes()
        piece.write_bytes(whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])
        row = part(broker).log.cold_rows(Offset(0), Offset(COUNT))[1]
        with pytest.raises(ColdDamaged):
            await asyncio.wait_for(read(broker, row.base), BOUND_S)
        assert len(await told(broker)) == 1
        piece.write_bytes(whole)
        await asyncio.wait_for(read(broker, row.base), BOUND_S)  # by an index that is here already
        assert await told(broker) == []


async def test_damage_that_retention_passed_or_that_was_deleted_is_no_trouble_any_more(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    async with running(tmp_path / "data", with_store(store)) as broker:
        await cold_plant(broker)
        rows = part(broker).log.cold_rows(Offset(0), Offset(COUNT))
        for row in rows[:2]:
            (store / row.object).unlink()
        readers = [asyncio.create_task(read(broker, row.base)) for row in rows[:2]]
        await until_damaged(broker, 2)
        await part(broker).trim(Offset(rows[0].end))
        (shown,) = await told(broker)
        assert f"offsets {rows[1].base} to {rows[1].end}" in shown["error"]
        await part(broker).trim(Offset(rows[1].end))
        assert await told(broker) == []
        for reader in readers:
            reader.cancel()
        (store / rows[2].object).unlink()
        reader = asyncio.create_task(read(broker, rows[2].base))
        await until_damaged(broker, 1)
        assert len(await told(broker)) == 1
        reader.cancel()
        await broker.streams.delete("plant")
        assert await told(broker) == []
