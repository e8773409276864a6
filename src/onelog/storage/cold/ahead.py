"""Read-ahead: threads that fetch what readers will want next.

Rules: nobody waits for a wish. The queue is bounded; a wish that finds it full is forgotten, and
the reader waits when it gets there. A wish that fails is forgotten, too: the reader's own courier
finds the error again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from onelog.base.errors import OnelogError

READ_AHEAD_THREADS: Final = 4
WISHES_MAX: Final = 64
"""Wishes that wait for a thread."""
CLOSE_S: Final = 30.0
"""How long closing waits for a fetch that is under way."""

Wish = Callable[[], object]


class ReadAhead:
    """Threads that start with the first wish."""

    __slots__ = ("_busy", "_closed", "_lock", "_threads", "_wishes", "dropped", "number")

    def __init__(self, number: int = READ_AHEAD_THREADS) -> None:
        self.number = number
        """Threads at most; 0: nothing is read ahead."""
        self.dropped = 0
        """Wishes that were forgotten."""
        self._wishes: queue.Queue[Wish | None] = queue.Queue(WISHES_MAX)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._busy = 0
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether a thread has nothing to do; only for how much one asks."""
        return self._busy + self._wishes.qsize() < self.number

    def ask(self, wish: Wish) -> bool:
        """Have something fetched soon, if there is a thread for it. Any thread may ask."""
        if self._closed or self.number == 0:
            return False
        try:
            self._wishes.put_nowait(wish)
        except queue.Full:
            self.dropped += 1
            return False
        if len(self._threads) < self.number:
            self._start()
        return True

    def _start(self) -> None:
        with self._lock:
            if self._closed or len(self._threads) >= self.number:
                return
            name = f"read-ahead-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (wish := self._wishes.get()) is not None:
            with self._lock:
                self._busy += 1
            try:
                if not self._closed:
                    wish()
            except (OnelogError, OSError):
                self.dropped += 1
            finally:
                with self._lock:
                    self._busy -= 1
            del wish

    def close(self) -> None:
        """Forget what waits, and end the threads. Idempotent."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        while True:
            try:
                self._wishes.get_nowait()
            except queue.Empty:
                break
        for _ in threads:
            self._wishes.put_nowait(None)
        for thread in threads:
            thread.join(CLOSE_S)
