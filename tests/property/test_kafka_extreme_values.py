"""Numbers of requests may be as large and as small as their fields: each request is answered.

A request that is written as the protocol says, with whatever numbers, ends no connection and raises
nothing. It is answered, or waits for what it asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema

from onelog.config import Config
from onelog.config.kafka import Kafka, KafkaGroups
from onelog.protocols.kafka.apis import APIS, Api, ApiKey
from onelog.protocols.kafka.encoding import structure_writer
from onelog.protocols.kafka.schema import fields_of
from tests.support.kafka_hub import Client, batch, desk
from tests.support.turns import passes_until

K = ApiKey
BITS = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "timedelta_i32": 32,
    "timedelta_i64": 64,
    "datetime_i64": 64,
}
TEXTS = {
    "group_id": "g",
    "name": "t",
    "topic": "t",
    "topic_name": "t",
    "resource_name": "t",
    "transactional_id": "x",
    "v3_and_below_transactional_id": "x",
    "protocol_type": "consumer",
    "mechanism": "PLAIN",
    "host": "h",
    "path": "/",
}
"""What is named by strings, so that requests get beyond the first look."""
NUMBERS = {"acks": 1}
"""What is not 0 unless a case says so: an error that nobody waits for ends the connection."""
BYTES = {"records": batch(b"x")}
WAITS = {
    K.JOIN_GROUP: "the others that may join",
    K.SYNC_GROUP: "the leader",
    K.FETCH: "records",
}
"""What is not answered at once, and what it waits for."""
PASSES = 300
"""Passes of the loop in which whatever waits for no one is answered."""
CASES = [
    (api, version)
    for api in APIS.values()
    for version in range(max(api.first, api.served), api.last + 1)
    if not api.before_login or api.key is K.API_VERSIONS
]

Path_ = tuple[str, ...]


def numbers(schema: Any, path: Path_ = ()) -> Iterator[tuple[Path_, int]]:
    """The way to each number of a request, and its bits."""
    for field in fields_of(schema):
        here = (*path, field.name)
        if field.structure is not None:
            yield from numbers(field.structure, here)
        elif field.kind in BITS:
            yield here, BITS[field.kind]


def body_of(schema: Any, values: dict[Path_, int], path: Path_ = ()) -> dict[str, Any]:
    """A request with one element in each array."""
    body: dict[str, Any] = {}
    for field in fields_of(schema):
        here = (*path, field.name)
        if field.structure is not None:
            value: Any = body_of(field.structure, values, here)
        elif field.kind in BITS:
            value = values.get(here, NUMBERS.get(field.name, 0))
        elif field.kind in ("bytes", "records"):
            value = BYTES.get(field.name, b"")
        else:
            value = TEXTS.get(field.name, field.default)
            if field.kind == "string" and not field.is_array and value is None:
                value = "t"
            if field.is_array:
                value = TEXTS.get(field.name, "t" if field.kind == "string" else 0)
        body[field.name] = [value] if field.is_array else value
    return body


def extremes(schema: Any) -> Iterator[dict[Path_, int]]:
    """Each number at its ends, alone and together with all others."""
    found = list(numbers(schema))
    ends = (lambda bits: -(2 ** (bits - 1)), lambda bits: 2 ** (bits - 1) - 1)
    others = (lambda _: -1, lambda _: 0, lambda _: 1)
    for end in (*ends, *others):
        yield {path: end(bits) for path, bits in found}
    for path, bits in found:
        for end in (*ends, others[0]):
            yield {path: end(bits)}


def frame(api: Api, version: int, body: dict[str, Any]) -> bytes:
    data = bytearray(struct.pack(">hhih", api.key, version, 7, 4) + b"test")
    data += b"\0" if version >= api.flexible else b""
    structure_writer(load_request_schema(int(api.key), version))(data, body)
    return struct.pack(">i", len(data)) + data


@pytest.fixture(scope="module")
def config() -> Config:
    return Config(kafka=Kafka(groups=KafkaGroups(initial_rebalance_delay_ms=0)))


async def ask(client: Client, request: bytes, *, waits: bool) -> None:
    """Until the answer came; what may wait for others has some passes of the loop."""
    left, line = iter(range(PASSES)), client.line
    client.send(request)
    await passes_until(lambda: line.written or line.closed or (waits and next(left, None) is None))


@pytest.mark.parametrize(
    ("api", "version"), CASES, ids=[f"{api.key.name}-{version}" for api, version in CASES]
)
async def test_no_number_of_a_request_ends_its_connection(
    tmp_path: Path, config: Config, api: Api, version: int
) -> None:
    schema = load_request_schema(int(api.key), version)
    async with desk(tmp_path, config) as wire:
        writer = wire.client()
        writer.send(writer.produce(batch(b"1"), batch(b"2")))
        await writer.wait_for(1)
        for values in extremes(schema):
            client = wire.client()
            waits = api.key in WAITS or is_silent(api, values)
            await ask(client, frame(api, version, body_of(schema, values)), waits=waits)
            assert not client.line.closed, values
            client.connection.connection_lost(None)
        assert wire.hub.counters.protocol_errors == 0


def is_silent(api: Api, values: dict[Path_, int]) -> bool:
    """A produce that asks for no answer."""
    return api.key is K.PRODUCE and values.get(("acks",)) == 0
