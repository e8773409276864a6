"""Real MQTT clients behind one small face, so that each scenario is written once.

Rules: a client runs in its own way (threads, asyncio, a process); the face blocks. Messages are
(topic, payload, qos, retain). Connecting, subscribing and publishing return when the broker has
answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

DEADLINE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]
MQTT_JS = ROOT / "build" / "js" / "node_modules" / "mqtt"


class Message(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool


class RealClient(Protocol):
    """The face."""

    session_present: bool

    def connect(self) -> None: ...
    def subscribe(self, text: str, qos: int) -> None: ...
    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None: ...
    def receive(self) -> Message: ...
    def disconnect(self) -> None: ...
    def vanish(self) -> None: ...


class Options(NamedTuple):
    """What a scenario asks of a client."""

    port: int
    client_id: str
    keep_session: bool = False
    will_topic: str | None = None


class Inbox:
    def __init__(self) -> None:
        self._arrived: queue.Queue[Message] = queue.Queue()
        self.session_present = False

    def arrived(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        self._arrived.put(Message(topic, bytes(payload), qos, bool(retain)))

    def receive(self) -> Message:
        return self._arrived.get(timeout=DEADLINE_S)


class Paho(Inbox):
    """paho-mqtt, its network loop in a thread."""

    def __init__(self, options: Options, version: int, transport: str = "tcp") -> None:
        super().__init__()
        self._options = options
        self._version = version
        clean = {} if version == paho.MQTTv5 else {"clean_session": not options.keep_session}
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            protocol=version,  # type: ignore[arg-type]
            transport=transport,  # type: ignore[arg-type]
            **clean,
        )
        if transport == "websockets":
            self._client.ws_set_options(path="/mqtt")
        if options.will_topic is not None:
            self._client.will_set(options.will_topic, b"gone", 1)
        self._connected = threading.Event()
        self._answered: queue.Queue[Any] = queue.Queue()
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._answered.put(None)
        self._client.on_message = lambda _c, _u, m: self.arrived(
            m.topic, m.payload, m.qos, m.retain
        )

    def _on_connect(self, _client, _data, flags, reason, _properties) -> None:
        assert not reason.is_failure, reason
        self.session_present = flags.session_present
        self._connected.set()

    def connect(self) -> None:
        more: dict[str, Any] = {}
        if self._version == paho.MQTTv5:
            properties = PahoProperties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 600 if self._options.keep_session else 0
            more = {"clean_start": not self._options.keep_session, "properties": properties}
        self._client.connect("127.0.0.1", self._options.port, 60, **more)
        self._client.loop_start()
        assert self._connected.wait(DEADLINE_S)

    def subscribe(self, text: str, qos: int) -> None:
        self._client.subscribe(text, qos)
        self._answered.get(timeout=DEADLINE_S)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        self._client.publish(topic, payload, qos, retain).wait_for_publish(DEADLINE_S)

    def disconnect(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def vanish(self) -> None:
        self._client.socket().close()  # type: ignore[union-attr]
        self._client.loop_stop()


class LoopClient(Inbox):
    """A client that needs an event loop: one in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        async def cancel() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with contextlib.suppress(TimeoutError):
            self.run(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class Aiomqtt(LoopClient):
    """aiomqtt."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options

    def connect(self) -> None:
        async def work() -> None:
            will = self._options.will_topic
            properties = PahoProperties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 600 if self._options.keep_session else 0
            self._client = aiomqtt.Client(
                "127.0.0.1",
                self._options.port,
                identifier=self._options.client_id,
                protocol=aiomqtt.ProtocolVersion.V5,
                clean_start=not self._options.keep_session,
                properties=properties,
                will=None if will is None else aiomqtt.Will(will, b"gone", 1),
            )
            inner = self._client._client
            told = inner.on_connect

            def on_connect(client, data, flags, *rest) -> None:
                self.session_present = flags.session_present
                told(client, data, flags, *rest)

            inner.on_connect = on_connect
            await self._client.__aenter__()
            self._reading = asyncio.create_task(self._read())

        self.run(work())

    async def _read(self) -> None:
        async for message in self._client.messages:
            self.arrived(str(message.topic), message.payload, message.qos, message.retain)

    def subscribe(self, text: str, qos: int) -> None:
        self.run(self._client.subscribe(text, qos))

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        self.run(self._client.publish(topic, payload, qos, retain))

    def disconnect(self) -> None:
        self._loop.call_soon_threadsafe(self._reading.cancel)
        self.run(self._client.__aexit__(None, None, None))
        self.stop()

    def vanish(self) -> None:
        self._loop.call_soon_threadsafe(self._reading.cancel)
        self._client._client._sock_close()
        self.stop()


class Gmqtt(LoopClient):
    """gmqtt."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options

    def connect(self) -> None:
        async def work() -> None:
            options = self._options
            will = None
            if options.will_topic is not None:
                will = gmqtt.Message(options.will_topic, b"gone", qos=1, retain=False)
            self._client = gmqtt.Client(
                options.client_id,
                clean_session=not options.keep_session,
                will_message=will,
                session_expiry_interval=600 if options.keep_session else 0,
            )
            self._client.set_config({"reconnect_retries": 0})
            self._subscribed: asyncio.Queue[Any] = asyncio.Queue()
            self._client.on_connect = self._on_connect
            self._client.on_message = self._on_message
            self._client.on_subscribe = lambda *_: self._subscribed.put_nowait(None)
            await self._client.connect("127.0.0.1", options.port, version=5)

        self.run(work())

    def _on_connect(self, _client, flags, _code, _properties) -> None:
        self.session_present = bool(flags & 1)

    def _on_message(self, _client, topic, payload, qos, properties) -> int:
        self.arrived(topic, payload, qos, properties.get("retain", False))
        return 0

    def subscribe(self, text: str, qos: int) -> None:
        async def work() -> None:
            self._client.subscribe(text, qos)
            await self._subscribed.get()

        self.run(work())

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        async def work() -> None:
            self._client.publish(topic, payload, qos=qos, retain=retain)
            while not self._client._persistent_storage.is_empty:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)

        self.run(work())

    def disconnect(self) -> None:
        self.run(self._client.disconnect())
        self.stop()

    def vanish(self) -> None:
        async def work() -> None:
            self._client._connection._transport.abort()

        self.run(work())
        self.stop()


class MqttJs(Inbox):
    """MQTT.js in a process of its own, told what to do line by line."""

    def __init__(self, options: Options, url: str, version: int) -> None:
        super().__init__()
        self._answers: queue.Queue[Any] = queue.Queue()
        node = shutil.which("node")
        assert node is not None
        self._process = subprocess.Popen(
            [node, str(Path(__file__).with_name("mqtt_js_client.js")), str(MQTT_JS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._connect = {
            "do": "connect",
            "url": url,
            "options": {
                "clientId": options.client_id,
                "protocolVersion": version,
                "clean": not options.keep_session,
                "reconnectPeriod": 0,
                **({"protocolId": "MQTT"}),
                **(
                    {"properties": {"sessionExpiryInterval": 600}}
                    if version == 5 and options.keep_session
                    else {}
                ),
                **(
                    {"will": {"topic": options.will_topic, "payload": "gone", "qos": 1}}
                    if options.will_topic
                    else {}
                ),
            },
        }

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            row = json.loads(line)
            if "message" in row:
                topic, payload, qos, retain = row["message"]
                self.arrived(topic, bytes.fromhex(payload), qos, retain)
            else:
                self._answers.put(row)

    def _ask(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = self._answers.get(timeout=DEADLINE_S)
        assert "error" not in answer, answer
        return answer

    def connect(self) -> None:
        self.session_present = self._ask(**self._connect)["session_present"]

    def subscribe(self, text: str, qos: int) -> None:
        self._ask(do="subscribe", filter=text, qos=qos)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        self._ask(do="publish", topic=topic, payload=payload.hex(), qos=qos, retain=retain)

    def disconnect(self) -> None:
        self._ask(do="end")
        self._stop()

    def vanish(self) -> None:
        self._process.kill()
        self._stop()

    def _stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        self._process.stdout.close()
