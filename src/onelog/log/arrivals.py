"""Cold bytes of one partition on their way into memory: which readers wait for them.

Rules: a courier (a thread that does nothing else) brings cold bytes, once for all readers that want
the same bytes. The readers are called on the loop while the lease is held. The lease is held for
`HELD_S` after that, so that a reader that comes back in a later pass, or with its next request,
still finds the bytes (I8: the time is short, and a lease of local bytes only notes where they lie).
Nobody polls. An error that says that the log stopped (`PartitionStopped`) stops the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, TypeVar

from onelog.base.errors import Closed, OnelogError, PartitionStopped, StorageError
from onelog.base.ids import Offset
from onelog.log.pool import Pool
from onelog.log.wakeup import Callback, Waiter, as_future
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Cold, Lease, PartitionLog, in_place

T = TypeVar("T")

HELD_S: Final = 5.0
"""How long bytes that were brought stay in memory after the readers were called."""
RETRY_S: Final = 1.0
"""After an error that may pass, the readers are called this much later. They read and wait again.
"""
COURIERS: Final = 4
"""Threads that bring cold bytes. They start with the first cold read."""
ARRIVAL: Final = "arrival"
"""Incidents: the engine could not bring cold bytes, or a reader's callback raised."""


class Couriers:
    """The threads that bring cold bytes, for all partitions."""

    __slots__ = ("_threads", "_troubles", "brought")

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._threads: Pool | None = None
        self.brought = 0
        """How often a reader had to wait."""

    def start(
        self, work: Callable[[], Lease], done: Callable[[Lease | None, BaseException | None], None]
    ) -> None:
        """Run `work` in a thread, then `done` on the loop."""
        if self._threads is None:
            self._threads = Pool("courier", COURIERS, self._troubles)
        self.brought += 1
        self._threads.start(work, done)

    async def close(self) -> None:
        """Wait for the jobs that run, then end the threads.

        Jobs that have not begun are refused: they may be so many that a stop would take long.
        """
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.refuse_waiting(Closed("the broker is closed"))
            await threads.close()


class Arrivals:
    """The cold bytes of one partition that readers wait for."""

    __slots__ = ("_coming", "_couriers", "_log", "_place", "_stop", "_troubles")

    def __init__(
        self,
        place: str,
        log: PartitionLog,
        couriers: Couriers,
        troubles: Troubles,
        stop: Callable[[OnelogError], None],
    ) -> None:
        self._place = place
        self._log = log
        self._couriers = couriers
        self._troubles = troubles
        self._stop = stop
        self._coming: dict[Hashable, list[Waiter]] = {}

    def when_here(self, cold: Cold, callback: Callback) -> Waiter:
        """Bring the bytes that a read found cold, then call back. The callback gets the error, if
        any."""
        waiter = Waiter(Offset(0), callback)
        waiting = self._coming.get(cold.key)
        if waiting is not None:
            waiting.append(waiter)
            return waiter
        self._coming[cold.key] = [waiter]
        self._couriers.start(partial(cold.fetch, self._log), partial(self._arrived, cold.key))
        return waiter

    def _arrived(self, key: Hashable, lease: Lease | None, error: BaseException | None) -> None:
        failure: OnelogError | None = None
        if error is not None:
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            if failure is not error:
                self._troubles.note(ARRIVAL, self._place, error)
        if isinstance(failure, PartitionStopped):
            self._stop(failure)
        elif failure is not None:
            asyncio.get_running_loop().call_later(RETRY_S, self._tell, key, failure)
            return
        self._tell(key, failure)
        if lease is not None:
            asyncio.get_running_loop().call_later(HELD_S, lease.release)

    def _tell(self, key: Hashable, failure: OnelogError | None) -> None:
        for waiter in self._coming.pop(key):
            callback, waiter.callback = waiter.callback, None
            if callback is not None:
                try:
                    callback(failure)
                except Exception as problem:  # noqa: BLE001 - the others wait, too
                    self._troubles.note(ARRIVAL, self._place, problem)

    async def until_here(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; wait for cold bytes while the loop goes on."""
        while True:
            try:
                return read()
            except Cold as error:
                cold = error
            await as_future(partial(self.when_here, cold))

    def in_place(self, read: Callable[[], T]) -> T:
        """Return what `read` returns; block while bytes are cold: for threads and rare calls."""
        try:
            return in_place(self._log, read)
        except PartitionStopped as error:
            self._stop(error)
            raise
