"""What the audit trail gets of requests to the HTTP APIs.

Rules: an operation that may change something leaves one record, whether it was carried out,
refused or failed. A request whose author is not known counts as a failed login instead: anybody
can send such requests. Names of actions derive from method and path, so a new operation has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request

from onelog.admin.api.declaring import AnyOperation, Caller
from onelog.admin.api.desk import AdminDesk
from onelog.broker import AuditEvent, outcome_of
from onelog.broker import note_failed_login as note_failed
from onelog.broker.audited import resource_of, shown_fields

DOOR: Final = "admin"
_VERBS: Final = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "delete"}


def peer_host(request: Request) -> str:
    """The address that a request came from."""
    return request.client.host if request.client is not None else ""


def action_of(method: str, path: str) -> str:
    """The action of an operation: `POST /cursors/{cursor}/seek` is `cursor.seek`."""
    parts = path.strip("/").split("/")
    is_name = [part.startswith("{") for part in parts]
    verb = _VERBS.get(method, method.lower())
    if method == "POST" and len(parts) > 2 and is_name[-2] and not is_name[-1]:
        verb = parts.pop()
    nouns = [part for part in parts if not part.startswith("{")]
    noun = nouns[-1] if nouns else "server"
    return f"{noun.removesuffix('s')}.{verb}"


class RequestNote:
    """What is known of a request while it is carried out."""

    def __init__(self) -> None:
        self.names: Mapping[str, str] = {}
        self.query: Any = None
        self.body: Any = None
        self.made: Any = None
        """The answer, once there is one."""

    def resource(self) -> str:
        """What the request is about: names in its path, the name in its body, or what it made."""
        asked = "/".join(self.names.values()) or resource_of(_fields(self.body))
        made = getattr(self.made, "id", "")
        return asked or (made if isinstance(made, str) else "")

    def detail(self) -> dict[str, Any]:
        """Its fields, without secrets."""
        return shown_fields(_fields(self.query)) | shown_fields(_fields(self.body))


def _fields(value: Any) -> dict[str, Any]:
    found = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else None
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def noted(
    desk: AdminDesk, row: AnyOperation, request: Request, caller: Caller
) -> Iterator[RequestNote]:
    """Note the request that is carried out in the block, with its outcome."""
    note = RequestNote()
    try:
        yield note
    except BaseException as error:
        _write(desk, row, request, caller, note, error)
        raise
    _write(desk, row, request, caller, note, None)


def _write(
    desk: AdminDesk,
    row: AnyOperation,
    request: Request,
    caller: Caller,
    note: RequestNote,
    error: BaseException | None,
) -> None:
    if not row.is_audited or not desk.is_open:
        return
    outcome, kind, reason = outcome_of(error)
    desk.broker.audit.write(
        AuditEvent(
            door=DOOR,
            actor=caller.name,
            address=peer_host(request),
            action=action_of(row.method, row.path),
            resource=note.resource(),
            outcome=outcome,
            error=kind,
            reason=reason,
            detail=note.detail(),
        )
    )


def note_failed_login(desk: AdminDesk, address: str, user: str, error: BaseException) -> None:
    """Note that somebody did not prove who they are."""
    if desk.is_open:
        note_failed(desk.broker.audit, DOOR, address, user, error)
