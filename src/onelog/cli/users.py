"""`onelog user …`: changes users, in a running server or in the data directory of a stopped one.

Rules: a password is asked for without echo or read from standard input, never taken from the
command line, where every other user of the machine could read it.
"""

from __future__ import annotations

import datetime
import getpass
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from onelog.base.errors import ConfigError, InvalidRequest
from onelog.cli import render
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options
from onelog.cli.reaching import RunOffline, reach
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
    UserInfo,
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data directory a command works on: that of a configuration."""

    config: ConfigFile = None
    data: DataDir = None
    assignments: Assignments = ()

    @property
    def data_dir(self) -> Path:
        """The data directory."""
        return Path(load_options(self.config, self.data, self.assignments).config.data_dir)


DEFAULT_DATA = DataOptions()


def build_users(run_offline: RunOffline | None) -> App:
    """The commands of `onelog user`."""
    app = App(name="user", help="Add, list, change or remove users, while the server runs or not.")

    def perform(options: DataOptions, command: Command) -> tuple[Answer, str]:
        assert run_offline is not None, "the command line was built without a store"
        return _perform(run_offline, options.data_dir, command)

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
        _say(f"added user {name} {perform(options, command)[1]}")

    @app.command
    def passwd(
        name: str, /, *, password_stdin: PasswordStdin = False, options: DataOptions = DEFAULT_DATA
    ) -> None:
        """Give a user a new password; asks for it."""
        password = _read_password(name, from_stdin=password_stdin)
        where = perform(options, SetPassword(name=name, password=password))[1]
        _say(f"changed the password of user {name} {where}")

    @app.command
    def disable(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Keep a user, but refuse its logins."""
        _say(f"disabled user {name} {perform(options, SetDisabled(name=name, disabled=True))[1]}")

    @app.command
    def enable(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Let a disabled user log in again."""
        _say(f"enabled user {name} {perform(options, SetDisabled(name=name, disabled=False))[1]}")

    @app.command
    def promote(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Make a user an administrator, who may change other users."""
        where = perform(options, SetAdministrator(name=name, administrator=True))[1]
        _say(f"user {name} is an administrator {where}")

    @app.command
    def demote(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Make an administrator an ordinary user."""
        where = perform(options, SetAdministrator(name=name, administrator=False))[1]
        _say(f"user {name} is no administrator {where}")

    @app.command
    def groups(name: str, /, *group: str, options: DataOptions = DEFAULT_DATA) -> None:
        """Put a user into these groups and no others, as in: onelog user groups alice ops lab.

        Access rules name groups as group:ops.
        """
        where = perform(options, SetGroups(name=name, groups=group))[1]
        _say(f"user {name} is in {', '.join(group) if group else 'no group'} {where}")

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
        _say(f"user {name} has the role {role} {where}")

    @app.command
    def remove(name: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Remove a user."""
        _say(f"removed user {name} {perform(options, RemoveUser(name=name))[1]}")

    @app.command(name="list")
    def list_command(*, options: DataOptions = DEFAULT_DATA) -> None:
        """List the users."""
        _show(*perform(options, ListUsers()))

    return app


def _show(found: Answer, where: str) -> None:
    if not found.users:
        _say(f"there are no users {where}; `onelog user add NAME` makes one")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("user", overflow="fold")
    for title in ("state", "role", "SCRAM", "groups", "changed"):
        table.add_column(title, no_wrap=True)
    for user in found.users:
        table.add_row(*map(Text, _row(user)), style="dim" if user.disabled else "")
    render.OUT.print(table)


def _row(user: UserInfo) -> tuple[str, ...]:
    return (
        user.name,
        "disabled" if user.disabled else "enabled",
        "administrator" if user.administrator else _role_name(user),
        "yes" if user.scram else "no",
        ", ".join(user.groups) or "-",
        _date(user.changed_ms),
    )


def _role_name(user: UserInfo) -> str:
    return "user" if user.role is AdminRole.NONE else user.role


def _date(stamp_ms: int) -> str:
    stamp = datetime.datetime.fromtimestamp(stamp_ms / 1000, datetime.UTC)
    return stamp.strftime("%Y-%m-%d %H:%M:%SZ")


def _say(line: str) -> None:
    render.OUT.print(Text(line))


def _perform(run_offline: RunOffline, data_dir: Path, command: Command) -> tuple[Answer, str]:
    """Run a command where the users are; the answer, and the place in words."""
    message = encode_command(command)
    answer, where = reach(run_offline, data_dir, message, makes_data=isinstance(command, AddUser))
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
