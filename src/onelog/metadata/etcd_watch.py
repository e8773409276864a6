"""A watch of etcd: a stream of changes that goes on at another member when one fails.

Rules:
- Whole revisions, in order, once: after a break the stream is asked for again from the revision
  that follows the last one taken.
- A member without a leader ends the stream by itself, because every request asks for a leader. A
  stream without any line for three progress intervals is broken. So is one whose member does not
  answer the store's pulse.
- History that etcd compacted ends the watch with OffsetOutOfRange: the reader loads the keys anew.
- A watch holds a bounded number of revisions and bytes for its reader. Beyond the bound it reads no
  more from the socket (I8).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from onelog.base.errors import Closed, InvalidRequest, OffsetOutOfRange, OnelogError, Unavailable
from onelog.metadata.etcd_http import HttpConnection, HttpFailed
from onelog.metadata.etcd_members import EtcdMember, EtcdMembers
from onelog.metadata.etcd_wire import (
    WatchedEvent,
    WatchFrame,
    WatchLine,
    WrongBytes,
    decode,
    entry_of,
    is_stale_login,
    range_end,
)
from onelog.metadata.store import Event
from onelog.observe import get_logger

Revision = tuple[Event, ...]

QUEUE_REVISIONS_MAX: Final = 1024
"""Revisions that one watch holds for its reader, one frame more at most."""
QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of values that one watch holds for its reader, one frame more at most."""
SILENT_INTERVALS: Final = 3
"""A stream that shows nothing for so many progress intervals is broken."""
REOPEN_MIN_S: Final = 0.1
REOPEN_MAX_S: Final = 2.0
"""Wait before a broken stream is asked for again: the double each time."""

_log = get_logger("etcd")


class _Broken(Exception):
    """The stream ended and can be asked for again."""


class EtcdWatch:
    """One running watch; one task iterates over it."""

    def __init__(
        self,
        members: EtcdMembers,
        prefix: str,
        own_bytes: int,
        first: int,
        progress_s: float,
        forget: Callable[[EtcdWatch], None],
    ) -> None:
        self._members = members
        self._key = prefix.encode()
        self._own_bytes = own_bytes
        """How many bytes of each key are the store's own prefix."""
        self._next = first
        self._silence_s = progress_s * SILENT_INTERVALS
        self._forget = forget
        self._queue: deque[Revision] = deque()
        self._bytes = 0
        self._begun: list[Event] = []
        """The events of a revision whose other events come with the next frame."""
        self._member: EtcdMember | None = None
        self._connection: HttpConnection | None = None
        self._is_paused = False
        self._is_begun = False
        """Whether the member said that the stream began."""
        self._heard_at = 0.0
        self._wake: asyncio.Future[None] | None = None
        self._error: OnelogError | None = None
        self._closed = False
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.reopened = 0
        """How often the stream broke."""

    @property
    def member(self) -> EtcdMember | None:
        """The member that shows the changes now."""
        return self._member

    async def open(self) -> None:
        """Begin. Raises Unavailable when no member shows changes in time, OffsetOutOfRange."""
        name = f"etcd-watch {self._key.decode()}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)
        try:
            async with asyncio.timeout(self._members.deadline_s):
                await asyncio.shield(self._opened)
        except TimeoutError:
            self.close()
            raise Unavailable(
                f"no member of etcd shows changes ({self._members.place}); try again"
            ) from None
        except BaseException:
            self.close()
            raise
        if self._error is not None:
            self.close()
            raise self._error

    def close(self) -> None:
        """End the watch; the iteration stops."""
        if not self._closed:
            self._closed = True
            self._queue.clear()
            self._forget(self)
            if self._task is not None:
                self._task.cancel()
            if self._connection is not None:
                self._connection.close()
            self._notify()

    # -- the reader

    def __aiter__(self) -> AsyncIterator[Revision]:
        """Iterate over changes, one tuple per revision."""
        return self

    async def __anext__(self) -> Revision:
        """The next revision's changes."""
        while not self._closed:
            if self._queue:
                revision = self._queue.popleft()
                self._bytes -= _size(revision)
                self._resume()
                return revision
            if self._error is not None:
                error = self._error
                self.close()
                raise error
            await self._wait()
        raise StopAsyncIteration

    async def _wait(self) -> None:
        if self._wake is not None:
            raise InvalidRequest(
                "a watch has one reader, and this one has two: open a second watch"
            )
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _resume(self) -> None:
        half_empty = (
            len(self._queue) * 2 < QUEUE_REVISIONS_MAX and self._bytes * 2 < QUEUE_BYTES_MAX
        )
        if self._is_paused and half_empty:
            self._is_paused = False
            self._heard_at = self._now()
            if self._connection is not None:
                self._connection.resume()

    # -- the stream

    async def _run(self) -> None:
        pause_s = REOPEN_MIN_S
        while self._error is None:
            before = self._next
            try:
                await self._follow(self._members.in_turn())
            except _Broken as broken:
                _log.info("a watch of etcd broke", prefix=self._key.decode(), why=str(broken))
            except OnelogError as error:  # such as a login that is refused
                self._fail(error)
                return
            except Exception as error:  # noqa: BLE001 - a reader must not wait for ever
                self._members.watch_failed(self._key.decode(), error)
                self._fail(Unavailable(f"the watch of etcd failed: {error!r}"))
                return
            self.reopened += 1
            pause_s = REOPEN_MIN_S if self._next > before else min(pause_s * 2, REOPEN_MAX_S)
            await asyncio.sleep(pause_s)

    async def _follow(self, member: EtcdMember) -> None:
        """Take the stream of one member until it breaks, or this watch fails."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def on_line(line: bytes) -> None:
            if not ended.done():
                try:
                    self._take(decode(WatchLine, line))
                except (_Broken, WrongBytes) as broken:
                    ended.set_result(str(broken))

        def on_cut(failure: HttpFailed) -> None:
            if not ended.done():
                ended.set_result(str(failure))

        self._is_begun = self._is_paused = False
        connection = await self._begin(member, on_line, on_cut)
        self._connection, self._member = connection, member
        self._heard_at = loop.time()
        self._begun.clear()
        try:
            while self._error is None and not ended.done():
                patience_s = self._silence_s if self._is_begun else self._members.deadline_s
                wait_s = self._heard_at + patience_s - loop.time()
                if wait_s <= 0 and not self._is_paused:
                    raise _Broken(f"{member.endpoint} showed nothing for {patience_s:.1f} s")
                await asyncio.wait([ended], timeout=max(wait_s, 0.1))
            if self._error is None:
                self._members.failed(member)
                raise _Broken(ended.result())
        finally:
            self._connection = self._member = None
            connection.close()

    async def _begin(
        self,
        member: EtcdMember,
        on_line: Callable[[bytes], None],
        on_cut: Callable[[HttpFailed], None],
    ) -> HttpConnection:
        request: dict[str, object] = {
            "key": self._key,
            "range_end": range_end(self._key),
            "start_revision": self._next,
            "prev_kv": True,
            "progress_notify": True,
            "fragment": True,
        }
        body = msgspec.json.encode({"create_request": request})
        connection = None
        try:
            async with asyncio.timeout(self._members.deadline_s):
                headers = await self._members.headers(member)
                connection = await self._members.connect(member)
                member.streams.add(connection)
                connection.stream("/v3/watch", headers, body, on_line, on_cut)
        except (HttpFailed, TimeoutError) as failure:
            if connection is not None:
                connection.close()
            self._members.failed(member)
            raise _Broken(str(failure) or f"{member.endpoint} does not answer") from None
        return connection

    def _take(self, line: WatchLine) -> None:
        """Take a line. Raises _Broken when the stream is over, WrongBytes."""
        self._heard_at = self._now()
        if line.error is not None:
            if is_stale_login(line.error):
                self._members.token_ended()
            raise _Broken(line.error.message or "the stream ended with an error")
        frame = line.result
        if frame is None:
            raise _Broken("a line holds no frame")
        if frame.canceled:
            self._canceled(frame)
        elif frame.created:
            self._is_begun = True
            if not self._next:  # from now on
                self._next = frame.header.revision + 1
            if not self._opened.done():
                self._opened.set_result(None)
        elif frame.events:
            self._take_events(frame)
        elif frame.header.revision >= self._next:  # a progress notice: all before it was shown
            self._next = frame.header.revision + 1

    def _canceled(self, frame: WatchFrame) -> None:
        if not frame.compact_revision:
            if "auth" in frame.cancel_reason or "permission" in frame.cancel_reason:
                self._members.token_ended()
            raise _Broken(frame.cancel_reason or "etcd ended the watch")
        self._fail(
            OffsetOutOfRange(
                f"etcd keeps changes from revision {frame.compact_revision} on, and not from"
                f" {self._next}: load the keys, then watch"
            )
        )

    def _fail(self, error: OnelogError) -> None:
        self._error = error
        if not self._opened.done():
            self._opened.set_result(None)
        self._notify()
        if self._connection is not None:
            self._connection.close()

    def _take_events(self, frame: WatchFrame) -> None:
        events = self._begun
        for found in frame.events:
            number = found.kv.mod_revision
            if number < self._next:
                continue  # shown before the stream broke
            if events and events[0].entry.mod_revision != number:
                self._push(tuple(events))
                events.clear()
            events.append(self._event(found))
        if events and not frame.fragment:
            self._push(tuple(events))
            events.clear()
        self._notify()
        is_full = len(self._queue) >= QUEUE_REVISIONS_MAX or self._bytes >= QUEUE_BYTES_MAX
        if is_full and not self._is_paused and self._connection is not None:
            self._is_paused = True
            self._connection.pause()

    def _event(self, found: WatchedEvent) -> Event:
        if found.type == "PUT":
            return Event("put", entry_of(found.kv, self._own_bytes))
        # etcd may have compacted what was there.
        old = found.prev_kv or found.kv
        entry = msgspec.structs.replace(
            entry_of(old, self._own_bytes), mod_revision=found.kv.mod_revision
        )
        return Event("delete", entry)

    def _push(self, revision: Revision) -> None:
        self._queue.append(revision)
        self._bytes += _size(revision)
        self._next = revision[0].entry.mod_revision + 1

    def break_off(self) -> None:
        """The member does not answer: go on at another one."""
        if self._connection is not None:
            self._connection.close()

    async def ended(self) -> None:
        """Wait until nothing of it runs."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError, Closed):
                await self._task

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _size(revision: Revision) -> int:
    return sum(len(event.entry.value) for event in revision)
