"""Commands on bans as messages: what `onelog ban` sends, and what runs them.

Rules: bans are in the memory of a running server, which gets the commands over its control socket.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.security.bans import BanInfo, Bans

SUBJECT: Final = "ban"


class ListBans(msgspec.Struct, frozen=True, kw_only=True, tag="ban.list"):
    """Show every address that is banned."""


class LiftBan(msgspec.Struct, frozen=True, kw_only=True, tag="ban.lift"):
    """Let an address connect again."""

    address: str


BanCommand = ListBans | LiftBan


class BanAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a command."""

    bans: tuple[BanInfo, ...] = ()
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


async def run_ban_command(bans: Bans, message: bytes) -> bytes:
    """Run the command of a message; the message of its answer, also when it failed."""
    return await run_decoded(message, BanCommand, partial(_perform, bans))


async def _perform(bans: Bans, command: BanCommand) -> BanAnswer:
    if isinstance(command, ListBans):
        return BanAnswer(bans=bans.rows())
    bans.lift(command.address)
    return BanAnswer()


def decode_ban_answer(message: bytes) -> BanAnswer:
    """The answer of a message. Raises the error that it reports."""
    return decoded(message, BanAnswer)
