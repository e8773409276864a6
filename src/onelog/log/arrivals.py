"""Cold bytes of one partition on their way into memory: which readers wait for them.

Rules: a courier (a thread that does nothing else) brings cold bytes, once for all readers that want
the same bytes. The readers are called on the loop while the lease is held. The lease is held for
`HELD_S` after that, so that a reader that comes back in a later pass, or with its next request,
still finds the bytes (I8: the time is short, and a lease of local bytes only notes where they lie).
Nobody polls. An error that says that the log stopped (`PartitionStopped`) stops the partition.
Bytes of an object store that are away or damaged stop nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, TypeVar

from onelog.base.errors import ColdDamaged, OnelogError, PartitionStopped, StorageError
from onelog.base.ids import Offset
from onelog.log.couriers import RETRY_S, Couriers
from onelog.log.wakeup import Callback, Waiter, as_future
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Cold, Lease, PartitionLog, in_place

T = TypeVar("T")

HELD_S: Final = 5.0
"""How long bytes that were brought stay in memory after the readers were called."""
DAMAGED_RETRY_S: Final = 30.0
"""Readers of bytes that are gone come back so much later: somebody has to restore them."""
DAMAGED: Final = "cold-damaged"
"""Standing troubles: bytes in the object store are gone or bad."""
ARRIVAL: Final = "arrival"
"""Incidents: the engine could not bring cold bytes, or a reader's callback raised."""


class Arrivals:
    """The cold bytes of one partition that readers wait for."""

    __slots__ = (
        "_coming", "_couriers", "_damaged", "_failed", "_log", "_place", "_stop", "_troubles",
    )  # fmt: skip

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
        self._failed: dict[Hashable, OnelogError] = {}
        """Why bytes did not come, until their readers are called."""
        self._damaged: Hashable = None
        """The bytes of the trouble that stands."""

    def when_here(self, cold: Cold, callback: Callback) -> Waiter:
        """Bring the bytes that a read found cold, then call back. The callback gets the error, if
        any."""
        waiter = Waiter(Offset(0), callback)
        waiting = self._coming.get(cold.key)
        if waiting is not None:
            waiting.append(waiter)
            return waiter
        self._coming[cold.key] = [waiter]
        work, done = partial(cold.fetch, self._log), partial(self._arrived, cold)
        if cold.remote:
            self._couriers.remote.start(work, cold.size_bytes, done)
        else:
            self._couriers.start(work, done)
        return waiter

    def _arrived(self, cold: Cold, lease: Lease | None, error: BaseException | None) -> None:
        failure: OnelogError | None = None
        if error is not None:
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            if failure is not error:
                self._troubles.note(ARRIVAL, self._place, error)
        if isinstance(failure, PartitionStopped):
            self._stop(failure)
        elif failure is not None:
            after_s = self._couriers.remote.retry_s if cold.remote else RETRY_S
            if isinstance(failure, ColdDamaged):
                self._troubles.stand(DAMAGED, self._place, failure, blocks=False)
                self._damaged = cold.key
                after_s = DAMAGED_RETRY_S
            self._failed[cold.key] = failure
            asyncio.get_running_loop().call_later(after_s, self._tell, cold.key, failure)
            return
        elif cold.key == self._damaged:
            self._troubles.clear(DAMAGED, self._place)
            self._damaged = None
        self._tell(cold.key, failure)
        if lease is not None:
            asyncio.get_running_loop().call_later(HELD_S, lease.release)

    def failure_of(self, cold: Cold) -> OnelogError | None:
        """Why these bytes did not come when they were asked for last; None: they may be coming."""
        return self._failed.get(cold.key)

    def _tell(self, key: Hashable, failure: OnelogError | None) -> None:
        self._failed.pop(key, None)
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
