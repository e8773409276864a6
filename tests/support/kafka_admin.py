"""The admin handlers on a real hub and broker, without a socket: any request at any version."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from onelog.base.clock import ManualClock
from onelog.broker import Action, AllowAll, Broker, Kind, Principal
from onelog.config import Config
from onelog.config.listeners import KafkaListener
from onelog.net import Peer
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.codec import encode_response
from onelog.protocols.kafka.connection import Connection
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.handlers import HANDLERS
from onelog.protocols.kafka.hub import Hub
from onelog.protocols.kafka.request import Request
from onelog.security.authenticator import Authenticator, SecuritySettings
from tests.support.brokers import running
from tests.support.kafka_entities import entity

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
PEER = Peer(host="127.0.0.1", port=4711, via="tcp", listener="kafka", listener_is_loopback=True)


class Denies(AllowAll):
    """Lets nobody do one thing to one topic, or to a part of the server."""

    def __init__(self, action: Action, resource: str) -> None:
        super().__init__()
        self._denied = (action, resource)

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        del principal, kind
        return (action, resource) != self._denied


class Desk:
    """A hub, and an administrator at it."""

    def __init__(self, hub: Hub, clock: ManualClock) -> None:
        self.hub = hub
        self.broker: Broker = hub.broker
        self.clock = clock
        self._connection = Connection(hub, PEER, KafkaListener())
        self._connection.principal = Principal("admin", "kafka")

    async def ask(self, key: ApiKey, version: int | None = None, /, **body: Any) -> Any:
        """The answer to a request, as a client of that version reads it."""
        api = APIS[key]
        number = api.last if version is None else version
        schema: Any = load_request_schema(int(key), number)
        request = Request(api, number, 1, "test", entity(schema, body), self._connection)
        answer = await HANDLERS[key](self.hub, request)
        assert answer is not None
        frame = encode_response(api, number, 1, answer)
        at = 9 if number >= api.flexible else 8
        read, size = entity_reader(load_response_schema(int(key), number))(frame, at)
        assert at + size == len(frame)
        return read

    async def create(
        self,
        name: str,
        partitions: int = -1,
        replicas: int = -1,
        *,
        version: int | None = None,
        validate_only: bool = False,
        assignments: Sequence[Any] = (),
        **configs: str | None,
    ) -> Any:
        """Make one topic; dots of settings are written as two underscores."""
        answer = await self.ask(
            ApiKey.CREATE_TOPICS,
            version,
            topics=[new_topic(name, partitions, replicas, assignments, configs)],
            timeout=1000,
            validate_only=validate_only,
        )
        (row,) = answer.topics
        return row

    async def delete(self, *names: str) -> list[ErrorCode]:
        answer = await self.ask(
            ApiKey.DELETE_TOPICS,
            topics=[{"name": name, "topic_id": None} for name in names],
            timeout=1000,
        )
        return [row.error_code for row in answer.responses]

    async def settings(self, name: str, kind: int = TOPIC, **rest: Any) -> dict[str, Any]:
        """Every setting of a resource, by name."""
        row = await self.describe(name, kind, **rest)
        assert row.error_code is ErrorCode.none, row
        return {config.name: config for config in row.configs}

    async def describe(
        self,
        name: str,
        kind: int = TOPIC,
        keys: Sequence[str] | None = None,
        *,
        version: int | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> Any:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        answer = await self.ask(
            ApiKey.DESCRIBE_CONFIGS,
            version,
            resources=[resource],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )
        (row,) = answer.results
        return row

    async def change(
        self,
        name: str,
        *changes: tuple[str, int, str | None],
        kind: int = TOPIC,
        validate_only: bool = False,
        version: int | None = None,
    ) -> Any:
        """IncrementalAlterConfigs of one resource."""
        rows = [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ]
        answer = await self.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            version,
            resources=[{"resource_type": kind, "resource_name": name, "configs": rows}],
            validate_only=validate_only,
        )
        (row,) = answer.responses
        return row


def new_topic(
    name: str,
    partitions: int = -1,
    replicas: int = -1,
    assignments: Sequence[Any] = (),
    configs: dict[str, str | None] | None = None,
) -> dict[str, Any]:
    """A topic of a CreateTopics request."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [
            {"partition_index": index, "broker_ids": nodes} for index, nodes in assignments
        ],
        "configs": [
            {"name": key.replace("__", "."), "value": value}
            for key, value in (configs or {}).items()
        ],
    }


@contextlib.asynccontextmanager
async def desk(
    path: Path, config: Config | None = None, clock: ManualClock | None = None, **hooks: Any
) -> AsyncIterator[Desk]:
    """An administrator at a hub, for the length of a block."""
    clock = clock or ManualClock()
    async with running(path, clock=clock, **hooks) as broker:
        authenticator = await Authenticator.open(broker.store, clock, SecuritySettings())
        hub = Hub(broker, authenticator, config or Config(data_dir=str(path)), clock)
        await hub.open()
        try:
            yield Desk(hub, clock)
        finally:
            await hub.close()
            await authenticator.close()
