"""Reading the audit trail: the newest records that fit a choice, or those behind an offset.

Rules: one answer looks at `LOOKED_MAX` records at most, in pieces, with turns for other work
between them; it says where to go on. Nothing is remembered between two answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.base.errors import InvalidRequest, NotFound
from onelog.base.ids import Offset
from onelog.broker.audit import AUDIT_STREAM
from onelog.broker.audit_event import AuditEvent, Outcome, decode_event
from onelog.log.handle import PartitionHandle
from onelog.record.batch import iterate_batches

if TYPE_CHECKING:
    from onelog.broker.broker import Broker

SUBJECT: Final = "audit"
LIMIT_MAX: Final = 1_000
LOOKED_MAX: Final = 20_000
"""Records that one answer looks at."""
WAIT_MS_MAX: Final = 20_000
LAST: Final = 2**62
"""An offset behind all others."""
_PIECE: Final = 500
_READ_BYTES: Final = 256 * 1024


class AuditChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which records; an empty field takes all."""

    actor: str = ""
    door: str = ""
    action: str = ""
    """An action, or the beginning of one: `user` takes every action on users."""
    outcome: Outcome | None = None
    resource: str = ""
    """A text that the resource contains."""
    since_ms: int = 0
    until_ms: int = 2**62

    def takes(self, event: AuditEvent) -> bool:
        """Whether a record fits."""
        return (
            self.since_ms <= event.time_ms <= self.until_ms
            and self.actor in ("", event.actor)
            and self.door in ("", event.door)
            and (not self.action or f"{event.action}.".startswith(f"{self.action}."))
            and self.outcome in (None, event.outcome)
            and self.resource in event.resource
        )


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """A record and where it lies."""

    offset: int
    event: AuditEvent


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records that were found."""

    rows: list[AuditRow]
    next: int | None
    """The offset to go on at; None: everything was looked at."""


async def newest(broker: Broker, choice: AuditChoice, limit: int, before: int = -1) -> AuditPage:
    """The newest records below an offset (-1: of all), the newest first. Raises NotFound."""
    partition = _partition(broker)
    high = partition.high_watermark if before < 0 else min(before, partition.high_watermark)
    rows: list[AuditRow] = []
    lowest = max(int(partition.start_offset), high - LOOKED_MAX)
    while high > lowest:
        low = max(high - _PIECE, lowest)
        piece = [row async for row in _read(partition, low, high)]
        for row in reversed(piece):
            if row.event.time_ms < choice.since_ms:
                return AuditPage(rows=rows, next=None)  # those before are older
            if choice.takes(row.event):
                rows.append(row)
                if len(rows) >= limit:
                    return AuditPage(rows=rows, next=_above(partition, row.offset))
        high = low
    return AuditPage(rows=rows, next=_above(partition, high))


async def behind(broker: Broker, choice: AuditChoice, offset: int, wait_ms: int) -> AuditPage:
    """The records from an offset on, the oldest first; waits for one if there is none yet."""
    partition = _partition(broker)
    offset = max(offset, int(partition.start_offset))
    offset = min(offset, int(partition.high_watermark))
    if offset >= partition.high_watermark and wait_ms:
        waiting = partition.wait_visible(Offset(offset))
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await waiting
        except TimeoutError:
            pass
        finally:
            waiting.cancel()
    end = min(int(partition.high_watermark), offset + LIMIT_MAX)
    rows = [row async for row in _read(partition, offset, end) if choice.takes(row.event)]
    return AuditPage(rows=rows, next=max(end, offset))


def _partition(broker: Broker) -> PartitionHandle:
    stream = broker.streams.find(AUDIT_STREAM)
    if stream is None:
        raise NotFound("this broker has no audit trail: it does not run as a server")
    return stream.partitions[0]


def _above(partition: PartitionHandle, offset: int) -> int | None:
    return offset if offset > partition.start_offset else None


async def _read(partition: PartitionHandle, offset: int, end: int) -> AsyncIterator[AuditRow]:
    """The records from `offset` to before `end`."""
    while offset < end:
        read = partial(partition.read_now, Offset(offset), _READ_BYTES)
        data = await partition.until_here(read)
        if not data:
            return
        for info, slices in iterate_batches(data):
            for number, at in enumerate(slices.offsets()):
                value = slices.value(number)
                if offset <= at < end and value is not None:
                    yield AuditRow(offset=at, event=decode_event(value))
            offset = max(offset, info.last_offset + 1)
        await asyncio.sleep(0)


# -- the command of the control socket


class ListAudit(msgspec.Struct, frozen=True, kw_only=True, tag="audit.list"):
    """Show records: the newest ones, or those from an offset on."""

    choice: AuditChoice = AuditChoice()
    limit: int = 100
    before: int = -1
    start: int | None = None
    """Show the records from this offset on, and wait for one."""
    wait_ms: int = 0


class AuditAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of the command."""

    page: AuditPage | None = None
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


async def run_audit_command(broker: Broker, message: bytes) -> bytes:
    """Run the command of a message; the message of its answer, also when it failed."""
    return await run_decoded(message, ListAudit, partial(_list, broker))


async def _list(broker: Broker, command: ListAudit) -> AuditAnswer:
    if command.start is not None:
        wait_ms = min(max(command.wait_ms, 0), WAIT_MS_MAX)
        return AuditAnswer(page=await behind(broker, command.choice, command.start, wait_ms))
    limit = min(max(command.limit, 1), LIMIT_MAX)
    return AuditAnswer(page=await newest(broker, command.choice, limit, command.before))


def decode_audit_answer(message: bytes) -> AuditPage:
    """The answer of a message. Raises the error that it reports."""
    answer = decoded(message, AuditAnswer)
    if answer.page is None:
        raise InvalidRequest("the server's answer has no records")
    return answer.page
