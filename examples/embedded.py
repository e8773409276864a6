"""The broker inside a program: publish, then read the same messages through five kinds of cursor.

Run it: .venv/bin/python examples/embedded.py [data directory]
"""

import asyncio
import sys
import tempfile

from onelog import embedded
from onelog.broker import EARLIEST, LOCAL, Broker, Message, QueueSettings, StreamConfig


async def main(data_dir: str) -> None:
    async with embedded.open(data_dir) as broker:
        await publish(broker)
        await read(broker)


async def publish(broker: Broker) -> None:
    # Topics need no declaration: what no stream captures lives in the built-in stream `main`.
    where = await broker.publish(Message("sensors/d1/temperature", b"21.5"), principal=LOCAL)
    print(f"durable at {where.stream}/{where.partition}@{where.offset}")

    # A stream of its own for what needs other settings.
    if broker.streams.find("orders") is None:
        await broker.streams.create(StreamConfig(name="orders", captures=("orders/#",)))
    await broker.publish_many(
        [Message(f"orders/{number}", b"%d pieces" % number) for number in range(3)], principal=LOCAL
    )


async def read(broker: Broker) -> None:
    # offset: a position that you commit; it reads history written before it existed.
    report = await broker.cursors.open_offset("report", ["sensors/+/temperature"], principal=LOCAL)
    for record in await report.next(timeout_s=1):
        print("report ", record.topic, record.value)
    report.commit_read()
    await broker.cursors.save(report)

    # queue: several workers share one backlog; what is not acknowledged comes back.
    settings = QueueSettings(lock_ms=30_000, deliveries_max=2, dead_letter_topic="dead/orders")
    jobs = await broker.cursors.open_queue(
        "jobs", ["orders/#"], start=EARLIEST, settings=settings, principal=LOCAL
    )
    for delivery in await jobs.next("worker-1", limit=3, timeout_s=1):
        print("worker ", delivery.record.topic, delivery.record.value)
        jobs.ack(delivery.token)

    # session: an in-flight window with packet ids, as an MQTT client has.
    device = await broker.cursors.open_session(
        "device-7", ["orders/1"], start=EARLIEST, principal=LOCAL
    )
    for sent in await device.next(timeout_s=1):
        assert sent.record is not None
        print("session", sent.packet_id, sent.record.value)
        device.acknowledge(sent.packet_id)

    # table: the latest record per topic.
    latest = await broker.cursors.open_table("latest", ["#"], principal=LOCAL)
    for record in latest.find("orders/+"):
        print("table  ", record.topic, record.value)

    # tail: what comes from now on.
    live = broker.cursors.open_tail(["sensors/#"], principal=LOCAL)
    await broker.publish(Message("sensors/d2/temperature", b"19.0"), principal=LOCAL)
    for record in await live.next(timeout_s=1):
        print("tail   ", record.topic, record.value)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(folder))
