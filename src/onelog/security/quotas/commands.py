"""Commands on quotas as messages: what `onelog quota` sends, and what runs them.

Rules: as for commands on users: the same message runs in a server, which gets it over its control
socket, and on the data directory of a stopped one; `base/commands.py` has the form.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.base.errors import InvalidRequest
from onelog.security.quotas.entities import QuotaRow, parse_entity
from onelog.security.quotas.table import ClientQuotas

SUBJECT: Final = "quota"


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A quota as it is shown."""

    entity: str
    limits: dict[str, float]


class SetQuota(msgspec.Struct, frozen=True, kw_only=True, tag="quota.set"):
    """Set limits of an entity and drop others; what is not named stays."""

    entity: str
    limits: dict[str, float] = {}
    drop: tuple[str, ...] = ()


class RemoveQuota(msgspec.Struct, frozen=True, kw_only=True, tag="quota.remove"):
    """Take the whole quota of an entity away."""

    entity: str


class ListQuotas(msgspec.Struct, frozen=True, kw_only=True, tag="quota.list"):
    """Show every quota."""


QuotaCommand = SetQuota | RemoveQuota | ListQuotas


class QuotaAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a command."""

    quotas: tuple[QuotaInfo, ...] = ()
    unreadable: tuple[str, ...] = ()
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


def quota_info(row: QuotaRow) -> QuotaInfo:
    """A quota as it is shown."""
    limits = {limit.value: value for limit, value in sorted(row.limits.items())}
    return QuotaInfo(entity=row.entity.text, limits=limits)


async def run_quota_command(quotas: ClientQuotas, message: bytes) -> bytes:
    """Run the command of a message; the message of its answer, also when it failed."""
    return await run_decoded(message, QuotaCommand, partial(_run, quotas))


async def _run(quotas: ClientQuotas, command: QuotaCommand) -> QuotaAnswer:
    match command:
        case SetQuota():
            if not command.limits and not command.drop:
                raise InvalidRequest("name a limit to set or to drop, such as publish_bytes=1MB")
            entity = parse_entity(command.entity)
            row = await quotas.change(entity, command.limits, command.drop)
            return QuotaAnswer(quotas=() if row is None else (quota_info(row),))
        case RemoveQuota():
            name = command.entity
            if name not in quotas.unreadable:
                name = parse_entity(name).text
            await quotas.remove(name)
            return QuotaAnswer()
        case ListQuotas():
            rows = tuple(map(quota_info, quotas.rows))
            return QuotaAnswer(quotas=rows, unreadable=quotas.unreadable)


def decode_quota_answer(message: bytes) -> QuotaAnswer:
    """The answer of a message. Raises the error that it reports."""
    return decoded(message, QuotaAnswer)
