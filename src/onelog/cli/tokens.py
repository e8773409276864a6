"""`onelog token …`: tokens of the admin API, in a running server or in the data of a stopped one.

Rules: a token is printed once, alone on standard output, so that a script can take it; what people
want to know beside it goes to standard error.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from cyclopts import App, Parameter
from msgspec import to_builtins
from rich.text import Text

from onelog.cli import render
from onelog.cli.api.showing import WHOLE, Json, ListShown, Rows, show_list
from onelog.cli.durations import duration_ms
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.tables import columns, moment
from onelog.cli.users import DEFAULT_DATA, DataOptions
from onelog.security.roles import AdminRole
from onelog.security.token_commands import (
    CreateToken,
    ListTokens,
    RevokeToken,
    TokenAnswer,
    TokenCommand,
    decode_token_answer,
    encode_token_command,
)

_COLUMNS: Final = columns("id role until owner:name label created_ms")

Expires = Annotated[
    str, Parameter(name="--expires", help="How long it counts: 30m, 12h or 90d, for example.")
]
RoleName = Annotated[
    Literal["viewer", "operator", "admin"],
    Parameter(
        name="--role",
        help="Its scope: what it may do over the admin API. Access rules narrow it further.",
    ),
]


def build_tokens(run_offline: RunOffline | None) -> App:
    """The commands of `onelog token`."""
    app = App(name="token", help="Create, list or revoke tokens of the admin API.")

    def perform(options: DataOptions, command: TokenCommand) -> tuple[TokenAnswer, str]:
        assert run_offline is not None, "the command line was built without a store"
        makes_data = isinstance(command, CreateToken)
        message = encode_token_command(command)
        answer, where = reach(run_offline, options, message, makes_data=makes_data)
        return decode_token_answer(answer), where

    @app.command
    def create(
        label: str,
        /,
        *,
        role: RoleName = "viewer",
        expires: Expires = "90d",
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Create a token and print it, this once: onelog token create grafana --role viewer.

        The role is its scope. As soon as there are access rules, they narrow it to topics and
        cursors: onelog acl add allow 'user:token ID' subscribe 'topic:plant/#'. Rules do not bind
        the role admin.
        """
        command = CreateToken(
            label=label, role=AdminRole(role), lifetime_ms=duration_ms("--expires", expires)
        )
        made, where = perform(options, command)
        (info,) = made.tokens
        note = f"token {info.id}, role {info.role}, until {moment(info.expires_ms)}, {where}"
        render.ERRORS.print(Text(note))
        render.OUT.print(Text(made.text), soft_wrap=True)

    @app.command
    def revoke(token_id: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Make a token void, by its id."""
        where = perform(options, RevokeToken(id=token_id))[1]
        render.OUT.print(Text(f"revoked token {token_id} {where}"))

    @app.command(name="list")
    def list_command(*, shown: ListShown = WHOLE, options: DataOptions = DEFAULT_DATA) -> None:
        """List the tokens, without their secrets."""

        def fetch() -> Rows:
            found, _where = perform(options, ListTokens())
            yield to_builtins(found.tokens)

        none = "there are no tokens; `onelog token create LABEL` makes one"
        show_list(fetch, _COLUMNS, shown, none, _words)

    return app


def _words(row: Json) -> Json:
    return {**row, "until": "expired" if row["expired"] else moment(row["expires_ms"])}
