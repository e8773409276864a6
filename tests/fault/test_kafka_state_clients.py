"""What do Kafka's clients do while what groups committed cannot be read? They wait, and go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.groups.rows import STREAM as GROUPS
from onelog.protocols.kafka.handlers import HANDLERS
from onelog.protocols.kafka.hub import Hub
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.transactions.coordinator import STREAM as TRANSACTIONS
from tests.fault.test_internal_damage import damage
from tests.unit.test_app_protocols import running

pytestmark = pytest.mark.fault

DEADLINE_S = 60.0
GROUP = "readers"

Reading = Callable[[int, int], Awaitable[list[str]]]
"""Reads so many records of the topic as a member of the group, from a port, and commits them."""


async def read_by_aiokafka(port: int, count: int) -> list[str]:
    consumer = AIOKafkaConsumer(
        "t",
        bootstrap_servers=f"127.0.0.1:{port}",
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        found = [(await consumer.getone()).value.decode() for _ in range(count)]
        await consumer.commit()
    finally:
        await consumer.stop()
    return found


async def read_by_confluent(port: int, count: int) -> list[str]:
    stop = threading.Event()

    def work() -> list[str]:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
            }
        )
        consumer.subscribe(["t"])
        found: list[str] = []
        while len(found) < count and not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode())
        if not stop.is_set():
            consumer.commit(asynchronous=False)
        consumer.close()
        return found

    try:
        return await asyncio.to_thread(work)
    finally:
        stop.set()


async def produce(port: int, *values: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", enable_idempotence=True)
    await producer.start()
    for value in values:
        await producer.send_and_wait("t", value.encode())
    await producer.stop()


async def read_without_group(port: int, count: int) -> list[str]:
    consumer = AIOKafkaConsumer(
        "t",
        bootstrap_servers=f"127.0.0.1:{port}",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    found = [(await consumer.getone()).value.decode() for _ in range(count)]
    await consumer.stop()
    return found


@pytest.mark.parametrize("read", [read_by_aiokafka, read_by_confluent])
async def test_records_flow_and_a_group_waits_until_the_stream_is_restored(
    read: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with running(tmp_path, "kafka.topics.partitions=1") as (_server, ports):
            port = ports["kafka"]
            await produce(port, "1", "2")
            assert await read(port, 2) == ["1", "2"]
        damage(tmp_path, GROUPS, "first")
        where = f"listeners.kafka.port={port}"
        async with running(tmp_path, where) as (_server, _ports):
            await produce(port, "3")
            assert await read_without_group(port, 3) == ["1", "2", "3"]
            asked_three_times = asked_for_coordinator(monkeypatch, 3)
            waiting = asyncio.create_task(read(port, 1))
            await asked_three_times.wait()
            assert not waiting.done(), "neither an error, nor a group that begins anew"
        damage(tmp_path, GROUPS, "first")  # flipped back, as from a backup
        async with running(tmp_path, where):
            assert await waiting == ["3"], "it goes on where it was"


def asked_for_coordinator(monkeypatch: pytest.MonkeyPatch, times: int) -> asyncio.Event:
    """Set when clients have asked so often where the coordinator is."""
    real, enough, left = HANDLERS[ApiKey.FIND_COORDINATOR], asyncio.Event(), [times]

    async def counted(hub: Hub, request: Request) -> Body | bytes | None:
        left[0] -= 1
        if left[0] <= 0:
            enough.set()
        return await real(hub, request)

    monkeypatch.setitem(HANDLERS, ApiKey.FIND_COORDINATOR, counted)
    return enough


async def test_a_transaction_that_is_open_meanwhile_is_committed_after_the_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with running(tmp_path, "kafka.topics.partitions=1") as (_server, ports):
            port = ports["kafka"]
            producer = Producer(
                {
                    "bootstrap.servers": f"127.0.0.1:{port}",
                    "transactional.id": "x",
                    "reconnect.backoff.max.ms": 200,
                }
            )

            def begin() -> None:
                producer.init_transactions(DEADLINE_S)
                producer.begin_transaction()
                producer.produce("t", b"1")
                producer.flush(DEADLINE_S)

            await asyncio.to_thread(begin)
        damage(tmp_path, TRANSACTIONS, "first")
        where = f"listeners.kafka.port={port}"
        async with running(tmp_path, where):
            asked = asked_for_coordinator(monkeypatch, 3)
            ending = asyncio.create_task(asyncio.to_thread(producer.commit_transaction, DEADLINE_S))
            await asked.wait()
            assert not ending.done()
        damage(tmp_path, TRANSACTIONS, "first")  # flipped back, as from a backup
        async with running(tmp_path, where):
            await ending
            assert await read_without_group(port, 1) == ["1"]


async def test_a_client_of_confluent_writes_while_the_groups_are_not_known(tmp_path: Path) -> None:
    async with running(tmp_path, "kafka.topics.partitions=1") as (_server, ports):
        await produce(ports["kafka"], "1")
        await read_by_aiokafka(ports["kafka"], 1)
    damage(tmp_path, GROUPS, "first")
    async with running(tmp_path) as (_server, ports):

        def work() -> int:
            producer = Producer({"bootstrap.servers": f"127.0.0.1:{ports['kafka']}"})
            producer.produce("t", b"2")
            return producer.flush(DEADLINE_S)

        assert await asyncio.to_thread(work) == 0
        assert await read_without_group(ports["kafka"], 2) == ["1", "2"]
