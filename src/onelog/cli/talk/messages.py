"""A message as the command line has it, whatever protocol it travels by, and as JSON.

Rules: the fields are those of `record/fields.py`, by their names. Headers are pairs in order, so
that a name may come twice. Bytes that are not text are `{"base64": …}` in JSON; a missing payload
is null. `pub` can read what the other commands print: `onelog replay --json | onelog pub --json`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from time import time_ns
from typing import Any, Final, Literal

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.record.fields import FIELDS, Field

FIELD_NAMES: Final[dict[str, Field]] = {row.name: row for row in FIELDS}
_TIME_MS_MAX: Final = 10**15
_BESIDE: Final = (
    "expires_in_ms", "partition", "offset", "timestamp_ms", "exchange", "routing_key",
    "redelivered",
)  # fmt: skip
_INTEGERS: Final = frozenset(row.name for row in FIELDS if row.form in ("number", "time_ms"))


class Message(msgspec.Struct, kw_only=True):
    """One message."""

    topic: str = ""
    payload: bytes | None = b""
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []
    fields: dict[str, Any] = {}
    """By the names of `record/fields.py`: text, bytes (correlation) or a number."""
    expires_in_ms: int | None = None
    """The lifetime that the message was sent with, if the time of sending is unknown."""
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    exchange: str | None = None
    routing_key: str | None = None
    redelivered: bool | None = None


class Start(msgspec.Struct, frozen=True):
    """Where reading begins."""

    kind: Literal["latest", "earliest", "offset", "time"]
    value: int = 0

    @property
    def text(self) -> str:
        """As a replay of MQTT names it."""
        return {"offset": f"offset:{self.value}", "time": str(self.value)}.get(self.kind, self.kind)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a reader wants."""

    filter: str
    start: Start = Start("latest")
    to_end: bool = False
    """Whether to end where the log ended when the reading began."""
    qos: int = 1
    retained: bool = True
    """MQTT: whether retained messages are sent first."""
    queue: str = ""
    """AMQP: the queue to take messages from, instead of a binding."""


def parse_start(text: str) -> Start:
    """Where to begin; raises InvalidRequest."""
    kind, _, number = text.partition(":")
    if text in ("earliest", "latest"):
        return Start("earliest" if text == "earliest" else "latest")
    if kind == "offset" and number.isdigit():
        return Start("offset", int(number))
    if text.isdigit():
        return Start("time", int(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is not a position to begin at: use earliest, latest, offset:<number>,"
            " milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Start("time", max(0, int(time.timestamp() * 1000)))


# -- JSON


def to_json(message: Message) -> bytes:
    """One line, without what the message does not say."""
    row: dict[str, Any] = {"topic": message.topic, "payload": _shown(message.payload)}
    if message.key is not None:
        row["key"] = _shown(message.key)
    if message.headers:
        row["headers"] = [[name, _shown(value)] for name, value in message.headers]
    row |= {
        name: _shown(value) if isinstance(value, bytes) else value
        for name, value in message.fields.items()
    }
    for name in _BESIDE:
        value = getattr(message, name)
        if value is not None:
            row[name] = value
    return msgspec.json.encode(row)


def from_json(line: bytes, default_topic: str) -> Message:
    """The message of one line. Raises InvalidRequest."""
    try:
        row = msgspec.json.decode(line, type=dict[str, Any])
        message = Message(
            topic=str(row.get("topic") or default_topic),
            payload=_read(row.get("payload", "")),
            key=_read(row.get("key")),
            headers=[(str(name), _read(value)) for name, value in row.get("headers", [])],
        )
        for name in FIELD_NAMES.keys() & row.keys():
            message.fields[name] = _field(name, row[name])
        if "expires_in_ms" in row:
            ends = time_ns() // 1_000_000 + int(row["expires_in_ms"])
            message.fields.setdefault("expires_ms", check_number("expires_ms", ends))
    except (msgspec.MsgspecError, TypeError, ValueError, binascii.Error) as error:
        raise InvalidRequest(f"{line[:60]!r} is not a message in JSON: {error}") from None
    return message


def _field(name: str, value: Any) -> Any:
    form = FIELD_NAMES[name].form
    if form == "bytes":
        return _read(value)
    if form == "mark":
        return bool(value)
    return check_number(name, int(value)) if name in _INTEGERS else str(value)


def check_number(name: str, value: int) -> int:
    """A number that a field may have. Raises ValueError."""
    field = FIELD_NAMES[name]
    most = _TIME_MS_MAX if field.form == "time_ms" else field.most
    if not 0 <= value <= most:
        raise ValueError(f"{name} is 0 to {most}, not {value}")
    return value


def _shown(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _read(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        return b64decode(value["base64"], validate=True)
    raise TypeError(f'expected text, null or {{"base64": …}}, not {value!r}')
