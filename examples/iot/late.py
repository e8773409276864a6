"""The late views: nobody planned them, they come when half is over, and they see all of it.

The same wildcard, plant/#, by each protocol in its own words. All three read the same records.
"""

from __future__ import annotations

import threading

import paho.mqtt.client as paho
from confluent_kafka import Consumer
from plan import Ports, decode
from tally import Tally
from workers import connect


class LateView(threading.Thread):
    """Counts everything from the beginning."""

    def __init__(self, ports: Ports, seen: Tally) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._seen = seen
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def _add(self, payload: bytes | None) -> None:
        self._seen.add(decode(payload or b"")[0])


class LateMqtt(LateView):
    """`$replay/earliest/<filter>`: history, then what comes."""

    def run(self) -> None:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.on_message = lambda _client, _data, message: self._add(message.payload)
        client.connect("127.0.0.1", self._ports.mqtt)
        client.subscribe("$replay/earliest/plant/#", qos=1)
        client.loop_start()
        self._over.wait()
        client.disconnect()
        client.loop_stop()


class LateKafka(LateView):
    """The topic `plant._x23_`, which is the filter plant/#, from `earliest`."""

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{self._ports.kafka}",
                "group.id": "late",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe(["plant._x23_"])
        while not self._over.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self._add(message.value())
        consumer.close()


class LateAmqp(LateView):
    """A queue with `x-onelog-from: earliest`, bound to `plant.#`."""

    def run(self) -> None:
        connection = connect(self._ports)
        channel = connection.channel()
        queue = channel.queue_declare(
            "", exclusive=True, arguments={"x-onelog-from": "earliest"}
        ).method.queue
        channel.queue_bind(queue, "amq.topic", "plant.#")
        for method, _properties, body in channel.consume(
            queue, auto_ack=True, inactivity_timeout=0.1
        ):
            if method is not None:
                self._add(body)
            if self._over.is_set():
                break
        connection.close()
