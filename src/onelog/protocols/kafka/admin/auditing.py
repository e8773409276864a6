"""What the audit trail gets of requests that change something beside messages.

Rules: the name of an API says whether it does: it creates, deletes, alters or elects. So an API
that is new here is noted, too. One request is one record. The names in the request are shown;
values never are: they may be secrets. A request of which a part was carried out is `ok`, and its
details have the errors of the other parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from onelog.base.errors import OnelogError
from onelog.broker import AuditEvent
from onelog.broker.audit_event import LISTED_MAX, Detail, Outcome
from onelog.protocols.kafka.apis import SERVED, ApiKey
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.request import Request

_VERBS: Final = frozenset({"create", "delete", "alter", "elect", "update"})
_NAMING: Final = frozenset(
    {"name", "topic", "topic_name", "resource_name", "group_id", "principal", "names"}
    | {"topic_names", "groups_names", "entity_name", "user"}
)
"""Fields of requests that hold names; `names` are those of filters."""
_DEPTH_MAX: Final = 6


def _action(key: ApiKey) -> str | None:
    words = key.name.lower().removeprefix("incremental_").split("_")
    verb = next((word for word in words if word in _VERBS), None)
    if verb is None:
        return None
    words.remove(verb)
    return f"{'-'.join(words).removesuffix('s')}.{verb}"


AUDITED: Final[dict[ApiKey, str]] = {
    api.key: action for api in SERVED.values() if (action := _action(api.key)) is not None
}
"""API → what the audit trail calls its requests."""


def note_request(request: Request, answer: Any, error: OnelogError | None) -> None:
    """Leave one record of a request that may have changed something."""
    action = AUDITED.get(request.api.key)
    if action is None:
        return
    connection = request.connection
    outcome, kind, detail = _outcome(request, answer, error)
    names = list(dict.fromkeys(_names(request.body)))
    connection.hub.broker.audit.write(
        AuditEvent(
            door="kafka",
            actor="" if connection.principal is None else connection.principal.name,
            address=connection.peer.host or "",
            action=action,
            resource=",".join(names[:LISTED_MAX]),
            outcome=outcome,
            error=kind,
            reason="" if error is None else str(error),
            detail=detail,
        )
    )


def _outcome(
    request: Request, answer: Any, error: OnelogError | None
) -> tuple[Outcome, str, dict[str, Detail]]:
    if error is not None:
        codes = [code_of(error)]
    elif isinstance(answer, bytes):
        codes = [ErrorCode(code) for code in request.codes]
    else:
        codes = list(_codes(answer))
    wrong = sorted({code.name for code in codes if code is not ErrorCode.none})
    if not wrong:
        return "ok", "", {}
    if len(wrong) < len(set(codes)):
        return "ok", "", {"errors": list(wrong)}
    refused = all("authorization" in name or "authentication" in name for name in wrong)
    return "refused" if refused else "failed", wrong[0], {"errors": list(wrong)}


def _codes(answer: Any) -> Iterator[ErrorCode]:
    """Every error code in an answer."""
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name == "error_code":
                yield ErrorCode(value)
            elif isinstance(value, list | tuple):
                for row in value:
                    yield from _codes(row)


def _names(value: Any, depth: int = 0) -> Iterator[str]:
    """Every name in a request."""
    if depth > _DEPTH_MAX or not dataclasses.is_dataclass(value):
        return
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        rows = found if isinstance(found, list | tuple) else (found,)
        for row in rows:
            if isinstance(row, str):
                if field.name in _NAMING and row:
                    yield str(row)
            else:
                yield from _names(row, depth + 1)
