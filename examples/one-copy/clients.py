"""The clients: devices by MQTT (paho-mqtt), and a consumer group by Kafka (confluent-kafka)."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import NamedTuple

import paho.mqtt.client as paho
from confluent_kafka import Consumer

QUIET_S = 5.0
"""A group that gets nothing for so long after the last message has seen everything."""


class Traffic(NamedTuple):
    """What somebody sent or saw."""

    by_device: Counter[str]
    value_bytes: int

    @property
    def messages(self) -> int:
        """All of them."""
        return self.by_device.total()


def publish(port: int, devices: int, readings: int) -> Traffic:
    """Every device publishes its readings; a message counts when it is answered."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "plant", protocol=paho.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent, size = Counter[str](), 0
    for number in range(readings):
        answers = []
        for device in range(devices):
            value = json.dumps({"device": device, "n": number, "temperature": 20 + number % 7})
            answers.append((f"d{device}", client.publish(f"plant/d{device}/t", value, qos=1)))
            size += len(value)
        for name, answer in answers:
            answer.wait_for_publish(30)
            sent[name] += answer.is_published()
    client.disconnect()
    client.loop_stop()
    return Traffic(sent, size)


def replay(port: int, wanted: int) -> Traffic:
    """A group that never was there reads everything from the beginning.

    The Kafka topic `plant._x23_` is the filter plant/#: it was never created.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "late",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["plant._x23_"])
    seen, size, last = Counter[str](), 0, time.monotonic()
    while time.monotonic() - last < (QUIET_S if seen.total() >= wanted else 12 * QUIET_S):
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                value = message.value() or b""
                seen[f"d{json.loads(value)['device']}"] += 1
                size += len(value)
                last = time.monotonic()
    consumer.close()
    return Traffic(seen, size)
