"""Who waits for alerts: one by MQTT, one by AMQP. Both were there before the first alert was."""

import json
import threading
from typing import Any

import paho.mqtt.client as mqtt
import pika


class MqttReader:
    """A subscription to the topic."""

    def __init__(self, port: int, topic: str) -> None:
        self.alerts: list[dict[str, Any]] = []
        self._subscribed = threading.Event()
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "watch")
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _client, _data, message: self._take(message)
        self._came = threading.Condition()
        self._client.connect("127.0.0.1", port)
        self._client.subscribe(topic, qos=1)
        self._client.loop_start()
        assert self._subscribed.wait(30), "the broker did not answer the subscription"

    def _take(self, message: mqtt.MQTTMessage) -> None:
        with self._came:
            self.alerts.append(json.loads(message.payload))
            self._came.notify_all()

    def wait(self, count: int) -> list[dict[str, Any]]:
        """The alerts, when so many are there."""
        with self._came:
            self._came.wait_for(lambda: len(self.alerts) >= count, 30)
        self._client.disconnect()
        self._client.loop_stop()
        return self.alerts


class AmqpReader:
    """A queue that is bound to the topic."""

    def __init__(self, port: int, topic: str) -> None:
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=600)
        )
        self._channel = self._connection.channel()
        self._channel.queue_declare("alerts-of-iot", durable=True)
        self._channel.queue_bind("alerts-of-iot", "amq.topic", topic)

    def wait(self, count: int) -> list[dict[str, Any]]:
        """The alerts, when so many are there."""
        alerts = []
        for method, _properties, body in self._channel.consume(
            "alerts-of-iot", inactivity_timeout=30
        ):
            if method is None:
                break
            alerts.append(json.loads(body))
            self._channel.basic_ack(method.delivery_tag)
            if len(alerts) == count:
                break
        self._connection.close()
        return alerts
