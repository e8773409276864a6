"""The machines: one MQTT connection each (paho-mqtt); a message counts when it is answered."""

from __future__ import annotations

import math
import threading
import time

import paho.mqtt.client as paho
from plan import ALARM_EVERY, Ports, Said, encode, machine_name, topic_of
from tally import Tally


class Device(threading.Thread):
    """One machine, until it is told to stop; then it waits for the last answers."""

    def __init__(self, index: int, ports: Ports, rate: float, sent: Tally) -> None:
        super().__init__(daemon=True)
        self._index = index
        self._ports = ports
        self._pause_s = 1 / rate
        self._sent = sent
        self._over = threading.Event()

    def run(self) -> None:
        machine = machine_name(self._index)
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, machine, protocol=paho.MQTTv5)
        client.connect("127.0.0.1", self._ports.mqtt)
        client.loop_start()
        waiting: list[tuple[Said, paho.MQTTMessageInfo]] = []
        number = 0
        while not self._over.wait(self._pause_s):
            kind = "alarm" if (number + self._index) % ALARM_EVERY == 0 else "telemetry"
            said = Said(machine, kind, number)
            payload = encode(said, 20 + 5 * math.sin(time.monotonic() + self._index))
            waiting.append((said, client.publish(topic_of(self._index, kind), payload, qos=1)))
            number += 1
            while waiting and waiting[0][1].is_published():
                self._sent.add(waiting.pop(0)[0])
        for said, answer in waiting:
            answer.wait_for_publish(30)
            if answer.is_published():
                self._sent.add(said)
        client.disconnect()
        client.loop_stop()

    def stop(self) -> None:
        self._over.set()
