"""Kafka connections without a network: a hub on a real broker, bytes in and answers out."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib
import io
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from onelog.base.clock import ManualClock
from onelog.broker import Broker, Durability, StreamConfig
from onelog.config import Config
from onelog.log.partition import Partition
from onelog.net import Peer
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.connection import Connection
from onelog.protocols.kafka.hub import Hub
from onelog.record.batch import build_batch
from onelog.security.authenticator import Authenticator
from tests.support.brokers import running
from tests.support.turns import passes_until

DEADLINE_S = 30.0


class Line:
    """A transport that keeps what it is given; each entry of `written` was one write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True

    def writelines(self, chunks: list[Any]) -> None:
        self.written.append(b"".join(chunks))

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 9092) if name == "sockname" else default


class Client:
    """One connection: requests as kio entities or raw bytes, answers as kio entities."""

    def __init__(self, hub: Hub) -> None:
        self.line = Line()
        self.connection = Connection(
            hub,
            Peer(host="127.0.0.1", port=1, via="tcp", listener="kafka", listener_is_loopback=True),
            hub.config.listeners.kafka,
        )
        self.connection.connection_made(self.line)
        self._number = 0
        self._expected: dict[int, tuple[ApiKey, int]] = {}
        self._read = 0

    def frame(self, key: ApiKey, version: int, body: Any) -> bytes:
        """A request as bytes; its answer is then known by its number."""
        out = io.BytesIO()
        entity_writer(type(body))(out, body)
        self._number += 1
        self._expected[self._number] = (key, version)
        head = struct.pack(">hhih", key, version, self._number, 4) + b"test"
        head += b"\0" if version >= APIS[key].flexible else b""
        data = head + out.getvalue()
        return struct.pack(">i", len(data)) + data

    def send(self, *frames: bytes) -> None:
        """Let the connection read some requests at once."""
        self.connection.data_received(b"".join(frames))

    def produce(self, *batches: bytes | None, **changes: Any) -> bytes:
        """A Produce request: one batch for each partition of a topic."""
        version, topic = changes.get("version", 9), changes.get("topic", "t")
        schema: Any = load_request_schema(0, version)
        module = importlib.import_module(schema.__module__)
        partitions = tuple(
            module.PartitionProduceData(index=index, records=batch)
            for index, batch in enumerate(batches, changes.get("partition", 0))
        )
        body = schema(
            transactional_id=changes.get("transactional_id"),
            acks=changes.get("acks", -1),
            timeout=datetime.timedelta(seconds=1),
            topic_data=(module.TopicProduceData(name=topic, partition_data=partitions),),
        )
        return self.frame(ApiKey.PRODUCE, version, body)

    def answers(self) -> list[Any]:
        """What came since the last call, in the order in which it came."""
        data, found = b"".join(self.line.written)[self._read :], []
        while data:
            (size,) = struct.unpack_from(">i", data)
            (number,) = struct.unpack_from(">i", data, 4)
            key, version = self._expected.pop(number)
            at = 9 if version >= APIS[key].flexible else 8
            body, used = entity_reader(load_response_schema(int(key), version))(data, at)
            assert at + used == size + 4
            found.append((number, body))
            data = data[size + 4 :]
            self._read += size + 4
        return found

    async def wait_for_bytes(self) -> None:
        """Until an answer is written, or the connection ended; it is not read yet."""
        before, line = len(self.line.written), self.line
        await passes_until(lambda: len(line.written) > before or line.closed)

    async def wait_for(self, count: int) -> list[Any]:
        """So many answers, as soon as they are there."""
        found = self.answers()
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < count:
                await asyncio.sleep(0.001)
                found += self.answers()
        return found


def rows_of(answer: Any) -> list[tuple[int, int, int]]:
    """(partition, error code, base offset) of a Produce answer."""
    return [
        (row.index, int(row.error_code), row.base_offset)
        for topic in answer.responses
        for row in topic.partition_responses
    ]


def batch(*values: bytes, **fields: Any) -> bytes:
    """A batch as a client builds it."""
    rows = [(None, b"k", value, (), 1000) for value in values]
    return build_batch(rows, base_offset=0, tag_topics=False, **fields)


class Desk:
    """A hub, and the topic `t` with two partitions."""

    def __init__(self, broker: Broker, hub: Hub) -> None:
        self.broker = broker
        self.hub = hub

    def client(self) -> Client:
        return Client(self.hub)

    def log(self, number: int = 0, topic: str = "t") -> Partition:
        return self.hub.topics.get(topic).partition(number).log

    async def make(self, topic: str, **changes: Any) -> None:
        settings = {"durability": Durability.OS, "message_bytes_max": 1_000_000} | changes
        config = StreamConfig(name=topic, captures=(topic,), partitions=2, **settings)
        await self.broker.streams.create(config)


@contextlib.asynccontextmanager
async def desk(
    path: Path,
    config: Config | None = None,
    prepare: Callable[[Broker], object] = lambda _broker: None,
    **hooks: Any,
) -> AsyncIterator[Desk]:
    """A desk for the length of a block. The broker is prepared before the hub opens."""
    clock = ManualClock()
    async with running(path, clock=clock, **hooks) as broker:
        prepare(broker)
        authenticator = await Authenticator.open(broker.store, clock)
        hub = Hub(broker, authenticator, config or Config(), clock)
        await hub.open()
        made = Desk(broker, hub)
        await made.make("t")
        try:
            yield made
        finally:
            await hub.close()
            await authenticator.close()


def fetch_body(topic: str, partition: int = 0, offset: int = 0) -> Any:
    """A Fetch request (version 4) that waits for nothing."""
    schema: Any = load_request_schema(1, 4)
    module = importlib.import_module(schema.__module__)
    wanted = module.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    return schema(
        replica_id=-1,
        max_wait=datetime.timedelta(0),
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=(module.FetchTopic(topic=topic, partitions=(wanted,)),),
    )
