"""Threads that bring cold bytes: some for this machine's disks, others for the object store.

Rules: neither waits for the other, and no sync waits for either. A job for the store ends for its
readers at its deadline (`deadline_s` and the time that its bytes take at 1 MB/s), also if it has
not begun by then. While the store throttles, fewer jobs run at once: half as many after each
refusal, one more each minute. Threads start with the first job.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from onelog.base.errors import Closed, ColdUnavailable
from onelog.log.pool import Pool
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Lease

LOCAL: Final = 4
"""Threads for bytes on this machine's disks."""
REMOTE: Final = 8
"""Threads for bytes in the object store, unless the configuration says otherwise."""
DEADLINE_S: Final = 30.0
BYTES_PER_S_MIN: Final = 1_000_000
GROW_S: Final = 60.0
"""After this time without being throttled, one more job may run at once."""
RETRY_S: Final = 1.0
"""Readers come back so much later after an error that may pass."""
RETRY_MAX_S: Final = 8.0
"""The same of a store that has failed several times in a row."""

STORE: Final = "store"
"""Standing troubles of the object store, by what it is asked for; `READS`: cold bytes."""
READS: Final = "reads"

Done = Callable[[Lease | None, BaseException | None], None]


class Couriers:
    """The threads that bring cold bytes, for all partitions."""

    __slots__ = ("_local", "_troubles", "brought", "remote")

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._local: Pool | None = None
        self.remote = RemoteCouriers(troubles)
        """Those for the object store."""
        self.brought = 0
        """How often a reader had to wait."""

    def start(self, work: Callable[[], Lease], done: Done) -> None:
        """Run `work` in a thread, then `done` on the loop."""
        if self._local is None:
            self._local = Pool("courier", LOCAL, self._troubles)
        self.brought += 1
        self._local.start(work, done)

    async def close(self) -> None:
        """Wait for the jobs that run, then end the threads.

        Jobs that have not begun are refused: they may be so many that a stop would take long.
        """
        threads, self._local = self._local, None
        if threads is not None:
            threads.refuse_waiting(Closed("the broker is closed"))
            await threads.close()
        await self.remote.close()


class _Job:
    """Bytes of the store that readers wait for."""

    __slots__ = ("done", "timer", "work")

    def __init__(self, work: Callable[[], Lease], done: Done) -> None:
        self.work = work
        self.done: Done | None = done
        """None: the readers know that it takes too long."""
        self.timer: asyncio.TimerHandle | None = None

    def tell(self, lease: Lease | None, error: BaseException | None) -> None:
        """Tell the readers, once; a lease that nobody waits for is released."""
        if self.timer is not None:
            self.timer.cancel()
        done, self.done = self.done, None
        if done is not None:
            done(lease, error)
        elif lease is not None:
            lease.release()


class RemoteCouriers:
    """The threads that talk to the object store for readers."""

    __slots__ = (
        "_growing", "_running", "_threads", "_troubles", "_waiting", "at_once", "at_once_max",
        "brought", "deadline_s", "failures", "late", "throttled",
    )  # fmt: skip

    def __init__(self, troubles: Troubles, at_once_max: int = REMOTE) -> None:
        self._troubles = troubles
        self._threads: Pool | None = None
        self._waiting: deque[_Job] = deque()
        """Jobs that have not begun; one for each run that readers want."""
        self._running = 0
        self._growing: asyncio.TimerHandle | None = None
        self.at_once_max = at_once_max
        self.at_once = at_once_max
        """How many jobs may run now."""
        self.deadline_s = DEADLINE_S
        self.failures = 0
        """Jobs that failed since the last one that did not."""
        self.brought = self.late = self.throttled = 0
        """Jobs; those that were over too late; those that the store throttled."""

    def configure(self, at_once: int, deadline_s: float) -> None:
        """Set the bounds, before the first job."""
        assert self._threads is None
        self.at_once = self.at_once_max = at_once
        self.deadline_s = deadline_s

    @property
    def retry_s(self) -> float:
        """How much later readers come back after an error."""
        return min(RETRY_S * 2.0 ** min(max(0, self.failures - 1), 8), RETRY_MAX_S)

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._waiting)

    def start(self, work: Callable[[], Lease], size_bytes: int, done: Done) -> None:
        """Run `work` in a thread, then `done` on the loop; at the deadline `done` gets the error,
        whatever the thread does."""
        job = _Job(work, done)
        after_s = self.deadline_s + size_bytes / BYTES_PER_S_MIN
        job.timer = asyncio.get_running_loop().call_later(after_s, self._too_late, job, after_s)
        self.brought += 1
        self._waiting.append(job)
        self._begin()

    def _begin(self) -> None:
        """Begin as many jobs as may run."""
        if self._threads is None:
            self._threads = Pool("store", self.at_once_max, self._troubles)
        while self._waiting and self._running < self.at_once:
            job = self._waiting.popleft()
            if job.done is not None:
                self._running += 1
                self._threads.start(job.work, _Ending(self, job))

    def _too_late(self, job: _Job, after_s: float) -> None:
        self.late += 1
        self.failures += 1
        error = ColdUnavailable(
            f"the object store did not give its bytes within {after_s:.0f} s: check that it runs,"
            " its address (store.url, store.options) and the network"
        )
        self._troubles.stand(STORE, READS, error, blocks=False)
        job.tell(None, error)

    def ended(self, job: _Job, lease: Lease | None, error: BaseException | None) -> None:
        """A thread is done with a job."""
        self._running -= 1
        if error is None:
            if self.failures:
                self._troubles.clear(STORE, READS)
            self.failures = 0
        elif isinstance(error, ColdUnavailable):
            self.failures += 1
            self._troubles.stand(STORE, READS, error, blocks=False)
            if error.reason == "throttled":
                self._shrink()
        try:
            job.tell(lease, error)
        finally:
            if self._threads is not None:
                self._begin()

    def _shrink(self) -> None:
        self.throttled += 1
        self.at_once = max(1, self.at_once // 2)
        if self._growing is not None:
            self._growing.cancel()
        self._growing = asyncio.get_running_loop().call_later(GROW_S, self._grow)

    def _grow(self) -> None:
        self.at_once = min(self.at_once_max, self.at_once + 1)
        self._growing = None
        if self.at_once < self.at_once_max:
            self._growing = asyncio.get_running_loop().call_later(GROW_S, self._grow)
        self._begin()

    async def close(self) -> None:
        """Refuse the jobs that have not begun, wait for the others, end the threads."""
        threads, self._threads = self._threads, None
        if self._growing is not None:
            self._growing.cancel()
        waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            job.tell(None, Closed("the broker is closed"))
        if threads is not None:
            await threads.close()


class _Ending:
    """What a thread calls on the loop when it is done with a job."""

    __slots__ = ("_couriers", "_job")

    def __init__(self, couriers: RemoteCouriers, job: _Job) -> None:
        self._couriers = couriers
        self._job = job

    def __call__(self, lease: Lease | None, error: BaseException | None) -> None:
        self._couriers.ended(self._job, lease, error)
