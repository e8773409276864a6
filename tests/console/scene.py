"""A broker with life in it: clients of every protocol that write and read one topic, and others.

The tests look at it, and so do the pictures of the guide (`python -m tests.console.pictures`).
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
from confluent_kafka import Consumer, Producer

from onelog.base.names import to_dotted
from tests.conformance.mqtt_brokers import Onelog

TOPIC = "sensors/d1/telemetry"
STRANGER = "127.0.0.9"
"""An address of this machine whose failed logins count, other than those of the tests' own."""
BANS = (
    'security.bans.exempt="127.0.0.1/32"',
    "security.bans.failures=2",
    "security.bans.delay_ms=1",
)
DEADLINE_S = 120.0
PAUSE_S = 0.1


class Scene:
    """Start it, look at it, end it."""

    def __init__(
        self, folder: Path, *assignments: str, port: int = 0, stored: bool = False
    ) -> None:
        """With `stored` the broker has an object store, which is a folder."""
        self.folder = folder
        self.is_stored = stored
        if stored:
            (folder / "store").mkdir()
            assignments = (*assignments, f'store.url="file://{folder}/store"')
        self.broker = Onelog(folder, *BANS, *assignments)
        self.broker.ports["admin"] = port
        self.broker.start()
        self.url = f"http://127.0.0.1:{self.broker.ports['admin']}"
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: list[paho.Client] = []

    # -- the API

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Ask the API as a program does; the answer as a value."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def until(self, path: str, holds: Any) -> Any:
        """Ask until the answer is as wanted."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = self.ask("GET", path)
            if holds(found):
                return found
            assert time.monotonic() < deadline, f"{path}: {found}"
            time.sleep(0.05)

    # -- clients

    def mqtt(self, client_id: str, *filters: str, clean: bool = True) -> paho.Client:
        """A client that is connected, and subscribed where it is to be."""
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, clean_session=clean)
        ready = threading.Event()
        client.on_connect = lambda *_rest: (
            client.subscribe([(text, 1) for text in filters]) if filters else ready.set()
        )
        client.on_subscribe = lambda *_rest: ready.set()
        client.connect("127.0.0.1", self.broker.ports["mqtt"])
        client.loop_start()
        assert ready.wait(DEADLINE_S)
        self._clients.append(client)
        return client

    def guess(self, address: str) -> None:
        """Guess passwords from an address until the broker bans it."""
        packet = b"\x10\x18\x00\x04MQTT\x04\xc2\x00\x00\x00\x01x\x00\x04root\x00\x03pwd"
        place = "127.0.0.1", self.broker.ports["mqtt"]
        for _attempt in range(2):
            with socket.create_connection(place, DEADLINE_S, (address, 0)) as peer:
                peer.sendall(packet)
                assert peer.recv(4) == b"\x20\x02\x00\x04"

    def back_up(self, name: str, **more: Any) -> str:
        """Begin a backup into a folder beside the data; its id."""
        body = {"url": str(self.folder / name), **more}
        return str(self.ask("POST", "/backups", body)["id"])

    def people(self, name: str, password: str) -> None:
        """Make an administrator, then what only administrators see: users, rules, a token."""
        self.ask("POST", "/users", {"name": name, "password": password, "role": "admin"})
        text = self.broker.command("token", "create", "pictures", "--role", "admin")
        bearer = {"Authorization": f"Bearer {text.strip()}"}
        for other, role, groups in (("bob", "operator", ["ops"]), ("device7", "none", [])):
            body = {"name": other, "password": password, "role": role, "groups": groups}
            self.ask("POST", "/users", body, **bearer)
        for rule in (
            {"who": ["anonymous"], "actions": ["all"], "resource": "topic:#", "note": "for now"},
            {"who": ["anonymous"], "actions": ["all"], "resource": "cursor:*"},
            {"who": ["group:ops", f"user:{name}"], "actions": ["all"], "resource": "topic:#"},
            {"who": ["user:device7"], "actions": ["publish"], "resource": "topic:sensors/%u/#"},
            {"who": ["everyone"], "actions": ["publish"], "resource": "topic:plant/+/secret",
             "effect": "deny"},
        ):  # fmt: skip
            self.ask("POST", "/access/rules", {"effect": "allow", **rule}, **bearer)

    def _work(self, name: str, act: Any, end: Any = None) -> None:
        def run() -> None:
            while not self._ending.wait(PAUSE_S):
                act()
            if end is not None:
                end()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _kafka(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self.broker.ports['kafka']}", **more}

    # -- life

    def live(self) -> None:
        """Let everybody come, and write a while."""
        self.ask("POST", "/streams", {
            "name": "telemetry", "captures": ["sensors/+/telemetry"], "partitions": 4,
            "retention_age_ms": 7 * 86_400_000,
        })  # fmt: skip
        away = self.mqtt("night-shift", "sensors/#", clean=False)
        away.disconnect()
        away.loop_stop()
        self._clients.remove(away)
        self.mqtt("dashboard", "sensors/#", clean=False)
        device = self.mqtt("device-1")
        number = 0

        def measure() -> None:
            nonlocal number
            number += 1
            value = {"celsius": 20 + number % 17 / 4, "battery": 0.93, "n": number}
            device.publish(TOPIC, json.dumps(value), qos=1)
            device.publish(f"sensors/d{2 + number % 5}/telemetry", json.dumps(value), qos=0)
            device.publish("plant/hall-1/state", "running", qos=1, retain=True)

        self._work("device", measure)
        self._live_amqp()
        self._live_kafka()
        self._bound()
        if self.is_stored:
            self.keep("machines", tier="log", local_bytes=0)
            self.keep("ledger", engine="object")

    def keep(self, name: str, count: int = 40, **settings: Any) -> None:
        """A stream whose history is in the store."""
        self.ask("POST", "/streams", {"name": name, **settings})
        self.fill(name, count)
        if "tier" in settings:
            self.ask("POST", f"/streams/{name}/tier/offload")

    def fill(self, topic: str, count: int) -> None:
        """Publish some records of the size that telemetry has."""
        for number in range(count):
            text = json.dumps({"number": number, "state": "running", "note": "x" * 400})
            self.ask("POST", "/messages", {"topic": topic, "text": text})

    def _bound(self) -> None:
        """Quotas, a ban, and a backup that is done."""
        self.ask("PUT", "/quotas/user", {"connections": 200, "publish_bytes": 2e7})
        self.ask("PUT", "/quotas/user:anonymous,client:gateway", {"requests": 500})
        self.ask("PUT", "/quotas/ip", {"connects": 100})
        self.guess(STRANGER)
        made = self.back_up("backups")
        self.until(f"/backups/{made}", lambda run: run["state"] == "done")

    def _live_amqp(self) -> None:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            self.broker.ports["amqp"],
            client_properties={"connection_name": "gateway"},
        )
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("alarms", durable=True)
        channel.queue_bind("alarms", "amq.topic", "sensors.#")
        body = json.dumps({"celsius": 19.5, "by": "gateway"}).encode()

        def pass_on() -> None:
            channel.basic_publish("amq.topic", "sensors.d1.telemetry", body)
            connection.process_data_events(0)

        self._work("gateway", pass_on, connection.close)

    def _live_kafka(self) -> None:
        producer = Producer(self._kafka(**{"client.id": "order-service"}))
        number = 0

        def order() -> None:
            nonlocal number
            number += 1
            row = json.dumps({"id": number, "total": 9.5 + number})
            producer.produce("orders", row, key=f"customer-{number % 20}")
            if number % 3 == 0:
                producer.produce(to_dotted(TOPIC), json.dumps({"celsius": 21, "by": "replay"}))
            producer.poll(0)

        self._work("orders", order, producer.flush)
        for group, topic in (("billing", "orders"), ("analytics", to_dotted(TOPIC))):
            reader = Consumer(
                self._kafka(**{
                    "group.id": group, "client.id": f"{group}-1", "auto.offset.reset": "earliest",
                    "auto.commit.interval.ms": 500,
                })
            )  # fmt: skip
            reader.subscribe([topic])
            self._work(group, lambda reader=reader: reader.consume(50, 0.2), reader.close)

    def wait(self) -> None:
        """Until everybody that is to be seen is there."""
        path = "/topics/" + TOPIC.replace("/", "%2F")
        self.until(path, lambda row: len({one["protocol"] for one in row["writers"]}) == 3)
        self.until(path, lambda row: {one["protocol"] for one in row["readers"]} >= {
            "mqtt", "kafka", "amqp"
        })  # fmt: skip

    def close(self) -> int:
        """End the clients, then the broker; its exit code."""
        self._ending.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
        return self.broker.stop()
