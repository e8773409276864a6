"""A sync that a thread of the kernel does, and the gate at which everybody else waits for it.

Rules: a flight syncs the active segment's file and nothing else. A partition has at most one out.
Whoever wants maintenance waits for it first and settles it: two syncs of one open file at a time
could share the report of one error, and only one of them would fail. Settling needs no loop, so
nobody who waits depends on the loop going on.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from onelog.base.errors import PartitionStopped
from onelog.base.ids import Offset
from onelog.storage.engine import SyncDone, SyncTicket

if TYPE_CHECKING:
    from onelog.storage.segment.held import PartitionState
    from onelog.storage.segment.segment import Segment


class Settled(Protocol):
    """A sync under way: this module's, or the kernel's (`kernel/_native/ends.pyx`)."""

    def settle(self, ticket: SyncTicket) -> None:
        """Count what is durable now, or stop the partition, once."""
        ...


def sync_failed(directory: str, error: OSError) -> PartitionStopped:
    """The error of a partition whose sync failed."""
    return PartitionStopped(
        f"fsync in {directory} failed ({error}): what was written since the last one may be lost;"
        " the partition is stopped: check the disk, then restart the broker"
    )


class Flight:
    """What a sync under way will have made durable."""

    __slots__ = ("_done", "_end", "_held", "_segment", "_size_bytes")

    def __init__(
        self,
        held: PartitionState,
        segment: Segment,
        done: SyncDone,
    ) -> None:
        """It covers all that is appended now. The lock is held."""
        self._held = held
        self._segment = segment
        self._size_bytes = segment.size_bytes
        self._end = held.end
        self._done = done

    def answered(self, ticket: SyncTicket) -> None:
        """On the loop: the sync is over."""
        held = self._held
        self.settle(ticket)
        if held.stopped is not None:
            self._done(None, type(held.stopped)(str(held.stopped)))
        else:
            self._done(Offset(held.durable), None)

    def settle(self, ticket: SyncTicket) -> None:
        """Count what is durable now, or stop the partition. In any thread, once the sync is over; a
        second call does nothing."""
        held = self._held
        with held.lock:
            if not held.maintenance.land(ticket):
                return
            if ticket.error:
                held.sync_failed(ticket.error)
                return
            held.durable = max(held.durable, self._end)
            writer = self._segment.writer
            if writer is not None and self._segment.size_bytes == self._size_bytes:
                writer.dirty = False


class MaintenanceGate:
    """The lock of maintenance, which nobody gets while a flight is out."""

    __slots__ = ("flight", "lock", "ticket")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.flight: Settled | None = None
        self.ticket: SyncTicket | None = None

    def __enter__(self) -> None:
        self.lock.acquire()
        flight, ticket = self.flight, self.ticket
        if flight is not None and ticket is not None:
            try:
                ticket.wait()
                flight.settle(ticket)
            except BaseException:
                self.lock.release()
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lock.release()

    def try_enter(self) -> bool:
        """Get the lock if nobody has it and no flight is out; `leave` gives it back."""
        if not self.lock.acquire(blocking=False):
            return False
        if self.ticket is not None:
            self.lock.release()
            return False
        return True

    def leave(self) -> None:
        """Give back what `try_enter` got."""
        self.lock.release()

    def fly(self, flight: Flight, ticket: SyncTicket) -> None:
        """A flight is out from now on. The lock is held."""
        self.flight, self.ticket = flight, ticket

    def land(self, ticket: SyncTicket) -> bool:
        """A flight is back; False: somebody said so before. The partition's lock is held."""
        if self.ticket is not ticket:
            return False
        self.flight = self.ticket = None
        return True
