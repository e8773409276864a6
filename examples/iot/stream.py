"""The stream consumer: a Kafka group (confluent-kafka) on the filter plant/+/+/telemetry.

The Kafka topic `plant._x2B_._x2B_.telemetry` *is* that filter: `.` stands for `/`, `_x2B_` for `+`.
It was never created, holds no data and shows every machine, also those that come tomorrow.
"""

from __future__ import annotations

import threading

from confluent_kafka import Consumer
from plan import Ports, decode
from tally import Tally

TOPIC = "plant._x2B_._x2B_.telemetry"


class StreamConsumer(threading.Thread):
    """Keeps the average over all machines; commits what it has counted."""

    def __init__(self, ports: Ports, seen: Tally) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._seen = seen
        self._over = threading.Event()

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{self._ports.kafka}",
                "group.id": "averages",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        total = 0.0
        while not self._over.is_set():
            messages = [row for row in consumer.consume(500, 0.1) if row.error() is None]
            for message in messages:
                said, value = decode(message.value() or b"")
                self._seen.add(said)
                total += value
            if messages:
                consumer.commit(asynchronous=False)
                self._seen.say(f"average {total / self._seen.count:.2f} °C")
        consumer.close()

    def stop(self) -> None:
        self._over.set()
