"""Tagged fields that nobody here knows are passed over wherever they stand (KIP-482)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.index import load_request_schema

from onelog import kernel as chosen
from onelog.base.errors import ProtocolViolation
from onelog.kernel import pure
from onelog.protocols.kafka import codec
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.schema import fields_of

CASES = [
    (api, version)
    for api in APIS.values()
    for version in range(max(api.first, api.served, api.flexible), api.last + 1)
]
NO_TAGS = b"\0"
TAGS = b"\x03" + b"\x07\x03abc" + b"\x08\0" + b"\xff\xff\xff\xff\x0f\x01\0"
"""Three of them: with bytes, without, and with the greatest number that there is."""
BAD_TAGS = {
    "twice": b"\x02\x07\0\x07\0",
    "out of order": b"\x02\x08\0\x07\0",
    "more than 32 bits": b"\x01\xff\xff\xff\xff\x1f\0",
    "past the end": b"\x01\x07\xff\xff\xff\x7f",
    "less than were counted": b"\xff\xff\xff\x7f",
}
PLAIN = {"string": b"\x02a", "bytes": b"\x02b", "records": b"\0"}
SIZES = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "timedelta_i32": 4, "uuid": 16}

Tags = Callable[[], bytes]


def request(schema: Any, tags: Tags) -> bytes:
    """A request with two elements in each array; `tags` ends each structure."""
    parts = []
    for field in fields_of(schema):
        if field.tag is not None:
            continue
        if field.is_array:
            parts.append(b"\x03")  # two, compact
        elif field.may_be_absent:
            parts.append(b"\x01")
        for _ in range(2 if field.is_array else 1):
            if field.structure is not None:
                parts.append(request(field.structure, tags))
            else:
                parts.append(PLAIN.get(field.kind) or bytes(SIZES.get(field.kind, 8)))
    parts.append(tags())
    return b"".join(parts)


def read(kernel: Any, api: Any, version: int, data: bytes) -> Any:
    """What a kernel or kio makes of it; where the records are does not count."""
    if api.key is ApiKey.FETCH:
        return kernel.parse_fetch(data, 0, len(data), version)
    if api.key is ApiKey.PRODUCE:
        found = kernel.parse_produce(data, 0, len(data), version)
        topics = [(name, [row[0] for row in rows]) for name, rows in found.topics]
        return found._replace(topics=topics)
    return codec.decode_request(api, version, data, 0)


@pytest.fixture(params=[pure, chosen], ids=["pure", "chosen"])
def kernel(request, monkeypatch):
    monkeypatch.setattr(codec, "check_shape", request.param.check_shape)
    return request.param


@pytest.mark.parametrize(("api", "version"), CASES)
def test_unknown_tags_of_any_structure_change_nothing(kernel, api, version) -> None:
    schema = load_request_schema(int(api.key), version)
    plain = request(schema, lambda: NO_TAGS)
    tagged = request(schema, lambda: TAGS)
    assert len(tagged) > len(plain)
    assert read(kernel, api, version, tagged) == read(kernel, api, version, plain)


@pytest.mark.parametrize(("api", "version"), CASES)
@pytest.mark.parametrize("bad", BAD_TAGS.values(), ids=BAD_TAGS)
def test_wrong_tags_of_any_structure_are_a_violation(kernel, api, version, bad) -> None:
    schema = load_request_schema(int(api.key), version)
    places = []
    request(schema, lambda: places.append(None) or NO_TAGS)
    for place in range(len(places)):
        tags = iter([NO_TAGS] * place + [bad] + [NO_TAGS] * (len(places) - place))
        data = request(schema, lambda tags=tags: next(tags))
        with pytest.raises(ProtocolViolation):
            read(kernel, api, version, data)


def header(api: Any, version: int, tags: bytes) -> bytes:
    return int(api.key).to_bytes(2) + version.to_bytes(2) + bytes(4) + b"\0\x01c" + tags


@pytest.mark.parametrize(("api", "version"), CASES)
def test_tags_of_a_header_are_passed_over_or_a_violation(kernel, api, version) -> None:
    data = header(api, version, TAGS) + b"body"
    found = kernel.parse_request_header(data, 0, len(data), codec.FLEXIBLE_FROM)
    assert found == (api.key, version, 0, "c", len(data) - 4)
    for bad in BAD_TAGS.values():
        data = header(api, version, bad)
        with pytest.raises(ProtocolViolation):
            kernel.parse_request_header(data, 0, len(data), codec.FLEXIBLE_FROM)


@pytest.mark.parametrize("version", range(15, 18))
def test_the_state_of_a_replica_may_have_tags_of_its_own(kernel, version) -> None:
    schema = load_request_schema(int(ApiKey.FETCH), version)
    body = request(schema, lambda: NO_TAGS)[:-1]

    def parsed(state: bytes) -> int:
        data = body + b"\x01\x01" + bytes((len(state),)) + state
        return int(kernel.parse_fetch(data, 0, len(data), version).replica_id)

    known = (5).to_bytes(4) + bytes(8)
    assert parsed(known + NO_TAGS) == parsed(known + TAGS) == 5
    for bad in (known, known[:-1], known + BAD_TAGS["twice"]):
        with pytest.raises(ProtocolViolation):
            parsed(bad)
