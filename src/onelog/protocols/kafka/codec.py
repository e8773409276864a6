"""Control messages: bytes to kio's typed requests, and version-neutral answers to bytes.

Rules:
- A handler answers with a `Body`: a dict in kio's field names, without a version. A field that a
  version does not have is dropped here; a field that the handler left out has the protocol's
  default. A name that no version has is a bug and raises.
- Unknown tagged fields of a request are skipped (KIP-482); no control request that is served has a
  known one.
- Durations and times are milliseconds as integers on our side.
- Produce and Fetch have their own path (the kernel's).
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from onelog.base.errors import ProtocolViolation
from onelog.kernel import check_shape
from onelog.protocols.kafka.apis import APIS, Api, ApiKey
from onelog.protocols.kafka.encoding import structure_writer
from onelog.protocols.kafka.schema import WireField, fields_of, known_names

Body = dict[str, Any]
"""An answer in kio's field names, for any version."""

_FRAME: Final = struct.Struct(">ii")
_FRAME_TAGGED: Final = struct.Struct(">iib")
"""Followed by an empty list of tags."""
_THROTTLE_BYTES: Final = 4
_NO_TAGS: Final = b"\0"
_NEVER_FLEXIBLE: Final = 255
_DURATION_MS_MAX: Final = 2**53
"""Nearly the largest duration that kio can hold, in both directions."""
_TIMES: Final = ("timedelta_i64", "datetime_i64")
"""Types of kio that hold less than 64 bits can."""

LONG_ROWS: Final = 1000
"""Rows of an answer that are written at once: a few milliseconds."""

FLEXIBLE_FROM: Final = bytes(
    min(APIS[key].flexible, _NEVER_FLEXIBLE) if key in APIS else _NEVER_FLEXIBLE
    for key in range(max(APIS) + 1)
)
"""For each API, the version from which its request header has tags; for the kernel."""


def decode_request(api: Api, version: int, frame: bytes, at: int) -> Any:
    """The typed request of a control API. Raises ProtocolViolation."""
    # kio allocates as many elements as an array announces; a wrong count would end the process. It
    # also refuses every unknown tag, so tags are cut out.
    _end, tagged = check_shape(
        frame, at, len(frame), _shape(api.key, version), version >= api.flexible
    )
    if tagged:
        frame, at = _without(frame, at, tagged), 0
    for before in _durations(api.key, version):
        frame = _saturated(frame, check_shape(frame, at, len(frame), before, False)[0])
    try:
        body, _size = _reader(api.key, version)(frame, at)
    except (SerialError, ValueError, OverflowError, LookupError) as error:
        raise ProtocolViolation(
            f"a request {api.key.name} version {version} cannot be read: {error}"
        ) from None
    return body


def _without(frame: bytes, at: int, tagged: list[tuple[int, int]]) -> bytes:
    """The request from `at` on, with no tagged field in any structure."""
    pieces: list[bytes] = []
    for start, end in tagged:
        pieces += (frame[at:start], _NO_TAGS)
        at = end
    pieces.append(frame[at:])
    return b"".join(pieces)


def _saturated(frame: bytes, at: int) -> bytes:
    """A request whose milliseconds at `at` are reduced to what kio can hold: a client may send any
    number, and 285,000 years are as good as for ever."""
    value = int.from_bytes(frame[at : at + 8], "big", signed=True)
    held = max(-_DURATION_MS_MAX, min(value, _DURATION_MS_MAX))
    if held == value:
        return frame
    return frame[:at] + held.to_bytes(8, "big", signed=True) + frame[at + 8 :]


@cache
def _durations(key: ApiKey, version: int) -> tuple[bytes, ...]:
    """For each duration of 64 bits in a request: the shape of the bytes before it."""
    schema: Any = load_request_schema(int(key), version)
    before, found = b"", []
    for field in fields_of(schema):
        if field.structure is not None and _has_time(field.structure):
            raise AssertionError(f"{schema} has a time in {field.name} that kio may not hold")
        if field.kind in _TIMES:
            assert not schema.__flexible__
            found.append(before)
        before += _field_shape(field, bool(schema.__flexible__))[0]
    return tuple(found)


def _has_time(schema: Any) -> bool:
    return any(
        field.kind in _TIMES or (field.structure is not None and _has_time(field.structure))
        for field in fields_of(schema)
    )


@cache
def _shape(key: ApiKey, version: int) -> bytes:
    """The shape of a request, for the kernel (`kernel/pure/kafka_shape.py`)."""
    return _shape_of(load_request_schema(int(key), version))[0]


def _shape_of(schema: Any) -> tuple[bytes, int]:
    """The program of a structure, and its least number of bytes."""
    flexible = bool(schema.__flexible__)
    program, least = b"", 0
    for field in fields_of(schema):
        if field.tag is not None:
            raise AssertionError(f"{schema} has a tag, {field.name}, that would be cut out")
        part, part_least = _field_shape(field, flexible)
        program += part
        least += part_least
    return (program + b"T", least + 1) if flexible else (program, least)


def _field_shape(field: WireField, flexible: bool) -> tuple[bytes, int]:
    """The program of a field, and its least number of bytes."""
    part, least = _SHAPES[field.kind] if field.structure is None else _shape_of(field.structure)
    if part in (b"S", b"B"):
        least = 1 if flexible else least
    if field.is_array:
        array = b"A" if field.is_nullable else b"L"  # kio would read a null in both
        part = array + bytes((min(least, 255),)) + struct.pack(">H", len(part)) + part
        return part, 1 if flexible else 4
    if field.may_be_absent:
        return b"N" + struct.pack(">H", len(part)) + part, 1
    return part, least


def _fixed(size: int) -> tuple[bytes, int]:
    return b"F" + bytes((size,)), size


_SHAPES: Final[dict[str, tuple[bytes, int]]] = {
    "bool": _fixed(1),
    "int8": _fixed(1),
    "int16": _fixed(2),
    "int32": _fixed(4),
    "int64": _fixed(8),
    "uint16": _fixed(2),
    "float64": _fixed(8),
    "uuid": _fixed(16),
    "error_code": _fixed(2),
    "timedelta_i32": _fixed(4),
    "timedelta_i64": _fixed(8),
    "datetime_i64": _fixed(8),
    "string": (b"S", 2),
    "bytes": (b"B", 4),
    "records": (b"B", 4),
}
"""How to skip each type of the protocol's schemas, and its least number of bytes."""


@cache
def _reader(key: ApiKey, version: int) -> Callable[[Any, int], tuple[Any, int]]:
    reader: Callable[[Any, int], tuple[Any, int]] = entity_reader(
        load_request_schema(int(key), version)
    )
    return reader


def given(body: Any, name: str, default: Any) -> Any:
    """A field that older versions of a request do not have."""
    return getattr(body, name, default)


def millis(value: datetime.timedelta | datetime.datetime | None, default: int = -1) -> int:
    """A duration or time of a request as milliseconds."""
    if value is None:
        return default
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value // datetime.timedelta(milliseconds=1)


# -- answers


def encode_response(api: Api, version: int, correlation_id: int, body: Body | bytes) -> bytes:
    """The whole frame of an answer, from fields or from a body that its handler has encoded."""
    # ApiVersions has the old header at every version: the client asks it before it knows the
    # versions of the broker.
    tagged = version >= api.flexible and api.key is not ApiKey.API_VERSIONS
    if isinstance(body, bytes):  # it may be large: copied once
        end = _NO_TAGS if tagged else b""
        return _FRAME.pack(4 + len(end) + len(body), correlation_id) + end + body
    out = bytearray(_FRAME_TAGGED.size if tagged else _FRAME.size)
    _response_writer(api.key, version)(out, body)
    _FRAME.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def throttled(api: Api, version: int, body: Body | bytes, throttle_ms: int) -> Body | bytes:
    """An answer that also says for how long its client is held back, if the API can say that."""
    if api.key not in APIS:
        return body
    if isinstance(body, dict):
        return body | {"throttle_time": throttle_ms} if _can_throttle(api.key, None) else body
    if not _can_throttle(api.key, version):
        return body
    return throttle_ms.to_bytes(_THROTTLE_BYTES, "big") + body[_THROTTLE_BYTES:]


@cache
def _can_throttle(key: ApiKey, version: int | None) -> bool:
    """Whether an answer has a throttle time: of any version, or as the first field of one."""
    if version is None:
        return "throttle_time" in known_names(key)
    schema: Any = load_response_schema(int(key), version)
    return next(iter(fields_of(schema))).name == "throttle_time"


def is_long(body: Body | bytes | None) -> bool:
    """Whether an answer has so many rows that encoding them would hold the loop."""
    left, inside = LONG_ROWS, [body]
    while inside:
        part = inside.pop()
        if not isinstance(part, dict):
            continue
        for rows in part.values():
            if isinstance(rows, list):
                left -= len(rows)
                if left < 0:
                    return True
                inside += rows
    return False


@cache
def _response_writer(key: ApiKey, version: int) -> Callable[[bytearray, Body], None]:
    return structure_writer(load_response_schema(int(key), version))


@cache
def element_writer(key: ApiKey, version: int, *path: str) -> Callable[[Body], bytes]:
    """Encodes one element of an answer's array alone; `path` are the names of the arrays."""
    schema: Any = load_response_schema(int(key), version)
    for name in path:
        (schema,) = (field.structure for field in fields_of(schema) if field.name == name)
    write = structure_writer(schema)

    def written(body: Body) -> bytes:
        out = bytearray()
        write(out, body)
        return bytes(out)

    return written
