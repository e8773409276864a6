"""All users in memory, updated by a watch: a login needs no disk and no network.

Rules:
- The table is loaded whole, then changed in the order of the store's revisions. If the watch's
  history ends, it is loaded anew. While the store cannot be reached, the last known users count.
- `reached` waits for a revision, so that a caller that changed a user knows that the change
  applies.
- A user whose record cannot be read cannot log in; other users are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from onelog.base.errors import Closed, OffsetOutOfRange, OnelogError, Timeout
from onelog.metadata.store import Entry, Event, MetadataStore, Watch
from onelog.observe import get_logger
from onelog.security.users import PREFIX, User, decode_user

_log = get_logger("security")

RETRY_S: Final = 1.0
"""Wait before a watch that broke is tried again."""

REACH_TIMEOUT_S: Final = 5.0
"""How long a change may take until it applies here."""


class KnownUser(msgspec.Struct, frozen=True):
    """A user and the revision of the record."""

    user: User
    revision: int


class UserTable:
    """The users; made by `open`, ended by `close`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._users: dict[str, KnownUser] = {}
        self._unreadable: set[str] = set()
        """Users that there are, but nothing is known of them."""
        self._revision = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.on_change: Callable[[str], None] | None = None
        """Called with the name of each user that changed or went."""

    async def open(self) -> None:
        """Load every user and begin to watch."""
        await self._load()
        self._task = asyncio.create_task(self._follow(), name="users-watch")

    async def close(self) -> None:
        """End the watch. Idempotent."""
        self._closing = True
        if self._watch is not None:
            self._watch.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Closed("the user is stored; the server stops"))

    def get(self, name: str) -> KnownUser | None:
        """The user of this name, also a disabled one."""
        return self._users.get(name)

    def __len__(self) -> int:
        return len(self._users)

    @property
    def is_empty(self) -> bool:
        """Whether there is no user at all."""
        return not self._users and not self._unreadable

    async def reached(self, revision: int) -> None:
        """Wait until the changes up to a revision of `users/` apply here."""
        if revision <= self._revision:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((revision, waiter))
        try:
            async with asyncio.timeout(REACH_TIMEOUT_S):
                await waiter
        except TimeoutError:
            raise Timeout(
                "the user is stored, but is not in effect yet; the server's log says why"
            ) from None
        finally:
            self._waiters = [row for row in self._waiters if row[1] is not waiter]

    async def _load(self) -> None:
        found = await self._store.range(PREFIX)
        self._watch = await self._store.watch(PREFIX, found.revision + 1)
        before, self._users = self._users, {}
        self._unreadable.clear()
        for entry in found.entries:
            self._put(entry)
        for name in before.keys() | self._users.keys():
            if before.get(name) != self._users.get(name):
                self._tell(name)
        self._advance(found.revision)

    async def _follow(self) -> None:
        while not self._closing:
            try:
                if self._watch is None:
                    await self._load()
                assert self._watch is not None
                async for events in self._watch:
                    self._apply(events)
            except OffsetOutOfRange:
                self._watch = None
            except OnelogError as error:
                _log.warning(
                    "changes of users cannot be watched", error=str(error), retry_s=RETRY_S
                )
                self._watch = None
                await asyncio.sleep(RETRY_S)
            else:
                return  # the store was closed

    def _apply(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.kind == "put":
                self._put(event.entry)
            else:
                self._users.pop(event.entry.key.removeprefix(PREFIX), None)
                self._unreadable.discard(event.entry.key.removeprefix(PREFIX))
            self._tell(event.entry.key.removeprefix(PREFIX))
        self._advance(events[0].entry.mod_revision)

    def _put(self, entry: Entry) -> None:
        name = entry.key.removeprefix(PREFIX)
        try:
            user = decode_user(entry)
        except msgspec.MsgspecError as error:
            _log.error("the record of a user cannot be read", user=name, error=str(error))
            self._users.pop(name, None)
            self._unreadable.add(name)
            return
        self._unreadable.discard(name)
        self._users[name] = KnownUser(user, entry.mod_revision)

    def _tell(self, name: str) -> None:
        if self.on_change is not None:
            self.on_change(name)

    def _advance(self, revision: int) -> None:
        self._revision = max(self._revision, revision)
        for wanted, waiter in self._waiters:
            if wanted <= self._revision and not waiter.done():
                waiter.set_result(None)
