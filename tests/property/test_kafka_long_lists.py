"""Lists of requests may be long: more than a byte counts (129), and more than two (65,537)."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from onelog.kernel.pure import kafka_request as pure
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.codec import decode_request
from onelog.protocols.kafka.schema import fields_of
from tests.support.kafka_entities import entity

try:
    from onelog.kernel import _native as native
except ImportError:  # built without the compiler
    native = pure

COUNTS = (129, 65_537)
CONTROL = [api for api in APIS.values() if api.key not in (ApiKey.PRODUCE, ApiKey.FETCH)]


def lists(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every array of a request, through arrays and structures."""
    for field in fields_of(schema):
        if field.is_array:
            yield (*path, field.name)
        if field.structure is not None:
            yield from lists(field.structure, (*path, field.name))


LISTS = [
    (api, version, path)
    for api in CONTROL
    for version in sorted({max(api.first, api.served), api.last})
    for path in lists(load_request_schema(int(api.key), version))
]
DEEPEST = {api.key: (api, version, path) for api, version, path in LISTS}
"""Of each API one list: to write so many rows takes its time."""
CASES = [(*row, 129) for row in LISTS] + [(*row, 65_537) for row in DEEPEST.values()]
ITEMS = {"string": "", "bytes": b"", "bool": False}


def body_with(schema: Any, path: tuple[str, ...], count: int) -> Any:
    """A request with one long list; the lists around it have one element."""
    (field,) = (row for row in fields_of(schema) if row.name == path[0])
    if len(path) > 1:
        inner: Any = body_with(field.structure, path[1:], count)
        value: Any = (inner,) if field.is_array else inner
    elif field.structure is not None:
        value = (entity(field.structure, {}),) * count
    else:
        value = (ITEMS.get(field.kind, 0),) * count
    return entity(schema, {field.name: value})


def found(body: Any, path: tuple[str, ...]) -> int:
    for name in path[:-1]:
        body = getattr(body, name)
        body = body[0] if isinstance(body, tuple) else body
    return len(getattr(body, path[-1]))


@pytest.mark.parametrize(
    ("api", "version", "path", "count"),
    CASES,
    ids=[
        f"{api.key.name}-{version}-{'.'.join(path)}-{count}" for api, version, path, count in CASES
    ],
)
def test_every_list_of_a_control_request_is_read_whole(api, version, path, count) -> None:
    schema = load_request_schema(int(api.key), version)
    out = io.BytesIO()
    entity_writer(schema)(out, body_with(schema, path, count))
    assert found(decode_request(api, version, out.getvalue(), 0), path) == count


def test_the_apis_with_lists_are_all_here() -> None:
    assert len(DEEPEST) >= 35


def long_produce(version: int, count: int, *, topics: bool) -> bytes:
    flexible = version >= 9

    def size(number: int) -> bytes:
        if not flexible:
            return struct.pack(">i", number)
        number, out = number + 1, b""
        while number > 127:
            out, number = out + bytes((number & 127 | 128,)), number >> 7
        return out + bytes((number,))

    tags = b"\0" if flexible else b""
    null, name = (b"\0", b"\x02t") if flexible else (b"\xff\xff", b"\0\x01t")
    part = struct.pack(">i", 0) + (b"\0" if flexible else b"\xff\xff\xff\xff") + tags
    whole = name + size(0 if topics else count) + part * (0 if topics else count) + tags
    times = count if topics else 1
    return null + struct.pack(">hi", -1, 1000) + size(times) + whole * times + tags


@pytest.mark.parametrize("kernel", [pure, native], ids=["pure", "native"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("version", [3, 11])
@pytest.mark.parametrize("topics", [True, False])
def test_every_list_of_a_produce_is_read_whole(kernel, count, version, topics) -> None:
    data = long_produce(version, count, topics=topics)
    rows = kernel.parse_produce(data, 0, len(data), version)[3]
    assert (len(rows) if topics else len(rows[0][1])) == count


FETCH_CASES = [
    (version, path) for version in (4, 17) for path in lists(load_request_schema(1, version))
]


@pytest.mark.parametrize("kernel", [pure, native], ids=["pure", "native"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("version", "path"), FETCH_CASES)
def test_every_list_of_a_fetch_is_read_whole(kernel, count, version, path) -> None:
    schema = load_request_schema(1, version)
    out = io.BytesIO()
    entity_writer(schema)(out, body_with(schema, path, count))
    request = kernel.parse_fetch(out.getvalue(), 0, len(out.getvalue()), version)
    rows = request.topics if path[0] == "topics" else request.forgotten
    assert (len(rows) if len(path) == 1 else len(rows[0][1])) == count
