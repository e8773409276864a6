"""Answers of control APIs: version-neutral bodies to bytes, by a plan made from kio's schemas.

Rules: a body is a dict in kio's field names. A field that a version does not have is left out; a
field that the handler left out has the protocol's default, from bytes that were made once. A name
that no version has is a bug and raises. A tagged field is written only when it is not its default.
"""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from onelog.kernel import encode_uvarint
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.schema import WireField, fields_of, known_names

Write = Callable[[bytearray, Any], None]
"""Appends a value."""

_ABSENT: Final = object()
_NULL_STRUCTURE: Final = b"\xff"
_STRUCTURE: Final = b"\1"


def _packed(layout: str) -> Write:
    pack = struct.Struct(layout).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _milliseconds(layout: str) -> Write:
    pack = struct.Struct(layout).pack

    def write(out: bytearray, value: Any) -> None:
        if isinstance(value, datetime.timedelta):  # a default of kio's
            value = value // datetime.timedelta(milliseconds=1)
        out += pack(-1 if value is None else value)

    return write


def _uuid(out: bytearray, value: uuid.UUID | None) -> None:
    out += b"\0" * 16 if value is None else value.bytes


def _sized(layout: str) -> Write:
    pack = struct.Struct(layout).pack

    def write(out: bytearray, value: str | bytes | None) -> None:
        if value is None:
            out += pack(-1)
            return
        data = value.encode() if isinstance(value, str) else value
        out += pack(len(data))
        out += data

    return write


def _compact(out: bytearray, value: str | bytes | None) -> None:
    if value is None:
        out.append(0)
        return
    data = value.encode() if isinstance(value, str) else value
    if len(data) < 127:
        out.append(len(data) + 1)
    else:
        out += encode_uvarint(len(data) + 1)
    out += data


_PLAIN: Final[dict[str, Write]] = {
    "bool": _packed(">?"),
    "int8": _packed(">b"),
    "int16": _packed(">h"),
    "int32": _packed(">i"),
    "int64": _packed(">q"),
    "uint16": _packed(">H"),
    "float64": _packed(">d"),
    "error_code": _packed(">h"),
    "timedelta_i32": _milliseconds(">i"),
    "timedelta_i64": _milliseconds(">q"),
    "datetime_i64": _milliseconds(">q"),
    "uuid": _uuid,
}
"""Types that are encoded alike at every version."""
_LEGACY: Final[dict[str, Write]] = {
    "string": _sized(">h"),
    "bytes": _sized(">i"),
    "records": _sized(">i"),
}
_COMPACT: Final[dict[str, Write]] = {"string": _compact, "bytes": _compact, "records": _compact}


@cache
def structure_writer(schema: Any) -> Callable[[bytearray, Mapping[str, Any]], None]:
    """Appends a body in the layout of a kio class."""
    flexible = bool(schema.__flexible__)
    plan: list[tuple[str, Write, bytes]] = []
    tagged: list[tuple[WireField, Write]] = []
    for field in fields_of(schema):
        write = _field_writer(field, flexible)
        if field.tag is not None:
            tagged.append((field, write))
            continue
        absent = bytearray()
        write(absent, field.default)
        plan.append((field.name, write, bytes(absent)))
    tagged.sort(key=lambda row: row[0].tag or 0)
    names = frozenset(field.name for field in fields_of(schema))

    def write_structure(out: bytearray, body: Mapping[str, Any]) -> None:
        for name, write, absent in plan:
            value = body.get(name, _ABSENT)
            if value is _ABSENT:
                out += absent
            else:
                write(out, value)
        if tagged:
            _write_tags(out, tagged, body)
        elif flexible:
            out.append(0)
        if not body.keys() <= names:
            _check_names(schema, body)

    return write_structure


def _field_writer(field: WireField, flexible: bool) -> Write:
    if field.structure is not None:
        one: Write = structure_writer(field.structure)
    else:
        one = _PLAIN.get(field.kind) or (_COMPACT if flexible else _LEGACY)[field.kind]
    if field.may_be_absent:
        return _nullable_writer(one)
    return _array_writer(one, flexible) if field.is_array else one


def _nullable_writer(one: Write) -> Write:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += _NULL_STRUCTURE
            return
        out += _STRUCTURE
        one(out, value)

    return write


def _array_writer(one: Write, flexible: bool) -> Write:
    def write_compact(out: bytearray, values: Any) -> None:
        if values is None:
            out.append(0)
            return
        out += encode_uvarint(len(values) + 1)
        for value in values:
            one(out, value)

    def write_legacy(out: bytearray, values: Any) -> None:
        out += _COUNT.pack(-1 if values is None else len(values))
        for value in values or ():
            one(out, value)

    return write_compact if flexible else write_legacy


_COUNT: Final = struct.Struct(">i")


def _write_tags(
    out: bytearray, tagged: list[tuple[WireField, Write]], body: Mapping[str, Any]
) -> None:
    rows: list[tuple[int, bytes]] = []
    for field, write in tagged:
        value = body.get(field.name, field.default)
        if value == field.default or (field.is_array and not value and not field.default):
            continue
        part = bytearray()
        write(part, value)
        rows.append((field.tag or 0, bytes(part)))
    out += encode_uvarint(len(rows))
    for tag, data in rows:
        out += encode_uvarint(tag)
        out += encode_uvarint(len(data))
        out += data


def _check_names(schema: Any, body: Mapping[str, Any]) -> None:
    unknown = body.keys() - known_names(ApiKey(int(schema.__api_key__)))
    assert not unknown, f"{schema.__name__} has no field {sorted(unknown)}"
