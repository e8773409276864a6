"""Requests that were not carried out, gathered: the first one at once, the others as one count.

Rules: what is alike is gathered: the same door, address and action, and the same actor, except for
failed logins, whose actors are only claimed. The first event becomes a record at once, and opens a
window of `WINDOW_S`; at its end, further events become one summary. At most `WINDOWS_MAX` windows
are open; beyond that, events of a door and action share one, without an actor and address. So the
records of a window are bounded, whatever peers do. One timer runs while a window is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from onelog.broker.audit_event import LISTED_MAX, LOGIN_FAILED, AuditEvent, Detail

WINDOW_S: Final = 60.0
WINDOWS_MAX: Final = 256

_Key = tuple[str, str, str, str]


class _Window:
    __slots__ = ("actors", "count", "ends_at", "last", "resources")

    def __init__(self, ends_at: float, first: AuditEvent) -> None:
        self.ends_at = ends_at
        self.last = first
        self.count = 0
        self.actors: dict[str, None] = {}
        self.resources: dict[str, None] = {}

    def add(self, event: AuditEvent) -> None:
        self.count += 1
        self.last = event
        for known, text in ((self.actors, event.actor), (self.resources, event.resource)):
            if text and len(known) < LISTED_MAX:
                known[text] = None

    def summary(self) -> AuditEvent:
        if self.count == 1:
            return self.last
        detail: dict[str, Detail] = {}
        for name, known in (("actors", self.actors), ("resources", self.resources)):
            if len(known) > 1:
                detail[name] = list(known)
        return msgspec.structs.replace(
            self.last,
            actor=self.last.actor if len(self.actors) == 1 else "",
            resource=self.last.resource if len(self.resources) == 1 else "",
            count=self.count,
            detail=detail,
        )


class RefusalGatherer:
    """The windows."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[AuditEvent], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._windows: dict[_Key, _Window] = {}
        """The one that ends first is first."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, event: AuditEvent) -> None:
        """A request was not carried out."""
        actor = "" if event.action == LOGIN_FAILED else event.actor
        key = (event.door, event.action, event.address, actor)
        if key not in self._windows and len(self._windows) >= WINDOWS_MAX:
            event = msgspec.structs.replace(event, address="")
            key = (event.door, event.action, "", "")
        window = self._windows.get(key)
        if window is not None:
            window.add(event)
            return
        self._windows[key] = _Window(self._loop.time() + WINDOW_S, event)
        self._tell(event)
        if self._timer is None:
            self._timer = self._loop.call_later(WINDOW_S, self._look)

    def close(self) -> None:
        """Tell what was not told yet. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        windows, self._windows = self._windows, {}
        for window in windows.values():
            self._end(window)

    def _look(self) -> None:
        """Pass on windows that are over; the next one to end sets the timer."""
        self._timer = None
        now = self._loop.time()
        for key, window in list(self._windows.items()):
            if window.ends_at > now:
                self._timer = self._loop.call_at(window.ends_at, self._look)
                return
            del self._windows[key]
            self._end(window)

    def _end(self, window: _Window) -> None:
        if window.count:
            self._tell(window.summary())
