"""Control messages: bytes to kio's typed requests, and version-neutral answers to bytes.

Rules:
- A handler answers with a `Body`: a dict in kio's field names that knows nothing of versions. What
  a version lacks is dropped here, what the handler left out takes the protocol's default. A name
  that no version has is a bug and raises.
- Durations and times are milliseconds as integers on our side.
- Produce and Fetch have their own path (the kernel's).
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import struct
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from onelog.base.errors import ProtocolViolation
from onelog.kernel import check_shape
from onelog.protocols.kafka.apis import APIS, Api, ApiKey
from onelog.protocols.kafka.errors import ErrorCode

Body = dict[str, Any]
"""An answer in kio's field names, whatever the version."""

_FRAME: Final = struct.Struct(">ii")
_FRAME_TAGGED: Final = struct.Struct(">iib")
_NEVER_FLEXIBLE: Final = 255

FLEXIBLE_FROM: Final = bytes(
    min(APIS[key].flexible, _NEVER_FLEXIBLE) if key in APIS else _NEVER_FLEXIBLE
    for key in range(max(APIS) + 1)
)
"""Per API the version from which its request header has tags, for the kernel."""


def decode_request(api: Api, version: int, frame: bytes, at: int) -> Any:
    """The typed request of a control API. Raises ProtocolViolation."""
    # kio makes room for as many elements as an array says; a wrong count would end the process.
    check_shape(frame, at, len(frame), _shape(api.key, version), version >= api.flexible)
    try:
        body, _size = _reader(api.key, version)(frame, at)
    except (SerialError, ValueError, OverflowError) as error:
        raise ProtocolViolation(
            f"a request {api.key.name} version {version} cannot be read: {error}"
        ) from None
    return body


@cache
def _shape(key: ApiKey, version: int) -> bytes:
    """What a request looks like, for the kernel (`kernel/pure/kafka_shape.py`)."""
    return _shape_of(load_request_schema(int(key), version))[0]


def _shape_of(schema: Any) -> tuple[bytes, int]:
    """The program of a structure, and the least bytes that it has."""
    flexible = bool(schema.__flexible__)
    program, least = b"", 0
    for field in dataclasses.fields(schema):
        inner, is_array = _inner(_hints(schema)[field.name])
        if "tag" in field.metadata:
            assert not is_array and not dataclasses.is_dataclass(inner), "a tag that has counts"
            continue
        part, part_least = (
            _shape_of(inner)
            if dataclasses.is_dataclass(inner)
            else _SHAPES[field.metadata["kafka_type"]]
        )
        if part in (b"S", b"B"):
            part_least = 1 if flexible else part_least
        if is_array:
            part = b"A" + bytes((min(part_least, 255),)) + struct.pack(">H", len(part)) + part
            part_least = 1 if flexible else 4
        program += part
        least += part_least
    return (program + b"T", least + 1) if flexible else (program, least)


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
"""How each type of the protocol's schemas is passed over, and its least bytes."""


@cache
def _reader(key: ApiKey, version: int) -> Callable[[Any, int], tuple[Any, int]]:
    reader: Callable[[Any, int], tuple[Any, int]] = entity_reader(
        load_request_schema(int(key), version)
    )
    return reader


def given(body: Any, name: str, default: Any) -> Any:
    """A field that older versions of a request lack."""
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
    """The whole frame of an answer; its body as fields, or written by its handler already."""
    out = io.BytesIO()
    if version >= api.flexible and api.key is not ApiKey.API_VERSIONS:
        out.write(b"\0" * _FRAME_TAGGED.size)
        head = _FRAME_TAGGED
    else:
        # ApiVersions is answered with the old header at every version: the client asks it before
        # it knows what the broker speaks.
        out.write(b"\0" * _FRAME.size)
        head = _FRAME
    if isinstance(body, bytes):
        out.write(body)
    else:
        build, write = _writer(api.key, version)
        write(out, build(body))
    frame = out.getbuffer()
    size = len(frame) - 4
    frame[: head.size] = (
        head.pack(size, correlation_id) if head is _FRAME else head.pack(size, correlation_id, 0)
    )
    return frame.tobytes()


@cache
def element_writer(key: ApiKey, version: int, *path: str) -> Callable[[Body], bytes]:
    """Writes one element of an answer's array by itself; `path` are the names of the arrays."""
    schema: Any = load_response_schema(int(key), version)
    for name in path:
        schema = _inner(_hints(schema)[name])[0]
    build, write = _builder(schema), entity_writer(schema)

    def written(body: Body) -> bytes:
        out = io.BytesIO()
        write(out, build(body))
        return out.getvalue()

    return written


@cache
def _writer(
    key: ApiKey, version: int
) -> tuple[Callable[[Body], Any], Callable[[io.BytesIO, Any], None]]:
    schema: Any = load_response_schema(int(key), version)
    return _builder(schema), entity_writer(schema)


@cache
def known_names(key: ApiKey) -> frozenset[str]:
    """Every field name that some version of an API's answer has, at any depth."""
    found: set[str] = set()
    for version in range(0, 20):
        try:
            schema: Any = load_response_schema(int(key), version)
        except Exception as error:  # noqa: BLE001 - kio has no such version
            del error
            continue
        found |= _names(schema)
    return frozenset(found)


def _names(schema: Any) -> set[str]:
    found = set()
    for field in dataclasses.fields(schema):
        found.add(field.name)
        inner = _inner(_hints(schema)[field.name])[0]
        if dataclasses.is_dataclass(inner):
            found |= _names(inner)
    return found


@cache
def _hints(schema: Any) -> dict[str, Any]:
    return get_type_hints(schema)


def _inner(hint: Any) -> tuple[Any, bool]:
    """The type inside of optionals and arrays, and whether it is an array."""
    origin = get_origin(hint)
    if origin in (UnionType, Union):
        (rest,) = (arg for arg in get_args(hint) if arg is not NoneType)
        return _inner(rest)
    if origin is tuple:
        return _inner(get_args(hint)[0])[0], True
    return hint, False


def _duration(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "error_code": ErrorCode,
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "datetime_i64": lambda value: datetime.datetime.fromtimestamp(value / 1000, datetime.UTC),
}

_IMPLICIT: Final[dict[str, Any]] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "bool": False,
    "uuid": uuid.UUID(int=0),
    "float64": 0.0,
}
"""What a field has that neither the handler nor kio gives a value; every other type has 0."""


@cache
def _builder(schema: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Makes an instance of a kio class from a Body."""
    plan = []
    for field in dataclasses.fields(schema):
        inner, is_array = _inner(_hints(schema)[field.name])
        convert: Callable[[Any], Any] | None = None
        if dataclasses.is_dataclass(inner):
            convert = _builder(inner)  # type: ignore[arg-type]
        else:
            convert = _CONVERSIONS.get(field.metadata.get("kafka_type", ""))
        if field.default is not dataclasses.MISSING:
            default: Any = field.default
        elif is_array:
            default = ()
        else:
            implicit = _IMPLICIT.get(field.metadata.get("kafka_type", ""), 0)
            default = convert(implicit) if convert is not None else implicit
        plan.append((field.name, convert, is_array, default))
    names = frozenset(field.name for field in dataclasses.fields(schema))

    def build(body: Mapping[str, Any]) -> Any:
        values = {}
        for name, convert, is_array, default in plan:
            value = body.get(name, _ABSENT)
            if value is _ABSENT:
                values[name] = default
            elif value is None:
                values[name] = None
            elif is_array:
                values[name] = tuple(map(convert, value) if convert else value)
            else:
                values[name] = convert(value) if convert else value
        if len(body) > len(values) or not body.keys() <= names:
            _check_names(schema, body)
        return schema(**values)

    return build


_ABSENT: Final = object()


def _check_names(schema: Any, body: Mapping[str, Any]) -> None:
    unknown = body.keys() - known_names(ApiKey(int(schema.__api_key__)))
    assert not unknown, f"{schema.__name__} has no field {sorted(unknown)}"
