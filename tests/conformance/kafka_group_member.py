"""A member of a group in a process of its own, which can be killed.

    python kafka_group_member.py LIBRARY PORT GROUP TOPIC SESSION_MS [NAME=VALUE ...]

It says on its standard output what happens to it, one line each:
    + 0 1 2     these partitions were assigned
    - 0 1 2     these were taken away
    0:17 0:18   these records came, as partition:offset
A line on its standard input, or its end, makes it leave. Commits follow what came, soon.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable

COMMIT_MS = 100
stopping = threading.Event()


def say(sign: str, rows: Iterable[object]) -> None:
    text = " ".join(map(str, rows))
    sys.stdout.write(f"{sign} {text}\n" if sign else f"{text}\n")
    sys.stdout.flush()


def wait_for_the_end() -> None:
    sys.stdin.readline()
    stopping.set()


def confluent(port: str, group: str, topic: str, session_ms: int, more: dict[str, str]) -> None:
    from confluent_kafka import Consumer  # noqa: PLC0415

    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 5,
            "auto.commit.interval.ms": COMMIT_MS,
            "log_level": 0,
            **more,
        }
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda _consumer, rows: say("+", [row.partition for row in rows]),
        on_revoke=lambda _consumer, rows: say("-", [row.partition for row in rows]),
    )
    while not stopping.is_set():
        rows = [row for row in consumer.consume(500, 0.1) if row.error() is None]
        if rows:
            say("", [f"{row.partition()}:{row.offset()}" for row in rows])
    consumer.close()


def kafka_python(port: str, group: str, topic: str, session_ms: int, more: dict[str, str]) -> None:
    from kafka import KafkaConsumer  # noqa: PLC0415
    from kafka.consumer.subscription_state import ConsumerRebalanceListener  # noqa: PLC0415

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            say("-", [row.partition for row in revoked])

        def on_partitions_assigned(self, assigned):
            say("+", [row.partition for row in assigned])

    consumer = KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{port}",
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 5,
        auto_commit_interval_ms=COMMIT_MS,
        max_poll_interval_ms=60_000,
        request_timeout_ms=70_000,
        **more,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stopping.is_set():
        for rows in consumer.poll(100).values():
            say("", [f"{row.partition}:{row.offset}" for row in rows])
    consumer.close()


def aiokafka(port: str, group: str, topic: str, session_ms: int, more: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener  # noqa: PLC0415

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            say("-", [row.partition for row in revoked])

        def on_partitions_assigned(self, assigned):
            say("+", [row.partition for row in assigned])

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{port}",
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // 5,
            auto_commit_interval_ms=COMMIT_MS,
            **more,
        )
        consumer.subscribe([topic], listener=Listener())
        await consumer.start()
        while not stopping.is_set():
            for rows in (await consumer.getmany(timeout_ms=100)).values():
                say("", [f"{row.partition}:{row.offset}" for row in rows])
        await consumer.stop()

    asyncio.run(run())


LIBRARIES: dict[str, Callable[[str, str, str, int, dict[str, str]], None]] = {
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def main() -> None:
    library, port, group, topic, session_ms, *rest = sys.argv[1:]
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    more = dict(text.split("=", 1) for text in rest)
    LIBRARIES[library](port, group, topic, int(session_ms), more)


if __name__ == "__main__":
    main()
