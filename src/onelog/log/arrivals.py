"""Cold bytes of one partition on their way into memory: which readers wait for them.

Rules: a courier (a thread that does nothing else) brings cold bytes, once for all readers that want
the same bytes. The readers are called on the loop while the lease is held. The lease is held for
`HELD_S` after that, so that a reader that comes back in a later pass, or with its next request,
still finds the bytes (I8: the time is short, and a lease of local bytes only notes where they lie).
Nobody polls. An error that says that the log stopped (`PartitionStopped`) stops the partition.
Bytes of an object store that are away or damaged stop nothing. Damage is a standing trouble until
the bytes come after all, or until the log begins behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final, TypeVar

from onelog.base.errors import ColdDamaged, OnelogError, PartitionStopped, StorageError, again
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
DAMAGED_MAX: Final = 100
"""So many damaged places of a partition are known; a reader of another one finds it again."""
ARRIVAL: Final = "arrival"
"""Incidents: the engine could not bring cold bytes, or a reader's callback raised."""


class Arrivals:
    """The cold bytes of one partition that readers wait for."""

    __slots__ = (
        "_coming", "_couriers", "_damaged", "_failed", "_hasty", "_log", "_place", "_stop",
        "_troubles",
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
        self._hasty: dict[Hashable, list[Waiter]] = {}
        """Those of `_coming` that hear of a failure at once."""
        self._damaged: dict[Hashable, OnelogError] = {}
        """What is wrong with which bytes. Those of one object go by the offset behind them: the
        next reader may ask for other bytes of it, and finds out what is still wrong."""

    def when_here(self, cold: Cold, callback: Callback) -> Waiter:
        """Bring the bytes that a read found cold, then call back. The callback gets the error, if
        any."""
        cold.__traceback__ = None  # its frames would hold the reader, and whose connection it is of
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

    async def bring(self, cold: Cold) -> None:
        """Wait until the bytes that a read found cold are here. Raises at once why they did not
        come, while other readers wait until it is time to try again."""
        failure = self._failed.get(cold.key)
        if failure is not None:
            raise again(failure)

        def begin(callback: Callback) -> Waiter:
            waiter = self.when_here(cold, callback)
            self._hasty.setdefault(cold.key, []).append(waiter)
            return waiter

        await as_future(begin)

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
                if len(self._damaged) < DAMAGED_MAX:
                    self._damaged[_bytes_of(cold)] = failure
                self._troubles.stand(DAMAGED, self._place, failure, blocks=False)
                after_s = DAMAGED_RETRY_S
            self._failed[cold.key] = failure
            self._call(self._hasty.pop(cold.key, ()), failure)
            asyncio.get_running_loop().call_later(after_s, self._tell, cold.key, failure)
            return
        elif self._damaged.pop(_bytes_of(cold), None) is not None:
            self._tell_damaged()
        self._tell(cold.key, failure)
        if lease is not None:
            asyncio.get_running_loop().call_later(HELD_S, lease.release)

    def trimmed(self, start: Offset) -> None:
        """The log begins here: damage before it is nobody's any more."""
        passed = [end for end in self._damaged if isinstance(end, int) and end <= start]
        for end in passed:
            del self._damaged[end]
        if passed:
            self._tell_damaged()

    def deleted(self) -> None:
        """The partition is gone, and its damage with it."""
        self._damaged.clear()
        self._tell_damaged()

    def _tell_damaged(self) -> None:
        """Say which damage is left, or that there is none."""
        for failure in self._damaged.values():
            self._troubles.stand(DAMAGED, self._place, failure, blocks=False)
            return
        self._troubles.clear(DAMAGED, self._place)

    def failure_of(self, cold: Cold) -> OnelogError | None:
        """Why these bytes did not come when they were asked for last; None: they may be coming."""
        return self._failed.get(cold.key)

    def _tell(self, key: Hashable, failure: OnelogError | None) -> None:
        self._failed.pop(key, None)
        self._hasty.pop(key, None)
        self._call(self._coming.pop(key), failure)

    def _call(self, waiting: Iterable[Waiter], failure: OnelogError | None) -> None:
        for waiter in waiting:
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


def _bytes_of(cold: Cold) -> Hashable:
    return cold.key if cold.end_offset is None else cold.end_offset
