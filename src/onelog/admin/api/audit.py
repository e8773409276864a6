"""Operations on the audit trail: administrators read it; nobody changes it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import ADMIN, AnyOperation, ApiCall, ApiInput, ApiOperation
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import CURSOR_CHARS_MAX, decode_key, encode_key
from onelog.broker.audit_event import AuditEvent
from onelog.broker.audit_reading import AuditChoice, newest

TAG = "audit"
_TEXT = Meta(max_length=512)
_TIME = Meta(ge=0, le=2**62)


class AuditQuery(ApiInput, frozen=True, kw_only=True):
    """Which records; an empty field takes all."""

    actor: Annotated[str, _TEXT] = ""
    door: Annotated[str, _TEXT] = ""
    action: Annotated[
        str, Meta(max_length=512, description="An action, or the beginning of one: `user`.")
    ] = ""
    outcome: Literal["", "ok", "refused", "failed"] = ""
    resource: Annotated[
        str, Meta(max_length=512, description="A text that the resource contains.")
    ] = ""
    since_ms: Annotated[int, _TIME] = 0
    until_ms: Annotated[int, _TIME] = 2**62
    limit: Annotated[int, Meta(ge=1, le=500, description="How many, at most.")] = 50
    cursor: Annotated[
        str,
        Meta(max_length=CURSOR_CHARS_MAX, description="`next_cursor` of the answer before."),
    ] = ""


class AuditShown(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the trail."""

    offset: int
    event: AuditEvent


class AuditRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Records, the newest first."""

    items: list[AuditShown]
    next_cursor: str | None
    """Where to go on, also after an answer without records; null: everything was looked at."""


class AuditOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        return [
            ApiOperation(
                method="GET", path="/audit", role=ADMIN, tag=TAG,
                summary="Who changed what and who failed to log in, the newest first.",
                query=AuditQuery, answer=AuditRecords, handler=self.records,
            ),
        ]  # fmt: skip

    async def records(self, call: ApiCall[AuditQuery, None]) -> AuditRecords:
        """A page of records."""
        query = call.query
        choice = AuditChoice(
            actor=query.actor,
            door=query.door,
            action=query.action,
            outcome=query.outcome or None,
            resource=query.resource,
            since_ms=query.since_ms,
            until_ms=query.until_ms,
        )
        before = decode_key(query.cursor, int)
        page = await newest(
            self._desk.broker, choice, query.limit, -1 if before is None else max(before, 0)
        )
        return AuditRecords(
            items=[AuditShown(offset=row.offset, event=row.event) for row in page.rows],
            next_cursor=None if page.next is None else encode_key(page.next),
        )
