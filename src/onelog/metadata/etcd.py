"""The metadata store on etcd, over its JSON gateway: nothing but HTTP, no library.

Rules:
- All keys lie under one prefix, so that several clusters can share an etcd.
- Reads are linearizable. A read of many keys comes in pages of one revision.
- A mutation has the three outcomes of `metadata/store.py`; nothing is sent twice.
- `write` goes in parts, and calls that come after it wait until it is done.
- While watches are open, a pulse asks their members, and breaks the watches of one that is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import (
    Closed,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
    OnelogError,
    Unavailable,
)
from onelog.metadata.etcd_http import parse_endpoint
from onelog.metadata.etcd_members import AnswerTooLarge, EtcdMember, EtcdMembers
from onelog.metadata.etcd_watch import EtcdWatch
from onelog.metadata.etcd_wire import (
    LeaseAnswer,
    LeaseLine,
    RangeAnswer,
    TxnAnswer,
    WrongBytes,
    compare_of,
    entry_of,
    range_end,
    request_of,
)
from onelog.metadata.parts import in_parts
from onelog.metadata.rules import check_key, check_lease, check_text, check_txn, check_write
from onelog.metadata.store import Compare, Delete, Entry, Op, Put, Range, TxnResult, Watch
from onelog.observe.troubles import Troubles

PAGE_ROWS: Final = 512
"""Keys that one request reads."""
PULSE_S: Final = 2.0
"""How often the members of open watches are asked whether they live."""
RECONCILE_S: Final = 300.0
"""How often a projection compares its rows with all keys."""
LEASE_S_MAX: Final = 9_000_000_000
"""etcd's longest lease."""


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where etcd is, and how it is asked."""

    endpoints: tuple[str, ...]
    prefix: str
    """What all keys begin with: /onelog/NAME/."""
    deadline_s: float = 5.0
    progress_s: float = 600.0
    """How often etcd tells a watch without changes that it lives."""
    pulse_s: float = PULSE_S
    user: str = ""
    password: str = ""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Makes the context of a new connection to an https endpoint."""


class EtcdStore:
    """The store; made by `EtcdStore.open`."""

    reconcile_s = RECONCILE_S

    def __init__(self, settings: EtcdSettings, troubles: Troubles) -> None:
        assert settings.prefix, "all keys have a prefix"
        self._settings = settings
        self._prefix = settings.prefix
        self._prefix_bytes = len(settings.prefix.encode())
        self.members = EtcdMembers(
            map(parse_endpoint, settings.endpoints),
            troubles,
            deadline_s=settings.deadline_s,
            tls=settings.tls,
            login=(settings.user, settings.password) if settings.user else None,
        )
        self._watches: set[EtcdWatch] = set()
        self._writing: asyncio.Future[None] | None = None
        """Ends with the last write in parts that was begun."""
        self._pulse: asyncio.Task[None] | None = None
        self._closing = False

    @classmethod
    async def open(cls, settings: EtcdSettings, troubles: Troubles) -> EtcdStore:
        """Look at every member. Raises ConfigError when one may not be used, Unavailable when none
        answers."""
        store = cls(settings, troubles)
        try:
            await store.members.check_all()
            await store.range("", 1)
        except BaseException:
            await store.close()
            raise
        return store

    # ---- the interface ----

    async def get(self, key: str) -> Entry | None:
        """One key, or None."""
        check_key(key)
        await self._turn()
        name = (self._prefix + key).encode()
        answer = await self._range({"key": name})
        return self._entry(answer, 0) if answer.kvs else None

    async def range(self, prefix: str, limit: int = 0) -> Range:
        """Every key that starts with `prefix`, in key order (limit 0: all)."""
        check_text(prefix)
        if limit < 0:
            raise InvalidRequest(f"a range's limit is 0 (all) or more, not {limit}")
        await self._turn()
        while True:
            try:
                return await self._pages((self._prefix + prefix).encode(), limit)
            except OffsetOutOfRange:  # compacted between two pages: begin again
                continue

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """If all compares hold, apply `then`, otherwise `otherwise`; atomically."""
        check_txn(compares, then, otherwise)
        await self._turn()
        answer = await self._transact(compares, then, otherwise)
        return TxnResult(answer.succeeded, answer.header.revision)

    async def write(self, ops: Sequence[Op]) -> None:
        """Apply any number of operations, in parts; later calls come after them."""
        rows = tuple(ops)
        check_write(rows)
        before = self._writing
        done = self._writing = asyncio.get_running_loop().create_future()
        try:
            if before is not None:
                await asyncio.wait([before])
            self._need_open()
            for part in in_parts(rows):
                await self._transact((), part, ())
        finally:
            done.set_result(None)
            if self._writing is done:
                self._writing = None

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write one key. Returns the new revision."""
        return (await self.txn((), (Put(key, value, lease),))).revision

    async def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key or a prefix. Returns how many keys were deleted."""
        ops = (Delete(key, prefix),)
        check_txn((), ops, ())
        await self._turn()
        answer = await self._transact((), ops, ())
        return sum(
            row.response_delete_range.deleted
            for row in answer.responses
            if row.response_delete_range is not None
        )

    async def grant(self, ttl_s: float) -> int:
        """A new lease, of whole seconds; etcd may give a longer one."""
        if not (math.isfinite(ttl_s) and 0 < ttl_s <= LEASE_S_MAX):
            raise InvalidRequest(f"a lease lives for a positive number of seconds, not {ttl_s}")
        await self._turn()
        request = {"TTL": math.ceil(ttl_s)}
        answer = await self.members.ask("/v3/lease/grant", request, LeaseAnswer, changes=True)
        return answer.ID

    async def keep_alive(self, lease: int) -> None:
        """Restart the lease's time. Raises NotFound when it is gone."""
        check_lease(lease)
        await self._turn()
        answer = await self.members.ask("/v3/lease/keepalive", {"ID": lease}, LeaseLine)
        if answer.result is None:
            why = answer.error.message if answer.error is not None else "an empty answer"
            raise Unavailable(f"etcd does not keep lease {lease} alive now: {why}")
        if answer.result.TTL <= 0:
            raise NotFound(f"lease {lease} expired or was revoked; grant a new one")

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys."""
        check_lease(lease)
        await self._turn()
        await self.members.ask("/v3/lease/revoke", {"ID": lease}, LeaseAnswer, changes=True)

    async def watch(self, prefix: str, from_revision: int = 0) -> Watch:
        """Changes under `prefix` with mod revision >= `from_revision` (0: from now on)."""
        check_text(prefix)
        if from_revision < 0:
            raise InvalidRequest(f"a watch starts at revision 0 (now) or more, not {from_revision}")
        await self._turn()
        watch = EtcdWatch(
            self.members,
            self._prefix + prefix,
            self._prefix_bytes,
            from_revision,
            self._settings.progress_s,
            self._watches.discard,
        )
        self._watches.add(watch)
        await watch.open()
        if self._pulse is None:
            self._pulse = asyncio.get_running_loop().create_task(self._beat(), name="etcd-pulse")
        return watch

    async def snapshot(self, path: Path) -> int:
        """Write all keys but those of leases into a file of the embedded store, whose revisions
        are its own. Returns the revision of etcd that it holds."""
        found = await self.range("")
        await asyncio.to_thread(_write_file, path, found.entries)
        return found.revision

    async def close(self) -> None:
        """Close everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        watches = tuple(self._watches)
        for watch in watches:
            watch.close()
        if self._pulse is not None:
            self._pulse.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pulse
        await self.members.close()
        for watch in watches:
            await watch.ended()

    # ---- inside ----

    def _need_open(self) -> None:
        if self._closing:
            raise Closed("the metadata store was closed")

    async def _turn(self) -> None:
        """Wait for the writes in parts that were called before."""
        self._need_open()
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._need_open()

    async def _transact(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]
    ) -> TxnAnswer:
        request = {
            "compare": [compare_of(row, self._prefix) for row in compares],
            "success": [request_of(op, self._prefix) for op in then],
            "failure": [request_of(op, self._prefix) for op in otherwise],
        }
        return await self.members.ask(
            "/v3/kv/txn", request, TxnAnswer, changes=bool(then or otherwise), is_ordered=True
        )

    async def _range(self, request: dict[str, object]) -> RangeAnswer:
        return await self.members.ask("/v3/kv/range", request, RangeAnswer, is_ordered=True)

    async def _pages(self, first: bytes, limit: int) -> Range:
        """All keys under a prefix, as they were at one revision. Raises OffsetOutOfRange when that
        revision was compacted meanwhile."""
        end, revision, rows = range_end(first), 0, PAGE_ROWS
        entries: list[Entry] = []
        while True:
            page = min(rows, limit - len(entries)) if limit else rows
            request = {"key": first, "range_end": end, "limit": page, "revision": revision}
            try:
                answer = await self._range(request)
            except AnswerTooLarge:
                if rows == 1:
                    raise
                rows = max(1, rows // 8)
                continue
            revision = revision or answer.header.revision
            entries += (self._entry(answer, at) for at in range(len(answer.kvs)))
            if not answer.more or not answer.kvs or (limit and len(entries) >= limit):
                return Range(tuple(entries), revision)
            first = answer.kvs[-1].key + b"\0"

    def _entry(self, answer: RangeAnswer, at: int) -> Entry:
        try:
            return entry_of(answer.kvs[at], self._prefix_bytes)
        except WrongBytes as wrong:
            raise Unavailable(
                f"{wrong}: somebody else wrote under {self._prefix}; delete that key"
            ) from None

    async def _beat(self) -> None:
        """Ask the members of open watches whether they live."""
        key = {"key": self._prefix.encode(), "count_only": True}
        while True:
            await asyncio.sleep(self._settings.pulse_s)
            watched = {watch.member for watch in self._watches if watch.member is not None}
            await asyncio.gather(*(self._ask_one(member, key) for member in watched))

    async def _ask_one(self, member: EtcdMember, request: dict[str, object]) -> None:
        try:
            deadline_s = self._settings.pulse_s
            await self.members.ask(
                "/v3/kv/range", request, RangeAnswer, only=member, deadline_s=deadline_s
            )
        except OnelogError:
            for watch in tuple(self._watches):
                if watch.member is member:
                    watch.break_off()


def _write_file(path: Path, entries: Sequence[Entry]) -> None:
    """In a thread: make a file of the embedded store."""
    from onelog.metadata.local_database import LocalDatabase  # noqa: PLC0415 - for backups only

    database = LocalDatabase(path, history_revisions=1)
    try:
        ops: list[Op] = [Put(row.key, row.value) for row in entries if not row.lease]
        for part in in_parts(ops):
            database.begin()
            database.apply(part)
            database.commit()
    finally:
        database.close()
