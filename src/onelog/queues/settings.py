"""What a queue is declared with: flags and arguments, checked, as RabbitMQ names them.

Rules: an argument of a wrong type or value is an error that names it (PRECONDITION_FAILED). A
second declaration must be the same in everything. Unknown arguments are kept and shown, and have no
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.broker import Principal
from onelog.queues.errors import QueueLocked

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
QueueType = Literal["classic", "quorum", "stream"]

PRIORITY_MAX: Final = 255
DELIVERY_LIMIT_QUORUM: Final = 20
"""Deliveries of a quorum queue before a message is given up, as RabbitMQ 4 has it."""
_MS_MAX: Final = 2**32 * 1000


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it was declared."""

    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}
    maker: Principal | None = None
    """Who declared it, as whom its dead letters are judged; None: they are not judged."""
    client: str | None = None
    """As what client it was declared, and `listener` where: for quotas. None: that is not known, as
    of older rows, of clients without a name, and of what the admin API made."""
    listener: str | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it survives a restart."""
        return self.durable and not self.exclusive


class DeclaredSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the arguments give."""

    type: QueueType = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int = 0
    single_active_consumer: bool = False
    delivery_limit: int | None = None
    max_age_ms: int | None = None
    """For a stream: how long its messages stay."""
    start: str | int | None = None
    """`x-onelog-from`: the history that the queue takes when it is bound."""

    @property
    def deliveries_max(self) -> int | None:
        """Redeliveries before a message is given up; None: no limit."""
        if self.delivery_limit is None and self.type == "quorum":
            return DELIVERY_LIMIT_QUORUM
        return self.delivery_limit


def _number(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"expected {low} to {high}")
        return value

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value


def _one_of(*known: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in known:
            raise ValueError(f"expected {', '.join(known)}")
        return str(value)

    return check


_UNITS_S: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}


def interval_ms(text: str) -> int:
    """The milliseconds of an interval such as 7D or 30s."""
    return int(text[:-1]) * _UNITS_S[text[-1]] * 1000


def _interval(value: Any) -> int:
    if not isinstance(value, str) or not value[:-1].isdigit() or value[-1] not in _UNITS_S:
        raise ValueError("expected a number and one of Y, M, D, h, m, s")
    return min(interval_ms(value), _MS_MAX * 1000)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("expected a boolean")
    return value


def _start(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError("expected earliest, latest, an offset or timestamp:<ms>")
    if isinstance(value, str):
        head, _, number = value.partition(":")
        if value not in ("earliest", "latest") and not (head == "timestamp" and number.isdigit()):
            raise ValueError("expected earliest, latest, an offset or timestamp:<ms>")
    elif value < 0:
        raise ValueError("an offset is not negative")
    return value


ARGUMENTS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "x-queue-type": ("type", _one_of("classic", "quorum", "stream")),
    "x-message-ttl": ("message_ttl_ms", _number(0, _MS_MAX)),
    "x-expires": ("expires_ms", _number(1, _MS_MAX)),
    "x-max-length": ("max_length", _number(0, 2**62)),
    "x-max-length-bytes": ("max_length_bytes", _number(0, 2**62)),
    "x-overflow": ("overflow", _one_of("drop-head", "reject-publish", "reject-publish-dlx")),
    "x-dead-letter-exchange": ("dead_letter_exchange", _text),
    "x-dead-letter-routing-key": ("dead_letter_routing_key", _text),
    "x-max-priority": ("max_priority", _number(0, PRIORITY_MAX)),
    "x-single-active-consumer": ("single_active_consumer", _flag),
    "x-delivery-limit": ("delivery_limit", _number(0, 2**31)),
    "x-max-age": ("max_age_ms", _interval),
    "x-onelog-from": ("start", _start),
}
"""Every argument that has an effect: its setting, and its check."""


def read_settings(record: QueueRecord, vhost: str) -> DeclaredSettings:
    """The settings of a declaration. Raises InvalidRequest naming the argument."""
    found: dict[str, Any] = {}
    for name, (field, check) in ARGUMENTS.items():
        if name in record.arguments:
            try:
                found[field] = check(record.arguments[name])
            except (TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"invalid arg '{name}' for queue '{record.name}' in vhost '{vhost}': {error}",
                ) from None
    settings = DeclaredSettings(**found)
    if settings.type == "stream":
        _check_stream(record, vhost)
    if settings.type != "classic" and not (record.durable and not record.exclusive):
        kind = "non-durable" if not record.durable else "exclusive"
        raise InvalidRequest(
            f"invalid property '{kind}' for queue '{record.name}' in vhost '{vhost}'",
        )
    if "dead_letter_routing_key" in found and "dead_letter_exchange" not in found:
        raise InvalidRequest(
            "invalid arg 'x-dead-letter-routing-key' for queue"
            f" '{record.name}' in vhost '{vhost}': routing_key_but_no_dlx_defined",
        )
    return settings


_NOT_FOR_STREAMS: Final = tuple(
    name
    for name in ARGUMENTS
    if name not in ("x-queue-type", "x-max-length-bytes", "x-max-age", "x-onelog-from")
)


def _check_stream(record: QueueRecord, vhost: str) -> None:
    """A stream is durable, shared by all, and keeps everything: refuse other arguments."""
    where = f"queue '{record.name}' in vhost '{vhost}'"
    if record.auto_delete:
        raise InvalidRequest(f"invalid property 'auto-delete' for {where}")
    for name in _NOT_FOR_STREAMS:
        if name in record.arguments:
            raise InvalidRequest(
                f"invalid arg '{name}' for {where} of queue type rabbit_stream_queue",
            )


def check_equivalent(old: QueueRecord, new: QueueRecord, vhost: str) -> None:
    """Refuse a declaration that differs from the existing queue."""
    if old.exclusive != new.exclusive:
        raise locked_queue(old.name, vhost)
    rows: list[tuple[str, Any, Any]] = [
        ("durable", old.durable, new.durable),
        ("auto_delete", old.auto_delete, new.auto_delete),
    ]
    for name in ARGUMENTS:
        default = "classic" if name == "x-queue-type" else None
        rows.append((name, old.arguments.get(name, default), new.arguments.get(name, default)))
    for name, current, received in rows:
        if not is_same_value(current, received):
            raise InvalidRequest(
                f"inequivalent arg '{name}' for queue '{old.name}' in vhost '{vhost}': received"
                f" {_shown(received)} but current is {_shown(current)}",
            )


def is_same_value(one: Any, other: Any) -> bool:
    """Whether two arguments are equal: a number is not a boolean, and 10 is not 10.0."""
    return type(one) is type(other) and one == other


def locked_queue(name: str, vhost: str) -> QueueLocked:
    """The error for a client that may not use an exclusive queue, or declares it differently."""
    return QueueLocked(
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'."
        " It could be originally declared on another connection or the exclusive property"
        " value does not match that of the original declaration.",
    )


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return f"the value '{value}'" if isinstance(value, int) else f"'{value}'"
