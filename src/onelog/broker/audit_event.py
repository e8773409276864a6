"""One event of the audit trail, and its JSON.

Rules: an event holds no secret. Each text in it is cut to `TEXT_CHARS_MAX`, and `DETAILS_MAX`
details are kept: peers choose some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from onelog.base.errors import NotAuthenticated, NotAuthorized, OnelogError

LOGIN_FAILED: Final = "login.failed"
TEXT_CHARS_MAX: Final = 512
DETAILS_MAX: Final = 32
LISTED_MAX: Final = 20
"""Values of one list in the details."""

Outcome = Literal["ok", "refused", "failed"]
Detail = str | int | bool | list[str] | None


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One record, as it is written: docs/guide/audit.md describes each field."""

    time_ms: int = 0
    door: str
    """Where the request came in: a protocol, `admin`, `management`, `control` or `offline`."""
    actor: str = ""
    """The user's name; empty: not known, or several."""
    address: str = ""
    action: str
    """`subject.verb`."""
    resource: str = ""
    outcome: Outcome = "ok"
    error: str = ""
    """The class of the error; empty: there was none."""
    reason: str = ""
    count: int = 1
    """How many requests the record stands for; more than 1 only where none was carried out."""
    detail: dict[str, Detail] = {}


def outcome_of(error: BaseException | None) -> tuple[Outcome, str, str]:
    """The outcome, the class of the error and its text."""
    if error is None:
        return "ok", "", ""
    refused = isinstance(error, NotAuthorized | NotAuthenticated)
    reason = str(error) if isinstance(error, OnelogError) else "an error inside: see the log"
    return "refused" if refused else "failed", type(error).__name__, reason


def login_failed(door: str, address: str | None, user: str, error: BaseException) -> AuditEvent:
    """A peer did not prove who it is; `user` is the name that it gave, if any."""
    return AuditEvent(
        door=door,
        actor=user,
        address=address or "",
        action=LOGIN_FAILED,
        outcome="refused",
        error=type(error).__name__,
        reason=outcome_of(error)[2],
    )


def encode_event(event: AuditEvent) -> bytes:
    """The JSON of an event, within its bounds."""
    fields: dict[str, Any] = _bounded(msgspec.structs.asdict(event))
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:  # a peer's name with half a character in it
        return msgspec.json.encode(_repaired(fields))


def decode_event(data: bytes) -> AuditEvent:
    """The event of a record."""
    return msgspec.json.decode(data, type=AuditEvent)


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_CHARS_MAX else f"{value[:TEXT_CHARS_MAX]}…"
    if isinstance(value, Mapping):
        return {_bounded(name): _bounded(row) for name, row in list(value.items())[:DETAILS_MAX]}
    return [_bounded(row) for row in value[:LISTED_MAX]] if isinstance(value, list) else value


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_repaired(name): _repaired(row) for name, row in value.items()}
    return [_repaired(row) for row in value] if isinstance(value, list) else value
