"""The upkeep of an object engine: one thread that settles, joins, makes checkpoints and deletes.

Rules: it waits for what is due, never for a while. What fails because the store is away is tried
again later, with growing pauses; `last_error` says what failed. An object is deleted a grace time
after the note that removed its last row, and only when that note counts; later if somebody planned
to read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base import faults
from onelog.base.errors import OnelogError, StorageError
from onelog.objects.checkpoint import ChainPlace
from onelog.storage.object.core import ObjectCore
from onelog.storage.object.notes import ForgetNote
from onelog.storage.object.settling import Settling

_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 30.0
_FORGET_AT_ONCE: Final = 500
_JOIN_S: Final = 30.0


class ObjectUpkeep:
    """The thread and what it does."""

    def __init__(self, core: ObjectCore) -> None:
        self.settling = Settling(core)
        self.last_error: OnelogError | None = None
        """Why the last pass failed; None: it did not."""
        self.checkpoints = 0
        self.deleted = 0
        self._core = core
        self._checkpoint_at = time.monotonic()
        self._has_older = core.chain.line.epoch > 1
        """Whether older epochs may have left objects."""
        self._is_closing = False
        self._working = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="object-upkeep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        failures = 0
        wait_s: float | None = 0.0
        while True:
            self._core.wake_upkeep.wait(wait_s)
            self._core.wake_upkeep.clear()
            if self._is_closing or self._core.chain.error is not None:
                return
            try:
                self.work()
            except OnelogError as error:
                failures += 1
                self._note(error)
            except Exception as error:  # noqa: BLE001 - the watch shows it, and the next pass tries
                failures += 1
                self._note(StorageError(f"the upkeep of the object engine failed: {error!r}"))
            else:
                failures = 0
                self._note(None)
            pause_s = min(_PAUSE_MAX_S, _PAUSE_S * 2 ** min(failures - 1, 10)) if failures else 0
            wait_s = pause_s or self._wait_s()

    def _note(self, error: OnelogError | None) -> None:
        has_changed = (error is None) != (self.last_error is None)
        self.last_error = error
        if has_changed:
            self._core.chain.on_trouble()

    def _wait_s(self) -> float | None:
        """Seconds until something is due; None: nothing will be, unless something changes."""
        core, found = self._core, []
        with core.chain.lock:
            if core.unsettled_since is not None:
                due = core.unsettled_since + core.settings.settle_ms / 1000
                found.append(due - time.monotonic())
            if core.image.doomed:
                due_ms = min(map(self._due_ms, core.image.doomed.values()))
                found.append((due_ms - core.clock.now_ms()) / 1000)
        return max(0.05, min(found)) if found else None

    def work(self) -> None:
        """Do what is due. Blocks."""
        with self._working:
            if self._has_older:
                self._delete_older()
            if self._is_settling_due():
                self.settle()
            self._delete_doomed()

    def _is_settling_due(self) -> bool:
        core = self._core
        with core.chain.lock:
            since = core.unsettled_since
            if since is None:
                return False
            is_old = time.monotonic() - since >= core.settings.settle_ms / 1000
            return is_old or core.unsettled_bytes >= core.settings.settle_bytes

    def settle(self) -> None:
        """Settle all that is in memory, join, and make a checkpoint if one is due."""
        core = self._core
        began = time.monotonic()
        self.settling.settle()
        with core.chain.lock:
            if core.unsettled_since is not None:
                core.unsettled_since = max(core.unsettled_since, began)
        self.settling.join()
        settings, line = core.settings, core.chain.line
        since = line.seq - core.chain.upkeep.seq
        if (
            since >= settings.checkpoint_objects
            or core.wal_bytes >= 2 * settings.settle_bytes
            or (since and time.monotonic() - self._checkpoint_at >= settings.checkpoint_ms / 1000)
        ):
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint. Blocks."""
        core = self._core
        wal_bytes = core.wal_bytes
        wanted: Sequence[ChainPlace] = ()

        def snapshot() -> tuple[Callable[[], bytes], Sequence[ChainPlace]]:
            nonlocal wanted
            wanted = core.image.wanted()
            return core.image.snapshot(), wanted

        if core.chain.checkpoint(snapshot):
            core.checkpoint_wanted = wanted
            self.checkpoints += 1
            self._checkpoint_at = time.monotonic()
            with core.chain.lock:
                core.wal_bytes -= wal_bytes
            self._has_older = self._has_older or core.chain.line.epoch > 1

    def _delete_older(self) -> None:
        """Delete what older epochs left and no checkpoint of this one refers to."""
        core = self._core
        wanted = core.checkpoint_wanted
        core.chain.delete_older_epochs(wanted)
        self._has_older = any(place.epoch < core.chain.line.epoch for place in wanted)

    def _due_ms(self, since_ms: int) -> int:
        """When an object may be deleted that has been doomed since a time."""
        return self._core.hold.due_ms(since_ms, self._core.settings.grace_ms)

    def _delete_doomed(self) -> None:
        core = self._core
        with core.chain.lock:
            now_ms = core.clock.now_ms()
            doomed = [
                name for name, since in core.image.doomed.items() if self._due_ms(since) <= now_ms
            ]
        if not doomed:
            return
        core.chain.wait()  # the notes that doomed them count
        for at in range(0, len(doomed), _FORGET_AT_ONCE):
            group = doomed[at : at + _FORGET_AT_ONCE]
            faults.hit("doom.delete")
            core.store.delete(group)
            self.deleted += len(group)
            with core.chain.lock:
                core.chain.check()
                core.chain.note(ForgetNote(tuple(group)))
        core.chain.wait()

    def close(self) -> None:
        """End the thread."""
        self._is_closing = True
        self._core.wake_upkeep.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
