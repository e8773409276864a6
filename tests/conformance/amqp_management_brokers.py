"""RabbitMQ with its management plugin, ours with the same API, and how to ask either."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.amqp_brokers import RabbitMq
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog, Server
from tests.support.ports import free_ports

STATISTICS_MS = 500


class ManagedRabbitMq(RabbitMq):
    """RabbitMQ with its management plugin, that takes statistics often."""

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return super()._environment() | {
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "management_plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "management"),
        }

    def start(self) -> ManagedRabbitMq:
        port = self.ports.setdefault("amqp_management", free_ports(1)[0])
        (self.folder / "management_plugins").write_text("[rabbitmq_management].\n")
        (self.folder / "management.conf").write_text(
            "vm_memory_high_watermark.relative = 0.9\n"
            "disk_free_limit.absolute = 1MB\n"
            f"collect_statistics_interval = {STATISTICS_MS}\n"
            "management.tcp.ip = 127.0.0.1\n"
            f"management.tcp.port = {port}\n"
        )
        super().start()
        return self


def managed_onelog(folder: Path, *assignments: str) -> Onelog:
    """Ours with the management listener on."""
    return Onelog(
        folder,
        "listeners.amqp_management.enabled=true",
        *assignments,
        listeners=("amqp_management",),
    )


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: Any
    """Decoded where it is JSON."""


class Api:
    """The management API of a broker."""

    def __init__(self, server: Server, user: str | None = "guest:guest") -> None:
        self.server = server
        self.user = user

    @property
    def is_ours(self) -> bool:
        return isinstance(self.server, Onelog)

    @property
    def port(self) -> int:
        return self.server.ports["amqp_management"]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = {"content-type": "application/json", **(headers or {})}
        if self.user is not None:
            sent.setdefault(
                "authorization", f"Basic {base64.b64encode(self.user.encode()).decode()}"
            )
        data = raw if raw is not None or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, f"/api{path}", data, sent)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        kind = response.headers.get("content-type", "")
        return Answer(
            response.status,
            {name.lower(): value for name, value in response.headers.items()},
            json.loads(text) if "json" in kind and text else text,
        )

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.body

    def do(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.ask(method, path, body)
        assert answer.status in (200, 201, 204), answer
        return answer.body

    def publish(self, vhost: str, exchange: str, key: str, payload: str, **properties: Any) -> bool:
        body = {
            "properties": properties,
            "routing_key": key,
            "payload": payload,
            "payload_encoding": "string",
        }
        return bool(self.do("POST", f"/exchanges/{vhost}/{exchange}/publish", body)["routed"])

    def take(self, vhost: str, queue: str, count: int = 10, mode: str = "ack_requeue_false") -> Any:
        body = {"count": count, "ackmode": mode, "encoding": "auto"}
        return self.do("POST", f"/queues/{vhost}/{queue}/get", body)
