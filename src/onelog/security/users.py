"""Users: their records in the metadata store, and the commands that change them.

Rules: one key per user, `users/<name>`. A record holds an argon2id hash and SCRAM credentials,
never the password. Each change is one compare-and-set, so two of them never mix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import AlreadyExists, Conflict, InvalidName, InvalidRequest, NotFound
from onelog.metadata.projection import Projection
from onelog.metadata.store import Compare, Delete, Entry, MetadataStore, Op, Put
from onelog.security.commands import UserInfo
from onelog.security.hashing import NOBODY, PASSWORD_BYTES_MAX, HashThreads, hash_password
from onelog.security.identity import NAME_BYTES_MAX, check_user_name
from onelog.security.roles import AdminRole
from onelog.security.scram import MECHANISMS, ScramCredential, make_credential, prepare

PREFIX: Final = "users/"
GROUPS_MAX: Final = 100
"""Groups of one user."""
GROUP_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

Fields = dict[str, Any]
"""Fields of a record, by name."""


class User(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a user in the store."""

    name: str
    password_hash: str
    scram: dict[str, ScramCredential] = {}
    """Credentials by mechanism."""
    created_ms: int
    changed_ms: int
    disabled: bool = False
    administrator: bool = False
    """Whether it may change other users over the management API; its role is `admin` then."""
    role: AdminRole = AdminRole.NONE
    """What it may do over the admin API, if it is no administrator."""
    groups: tuple[str, ...] = ()
    """What access rules may call it by, beside its name."""

    @property
    def admin_role(self) -> AdminRole:
        """What it may do over the admin API."""
        return AdminRole.ADMIN if self.administrator else self.role


def key_of(name: str) -> str:
    """Where a user's record is kept."""
    return PREFIX + name


def decode_user(entry: Entry) -> User:
    """The record of an entry."""
    return msgspec.msgpack.decode(entry.value, type=User)


class Users:
    """The commands. They work on any store, whether or not a broker runs on it."""

    def __init__(
        self,
        store: MetadataStore,
        threads: HashThreads,
        clock: Clock,
        rows: Projection[Any] | None = None,
    ) -> None:
        self._store = store
        self._threads = threads
        self._clock = clock
        self._rows = rows
        """The users of this process: a change applies to them before it is answered."""

    async def add(
        self,
        name: str,
        password: str,
        *,
        scram: bool = True,
        administrator: bool = False,
        role: AdminRole = AdminRole.NONE,
        groups: Iterable[str] = (),
    ) -> None:
        """Make a user; it can log in when this returns. Raises AlreadyExists."""
        check_user_name(name, _prepared_name(name))
        fields = _role_fields(AdminRole.ADMIN if administrator else role)
        fields["groups"] = check_groups(groups)
        made = msgspec.structs.replace(await self._make(name, password, scram), **fields)
        if not await self._write(key_of(name), 0, _put(made)):
            raise AlreadyExists(
                f"user {name!r} exists already; `onelog user passwd` gives it a new password"
            )

    async def set_password(
        self, name: str, password: str, *, administrator: bool | None = None
    ) -> None:
        """Give a user a new password; the old one is void when this returns. Raises NotFound."""
        fields: Fields = {} if administrator is None else {"administrator": administrator}
        await self._change(name, password, **fields)

    async def set_disabled(self, name: str, disabled: bool) -> None:
        """Disable a user, or let it log in again. Raises NotFound."""
        await self._change(name, disabled=disabled)

    async def set_administrator(self, name: str, administrator: bool) -> None:
        """Make a user an administrator, or take that away. Raises NotFound."""
        await self._change(name, administrator=administrator)

    async def set_groups(self, name: str, groups: tuple[str, ...]) -> None:
        """Put a user into these groups and no others. Raises NotFound."""
        await self._change(name, groups=check_groups(groups))

    async def set_role(self, name: str, role: AdminRole) -> None:
        """Say what a user may do over the admin API. Raises NotFound."""
        await self._change(name, **_role_fields(role))

    async def change(
        self,
        name: str,
        *,
        password: str | None = None,
        role: AdminRole | None = None,
        disabled: bool | None = None,
        groups: Iterable[str] | None = None,
    ) -> None:
        """Change several things of a user, all or none. What is None stays. Raises NotFound."""
        fields: Fields = {} if role is None else _role_fields(role)
        if disabled is not None:
            fields["disabled"] = disabled
        if groups is not None:
            fields["groups"] = check_groups(groups)
        await self._change(name, password, **fields)

    async def _change(self, name: str, password: str | None = None, /, **fields: Any) -> None:
        entry, user = await self._get(name)
        if password is not None:
            made = await self._make(name, password, bool(user.scram))
            fields |= {"password_hash": made.password_hash, "scram": made.scram}
        changed = msgspec.structs.replace(user, changed_ms=self._clock.now_ms(), **fields)
        await self._replace(entry, _put(changed))

    async def remove(self, name: str) -> None:
        """Forget a user; it cannot log in when this returns. Raises NotFound."""
        entry, _ = await self._get(name)
        await self._replace(entry, Delete(entry.key))

    async def change_scram(
        self, name: str, put: Mapping[str, ScramCredential], drop: Iterable[str]
    ) -> None:
        """Give a user SCRAM credentials by mechanism and take others away; the password stays.

        A user that is not there is made, without a password. A user who has neither a password nor
        a credential left is removed. Raises NotFound for a credential that the user does not have.
        """
        check_user_name(name, _prepared_name(name))
        entry = await self._store.get(key_of(name))
        now_ms = self._clock.now_ms()
        user = (
            User(name=name, password_hash=NOBODY, created_ms=now_ms, changed_ms=now_ms)
            if entry is None
            else decode_user(entry)
        )
        scram = dict(user.scram)
        for mechanism in drop:
            if scram.pop(mechanism, None) is None:
                raise NotFound(f"the user {name!r} has no credential of {mechanism}")
        changed = msgspec.structs.replace(user, scram=scram | dict(put), changed_ms=now_ms)
        if entry is not None:
            gone = not changed.scram and changed.password_hash == NOBODY
            await self._replace(entry, Delete(entry.key) if gone else _put(changed))
            return
        if not await self._write(key_of(name), 0, _put(changed)):
            raise Conflict(f"user {name!r} was added by another command meanwhile; try again")

    async def scram_iterations(self) -> dict[str, dict[str, int]]:
        """Every user, and how often each of its SCRAM credentials was hashed, by mechanism."""
        found = await self._store.range(PREFIX)
        users = (decode_user(entry) for entry in found.entries)
        return {
            user.name: {mechanism: row.iterations for mechanism, row in user.scram.items()}
            for user in users
        }

    async def infos(self) -> tuple[UserInfo, ...]:
        """Every user, in the order of their names."""
        found = await self._store.range(PREFIX)
        return tuple(_info(decode_user(entry)) for entry in found.entries)

    async def info(self, name: str) -> UserInfo:
        """One user. Raises NotFound."""
        return _info((await self._get(name))[1])

    async def _get(self, name: str) -> tuple[Entry, User]:
        entry = None
        if 0 < len(name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX:
            entry = await self._store.get(key_of(name))
        if entry is None:
            raise NotFound(f"there is no user {name!r}; `onelog user list` shows all users")
        return entry, decode_user(entry)

    async def _replace(self, entry: Entry, op: Op) -> None:
        if not await self._write(entry.key, entry.mod_revision, op):
            name = entry.key.removeprefix(PREFIX)
            raise Conflict(f"user {name!r} was changed by another command meanwhile; try again")

    async def _write(self, key: str, revision: int, op: Op) -> bool:
        """Change a record if it still has this revision (0: if there is none); whether it had."""
        if self._rows is None:  # no broker runs: nothing is in memory
            same = Compare(key, "mod_revision", "==", revision)
            return (await self._store.txn((same,), (op,))).succeeded
        try:
            await self._rows.write([op], known={key: revision})
        except Conflict:
            return False
        return True

    async def _make(self, name: str, password: str, scram: bool) -> User:
        raw = check_password(password)

        def work() -> User:
            mechanisms = MECHANISMS if scram else ()
            now_ms = self._clock.now_ms()
            return User(
                name=name,
                password_hash=hash_password(raw),
                scram={item: make_credential(item, password) for item in mechanisms},
                created_ms=now_ms,
                changed_ms=now_ms,
            )

        return await self._threads.run(work)


def check_password(password: str) -> bytes:
    """The bytes of a password that a user may have. Raises InvalidRequest."""
    if not password:
        raise InvalidRequest("a password has at least one character")
    try:
        raw = password.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a password is UTF-8 text, this one is not") from None
    if len(raw) > PASSWORD_BYTES_MAX:
        raise InvalidRequest(f"a password has at most {PASSWORD_BYTES_MAX} bytes")
    try:
        prepared = prepare(password)
    except InvalidRequest as error:
        raise InvalidRequest(f"the password has a character that is {error}") from None
    if not prepared:
        raise InvalidRequest("a password has at least one visible character")
    return raw


def check_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """The groups that a user may be in, each once. Raises InvalidName."""
    found = tuple(dict.fromkeys(groups))
    if len(found) > GROUPS_MAX:
        raise InvalidName(f"a user is in at most {GROUPS_MAX} groups, not in {len(found)}")
    for name in found:
        if GROUP_NAME.fullmatch(name) is None:
            raise InvalidName(
                f"the group {name[:80]!r} must have 1 to 64 letters, digits, '.', '_' or '-'"
            )
    return found


def _role_fields(role: AdminRole) -> Fields:
    """How a record keeps a role."""
    is_admin = role is AdminRole.ADMIN
    return {"administrator": is_admin, "role": AdminRole.NONE if is_admin else role}


def _prepared_name(name: str) -> str:
    try:
        return prepare(name)
    except InvalidRequest as error:
        raise InvalidName(f"the user's name {name!r} has a character that is {error}") from None


def _put(user: User) -> Put:
    return Put(key_of(user.name), msgspec.msgpack.encode(user))


def _info(user: User) -> UserInfo:
    return UserInfo(
        name=user.name,
        created_ms=user.created_ms,
        changed_ms=user.changed_ms,
        disabled=user.disabled,
        scram=tuple(user.scram),
        administrator=user.administrator,
        groups=user.groups,
        role=user.admin_role,
    )
