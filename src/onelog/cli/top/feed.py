"""Brings what `onelog top` shows: two threads that ask, and one place where their finds arrive.

Rules: one thread follows the events and never polls; the other asks for lists and the disk, at most
`CURSORS_MAX` rows at a time. What they find goes through one bounded queue to the thread that
draws, which a byte in a pipe wakes. A connection that is lost is tried again; an error of the first
connection ends the command.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from types import TracebackType
from typing import Any, Final, Self

from onelog.base.errors import NotAuthorized, OnelogError
from onelog.cli.client import AdminClient, Target
from onelog.cli.top.board import Board

CURSORS_MAX: Final = 2000
LISTS_S: Final = 2.0
AGAIN_S: Final = 2.0
_FOUND_MAX: Final = 10_000

Found = tuple[str, Any]


class Feed:
    """The threads, from `with` to the end of its block."""

    def __init__(self, target: Target, interval_s: float) -> None:
        self.board = Board(interval_s=interval_s, url=target.url)
        self._target = target
        self._interval_s = interval_s
        self._found: queue.Queue[Found] = queue.Queue(_FOUND_MAX)
        self._over = threading.Event()
        self._follower = AdminClient(target)
        self.wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self.wake, False)

    def __enter__(self) -> Self:
        AdminClient(self._target).get("/session")  # a wrong URL or login ends the command here
        for work in (self._follow, self._ask):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def stir(self) -> None:
        """Wake the thread that draws."""
        with contextlib.suppress(BlockingIOError):  # it is awake already
            os.write(self._waker, b"w")

    def take(self, timeout_s: float | None) -> bool:
        """Take in what came, after a wait for something; whether there is a new picture."""
        select.select([self.wake], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        fresh = False
        while True:
            try:
                name, data = self._found.get_nowait()
            except queue.Empty:
                return fresh
            fresh = self._take_one(name, data) or fresh

    def _take_one(self, name: str, data: Any) -> bool:
        board = self.board
        if name == "cursors":
            board.cursors, board.cursors_capped = data
            return False
        if name == "overview":
            board.overview = data
            return False
        if name == "lost":
            board.trouble = data
            return True
        if name == "no-topics":
            board.topics_trouble = data
            return False
        return board.event(name, data)

    def _put(self, name: str, data: Any) -> None:
        with contextlib.suppress(queue.Full):  # the drawing thread stands still: nothing is lost
            self._found.put_nowait((name, data))
        self.stir()

    # -- the threads

    def _follow(self) -> None:
        query = {"interval_ms": int(self._interval_s * 1000), "filter": "#", "value_bytes": 0}
        while not self._over.is_set():
            try:
                for name, data in self._follower.events("/events", query):
                    self._put(name, data)
                    if self._over.is_set():
                        return
                self._put("lost", "the server ended the events")
            except NotAuthorized as error:
                if "filter" not in query:
                    self._put("lost", str(error))
                query.pop("filter", None)
                self._put("no-topics", str(error))
            except OnelogError as error:
                self._put("lost", str(error))
            self._renew()

    def _renew(self) -> None:
        """Before the next try: a pass may be over, and a server that is gone needs a moment."""
        if self._over.wait(AGAIN_S):
            return
        if self._target.renew is not None:
            with contextlib.suppress(OnelogError):
                self._follower = AdminClient(self._target.renew())

    def _ask(self) -> None:
        client = AdminClient(self._target)
        while not self._over.is_set():
            try:
                overview = client.get("/overview")
                try:
                    self._put("cursors", _cursors(client))
                finally:  # with the overview the picture counts as whole: it comes last
                    self._put("overview", overview)
            except OnelogError:
                client.close()  # the thread that follows says why
            self._over.wait(max(LISTS_S, self._interval_s))


def _cursors(client: AdminClient) -> tuple[list[dict[str, Any]], bool]:
    """Cursors and consumer groups, and whether there are more."""
    rows: list[dict[str, Any]] = []
    capped = False
    for page in client.pages("/cursors", {}):
        rows += page["items"]
        if len(rows) >= CURSORS_MAX and page["next_cursor"]:
            capped = True
            break
    known = {row["name"] for row in rows}
    with contextlib.suppress(OnelogError):  # Kafka may be off
        page = client.get("/kafka/groups", {"limit": 1000})
        capped = capped or bool(page["next_cursor"])
        rows += [_as_cursor(row) for row in page["items"] if row["name"] not in known]
    return rows, capped


def _as_cursor(group: dict[str, Any]) -> dict[str, Any]:
    topics = sorted({row["topic"] for row in group["positions"]})
    return {
        "name": group["name"],
        "kind": "group",
        "protocol": "kafka",
        "filter": ", ".join(topics),
        "lag": group["lag"],
        "pending": 0,
        "connected": group["member_count"],
    }
