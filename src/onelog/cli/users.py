"""`onelog user …`: changes users, in a running server or in the data directory of a stopped one.

Rules: a password is asked for without echo or read from standard input, never taken from the
command line, where every other user of the machine could read it.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from typing import Annotated, Literal

from cyclopts import App, Parameter
from msgspec import to_builtins

from onelog.base.errors import ConfigError, InvalidRequest
from onelog.cli.api.showing import WHOLE, Json, ListShown, Rows, show_list
from onelog.cli.places import HERE, Place
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.render import say
from onelog.cli.tables import columns
from onelog.security.commands import (
    AddUser,
    Answer,
    Command,
    ListUsers,
    RemoveUser,
    SetAdministrator,
    SetDisabled,
    SetGroups,
    SetPassword,
    SetRole,
    decode_answer,
    encode_command,
)
from onelog.security.roles import AdminRole

PasswordStdin = Annotated[
    bool,
    Parameter(
        name="--password-stdin",
        negative=(),
        show_default=False,
        help="Read the password from the first line of standard input.",
    ),
]
NoScram = Annotated[
    bool,
    Parameter(
        name="--no-scram",
        negative=(),
        show_default=False,
        help="Keep no SCRAM credentials: the user logs in by password or certificate only.",
    ),
]
Administrator = Annotated[
    bool,
    Parameter(
        name="--administrator",
        negative=(),
        show_default=False,
        help="Let the user change other users by the management API and by Kafka's tools.",
    ),
]


_COLUMNS = columns("name state role groups:name scram changed_ms")

DataOptions = Place
DEFAULT_DATA = HERE
"""Which server or data directory a command works on: by default that of the configuration."""


def build_users(run_offline: RunOffline | None) -> App:
    """The commands of `onelog user`."""
    app = App(name="user", help="Add, list, change or remove users, while the server runs or not.")

    def perform(options: DataOptions, command: Command) -> tuple[Answer, str]:
        assert run_offline is not None, "the command line was built without a store"
        return _perform(run_offline, options, command)

    @app.command
    def add(
        name: str,
        /,
        *,
        password_stdin: PasswordStdin = False,
        no_scram: NoScram = False,
        administrator: Administrator = False,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Add a user; asks for the password."""
        password = _read_password(name, from_stdin=password_stdin)
        command = AddUser(
            name=name, password=password, scram=not no_scram, administrator=administrator
        )
        say(f"added user {name} {perform(options, command)[1]}")

    @app.command
    def passwd(
        name: str, /, *, password_stdin: PasswordStdin = False, options: DataOptions = DEFAULT_DATA
    ) -> None:
        """Give a user a new password; asks for it."""
        password = _read_password(name, from_stdin=password_stdin)
        where = perform(options, SetPassword(name=name, password=password))[1]
        say(f"changed the password of user {name} {where}")

    @app.command
    def disable(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Keep a user, but refuse its logins."""
        say(f"disabled user {name} {perform(options, SetDisabled(name=name, disabled=True))[1]}")

    @app.command
    def enable(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Let a disabled user log in again."""
        say(f"enabled user {name} {perform(options, SetDisabled(name=name, disabled=False))[1]}")

    @app.command
    def promote(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Make a user an administrator, who may change other users."""
        where = perform(options, SetAdministrator(name=name, administrator=True))[1]
        say(f"user {name} is an administrator {where}")

    @app.command
    def demote(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Make an administrator an ordinary user."""
        where = perform(options, SetAdministrator(name=name, administrator=False))[1]
        say(f"user {name} is no administrator {where}")

    @app.command
    def groups(name: str, /, *group: str, options: DataOptions = DEFAULT_DATA) -> None:
        """Put a user into these groups and no others, as in: onelog user groups alice ops lab.

        Access rules name groups as group:ops.
        """
        where = perform(options, SetGroups(name=name, groups=group))[1]
        say(f"user {name} is in {', '.join(group) if group else 'no group'} {where}")

    @app.command
    def role(
        name: str,
        role: Literal["none", "viewer", "operator", "admin"],
        /,
        *,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Say what a user may do over the admin API; none: nothing."""
        where = perform(options, SetRole(name=name, role=AdminRole(role)))[1]
        say(f"user {name} has the role {role} {where}")

    @app.command
    def remove(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Remove a user."""
        say(f"removed user {name} {perform(options, RemoveUser(name=name))[1]}")

    _add_list(app, perform)
    return app


def _add_list(app: App, perform: Callable[[Place, Command], tuple[Answer, str]]) -> None:
    @app.command(name="list")
    def list_command(*, shown: ListShown = WHOLE, options: DataOptions = DEFAULT_DATA) -> None:
        """List the users."""

        def fetch() -> Rows:
            found, _where = perform(options, ListUsers())
            yield to_builtins(found.users)

        none = "there are no users; `onelog user add NAME` makes one"
        show_list(fetch, _COLUMNS, shown, none, _words)


def _words(row: Json) -> Json:
    role = "user" if row["role"] == AdminRole.NONE else row["role"]
    return {
        **row,
        "state": "disabled" if row["disabled"] else "enabled",
        "role": "administrator" if row["administrator"] else role,
    }


def _perform(run_offline: RunOffline, place: Place, command: Command) -> tuple[Answer, str]:
    """Run a command where the users are; the answer, and the place in words."""
    message = encode_command(command)
    answer, where = reach(run_offline, place, message, makes_data=isinstance(command, AddUser))
    return decode_answer(answer), where


def _read_password(name: str, /, *, from_stdin: bool) -> str:
    if from_stdin:
        line = sys.stdin.readline()
        if not line:
            raise ConfigError("--password-stdin: standard input is empty")
        return line.removesuffix("\n").removesuffix("\r")
    if not sys.stdin.isatty():
        raise ConfigError(
            "there is no terminal to ask for the password: use --password-stdin, as in "
            f"`onelog user add {name} --password-stdin < file`"
        )
    try:
        first = getpass.getpass(f"Password for {name}: ")
        second = getpass.getpass("The same again: ")
    except (EOFError, KeyboardInterrupt):
        raise InvalidRequest("no password was given; nothing was changed") from None
    if first != second:
        raise InvalidRequest("the two passwords are not the same; nothing was changed")
    return first
