"""All users in memory, updated by a watch: a login needs no disk and no network.

Rules:
- The users are a projection of the metadata store: see `metadata/projection.py`. While the store
  cannot be reached, the last known users count.
- `reached` waits for a revision, so that a caller that changed a user knows that the change
  applies.
- A user whose record cannot be read cannot log in; other users are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Entry, MetadataStore
from onelog.observe import Troubles, get_logger
from onelog.security.users import PREFIX, User, decode_user, key_of

_log = get_logger("security")


class KnownUser(msgspec.Struct, frozen=True):
    """A user and the revision of the record."""

    user: User
    revision: int


class UserTable:
    """The users; made by `open`, ended by `close`."""

    def __init__(self, store: MetadataStore, troubles: Troubles) -> None:
        self.rows = Projection(store, PREFIX, _decode, troubles, self._tell)
        """What the commands that change users write through."""
        self._unreadable: set[str] = set()
        """Users that there are, but nothing is known of them."""
        self.on_change: Callable[[str], None] | None = None
        """Called with the name of each user that changed or went."""

    async def open(self) -> None:
        """Load every user and begin to watch."""
        await self.rows.open()

    async def close(self) -> None:
        """End the watch. Idempotent."""
        await self.rows.close()

    def get(self, name: str) -> KnownUser | None:
        """The user of this name, also a disabled one."""
        row = self.rows.get(key_of(name))
        return None if row is None else row.value

    def groups_of(self, name: str) -> tuple[str, ...]:
        """The groups of a user; none of a user that is not known."""
        known = self.get(name)
        return () if known is None else known.user.groups

    def is_administrator(self, name: str) -> bool:
        """Whether a user is an administrator."""
        known = self.get(name)
        return known is not None and known.user.administrator

    def __len__(self) -> int:
        return len(self.rows) - len(self._unreadable)

    @property
    def is_empty(self) -> bool:
        """Whether there is no user at all."""
        return not len(self.rows)

    async def reached(self, revision: int) -> None:
        """Wait until the changes up to a revision of `users/` apply here."""
        await self.rows.reached(revision)

    def _tell(self, changes: Sequence[Change[KnownUser | None]]) -> None:
        for change in changes:
            row = self.rows.get(change.key)
            name = change.key.removeprefix(PREFIX)
            if row is not None and row.value is None:
                self._unreadable.add(name)
            else:
                self._unreadable.discard(name)
            if self.on_change is not None:
                self.on_change(name)


def _decode(entry: Entry) -> KnownUser | None:
    try:
        return KnownUser(decode_user(entry), entry.mod_revision)
    except msgspec.MsgspecError as error:
        name = entry.key.removeprefix(PREFIX)
        _log.error("the record of a user cannot be read", user=name, error=str(error))
        return None
