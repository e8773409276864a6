"""Commands on users: the messages that `onelog user` sends, and the code that runs them.

Rules: the same message runs in a server, which gets it over its control socket, and on the data
directory of a stopped one; `base/commands.py` has the form. Nothing here is heavy to import,
because the command line does.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.security.new_passwords import check_new_password
from onelog.security.roles import AdminRole

SUBJECT: Final = "user"


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a user's record that may be shown."""

    name: str
    created_ms: int
    changed_ms: int
    disabled: bool
    scram: tuple[str, ...]
    """The SCRAM mechanisms that it can log in with."""
    administrator: bool = False
    """Whether it may change other users over the management API."""
    groups: tuple[str, ...] = ()
    """What access rules may call it by, beside its name."""
    role: AdminRole = AdminRole.NONE
    """What it may do over the admin API."""


class AddUser(msgspec.Struct, frozen=True, kw_only=True, tag="user.add"):
    """Make a user."""

    name: str
    password: str
    scram: bool = True
    administrator: bool = False


class SetPassword(msgspec.Struct, frozen=True, kw_only=True, tag="user.passwd"):
    """Give a user a new password."""

    name: str
    password: str


class SetDisabled(msgspec.Struct, frozen=True, kw_only=True, tag="user.disable"):
    """Disable a user, or let it log in again."""

    name: str
    disabled: bool


class SetAdministrator(msgspec.Struct, frozen=True, kw_only=True, tag="user.administrator"):
    """Make a user an administrator, or take that away."""

    name: str
    administrator: bool


class SetGroups(msgspec.Struct, frozen=True, kw_only=True, tag="user.groups"):
    """Put a user into these groups and no others."""

    name: str
    groups: tuple[str, ...]


class SetRole(msgspec.Struct, frozen=True, kw_only=True, tag="user.role"):
    """Say what a user may do over the admin API."""

    name: str
    role: AdminRole


class RemoveUser(msgspec.Struct, frozen=True, kw_only=True, tag="user.remove"):
    """Forget a user."""

    name: str


class ListUsers(msgspec.Struct, frozen=True, kw_only=True, tag="user.list"):
    """Show every user."""


Command = (
    AddUser
    | SetPassword
    | SetDisabled
    | SetAdministrator
    | SetGroups
    | SetRole
    | RemoveUser
    | ListUsers
)


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a command."""

    users: tuple[UserInfo, ...] = ()
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


class UserDesk(Protocol):
    """Runs the commands."""

    async def add(
        self, name: str, password: str, *, scram: bool = True, administrator: bool = False
    ) -> None:
        """Make a user."""
        ...

    async def set_password(self, name: str, password: str) -> None:
        """Give a user a new password."""
        ...

    async def set_disabled(self, name: str, disabled: bool) -> None:
        """Disable a user, or let it log in again."""
        ...

    async def set_administrator(self, name: str, administrator: bool) -> None:
        """Make a user an administrator, or take that away."""
        ...

    async def set_groups(self, name: str, groups: tuple[str, ...]) -> None:
        """Put a user into these groups and no others."""
        ...

    async def set_role(self, name: str, role: AdminRole) -> None:
        """Say what a user may do over the admin API."""
        ...

    async def remove(self, name: str) -> None:
        """Forget a user."""
        ...

    async def infos(self) -> tuple[UserInfo, ...]:
        """Every user, in the order of their names."""
        ...


def encode_command(command: Command) -> bytes:
    """The message of a command."""
    return msgspec.json.encode(command)


async def run_command(desk: UserDesk, message: bytes) -> bytes:
    """Run the command of a message; the message of its answer, also when it failed."""
    return await run_decoded(message, Command, partial(_run, desk))


def decode_answer(message: bytes) -> Answer:
    """The answer in a message. Raises the error if the message contains one."""
    return decoded(message, Answer)


async def _run(desk: UserDesk, command: Command) -> Answer:
    match command:
        case AddUser():
            check_new_password(command.name, command.password)
            await desk.add(
                command.name,
                command.password,
                scram=command.scram,
                administrator=command.administrator,
            )
        case SetPassword():
            check_new_password(command.name, command.password)
            await desk.set_password(command.name, command.password)
        case SetDisabled():
            await desk.set_disabled(command.name, command.disabled)
        case SetAdministrator():
            await desk.set_administrator(command.name, command.administrator)
        case SetGroups():
            await desk.set_groups(command.name, command.groups)
        case SetRole():
            await desk.set_role(command.name, command.role)
        case RemoveUser():
            await desk.remove(command.name)
        case ListUsers():
            return Answer(users=await desk.infos())
    return Answer()
