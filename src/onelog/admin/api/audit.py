"""Operations on the audit trail: administrators read it; nobody changes it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import ADMIN, AnyOperation, ApiCall, ApiInput, ApiOperation
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import CURSOR_CHARS_MAX, decode_key, encode_key
from onelog.base.errors import Unavailable
from onelog.broker.audit_event import AuditEvent
from onelog.broker.audit_reading import LAST, WAIT_MS_MAX, AuditChoice, AuditPage, behind, newest

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
    before: Annotated[int, Meta(ge=0, le=LAST, description="Only records below this offset.")] = (
        LAST
    )
    start: Annotated[
        int,
        Meta(
            ge=-1,
            le=LAST,
            description="Records from this offset on, the oldest first; -1: the newest.",
        ),
    ] = -1
    wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=WAIT_MS_MAX,
            description="With `start`: wait so long for a record, if there is none yet.",
        ),
    ] = 0


class AuditShown(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the trail."""

    offset: int
    event: AuditEvent


class AuditRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Records, the newest first; with `start`: the oldest first."""

    items: list[AuditShown]
    next_cursor: str | None
    """Where to go on, also after an answer without records; null: everything was looked at, or
    `start` was given."""
    next_offset: int | None
    """The same as an offset: of `before`, or with `start` of `start`."""


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
        if query.start >= 0:
            return _shown(await self._behind(choice, query.start, query.wait_ms), cursor=False)
        after = decode_key(query.cursor, int)
        before = query.before if after is None else max(after, 0)
        return _shown(await newest(self._desk.broker, choice, query.limit, before), cursor=True)

    async def _behind(self, choice: AuditChoice, start: int, wait_ms: int) -> AuditPage:
        """Records from an offset on. Raises Unavailable when the broker stops meanwhile."""
        reading = asyncio.create_task(behind(self._desk.broker, choice, start, wait_ms))
        closing = asyncio.create_task(self._desk.until_closing(2 * WAIT_MS_MAX / 1000))
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Unavailable("the broker is stopping; ask again soon")
            return reading.result()
        finally:
            reading.cancel()
            closing.cancel()


def _shown(page: AuditPage, *, cursor: bool) -> AuditRecords:
    return AuditRecords(
        items=[AuditShown(offset=row.offset, event=row.event) for row in page.rows],
        next_cursor=encode_key(page.next) if cursor and page.next is not None else None,
        next_offset=page.next,
    )
