"""Commands on tokens as messages: what `onelog token` sends, and what runs them.

Rules: as for commands on users: the same message runs in a server, which gets it over its control
socket, and on the data directory of a stopped one; `base/commands.py` has the form.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.security.roles import AdminRole

SUBJECT: Final = "token"
DAY_MS: Final = 24 * 60 * 60 * 1000
LIFETIME_MS_DEFAULT: Final = 90 * DAY_MS
LIFETIME_MS_MAX: Final = 5 * 366 * DAY_MS


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a token's record that may be shown."""

    id: str
    label: str
    role: AdminRole
    owner: str
    """The user that it belongs to; empty: it was made by a command on the machine itself."""
    created_ms: int
    expires_ms: int
    expired: bool


class CreateToken(msgspec.Struct, frozen=True, kw_only=True, tag="token.create"):
    """Make a token."""

    label: str
    role: AdminRole
    lifetime_ms: int = LIFETIME_MS_DEFAULT


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True, tag="token.revoke"):
    """Make a token void."""

    id: str


class ListTokens(msgspec.Struct, frozen=True, kw_only=True, tag="token.list"):
    """Show every token."""


TokenCommand = CreateToken | RevokeToken | ListTokens


class TokenAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a command."""

    tokens: tuple[TokenInfo, ...] = ()
    text: str = ""
    """The token itself, when it is made."""
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


class TokenMaker(Protocol):
    """Runs the commands."""

    async def create(
        self, label: str, role: AdminRole, lifetime_ms: int, owner: str = ""
    ) -> tuple[str, TokenInfo]:
        """Make a token."""
        ...

    async def revoke(self, token_id: str) -> None:
        """Make a token void."""
        ...

    def infos(self) -> tuple[TokenInfo, ...]:
        """Every token."""
        ...


def encode_token_command(command: TokenCommand) -> bytes:
    """The message of a command."""
    return msgspec.json.encode(command)


async def run_token_command(tokens: TokenMaker, message: bytes) -> bytes:
    """Run the command of a message; the message of its answer, also when it failed."""
    return await run_decoded(message, TokenCommand, partial(_run, tokens))


async def _run(tokens: TokenMaker, command: TokenCommand) -> TokenAnswer:
    match command:
        case CreateToken():
            text, info = await tokens.create(command.label, command.role, command.lifetime_ms)
            return TokenAnswer(tokens=(info,), text=text)
        case RevokeToken():
            await tokens.revoke(command.id)
        case ListTokens():
            return TokenAnswer(tokens=tokens.infos())
    return TokenAnswer()


def decode_token_answer(message: bytes) -> TokenAnswer:
    """The answer of a message. Raises the error that it reports."""
    return decoded(message, TokenAnswer)
