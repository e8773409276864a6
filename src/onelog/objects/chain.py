"""A chain that is written: the threads, the store and the deadlines around a `ChainLine`.

Rules: every method may be called from any thread. `lock` guards the line and whatever its owner
keeps beside it; nobody holds it while the store is asked. A write that fails is tried again with
the same bytes until it is in, so "perhaps" becomes "yes". A fence, or any other object in our
place, ends the chain for good: `error` is set, and everybody who waits gets it. A chain that writes
nothing looks for such an object each `LOOK_S`, so that a broker that was replaced knows it. The
owner's hooks (`ChainOwner`) are called with the lock held, in the order of the chain.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

import msgspec

from onelog.base import faults
from onelog.base.clock import Clock
from onelog.base.errors import (
    Closed,
    ColdUnavailable,
    NotFound,
    OnelogError,
    StorageError,
    StoreFenced,
    again,
)
from onelog.objects import names
from onelog.objects.chain_line import BulkDone, BulkWaiter, ChainLine, SealedBulk
from onelog.objects.chain_requests import run_steps
from onelog.objects.chain_upkeep import ChainUpkeep
from onelog.objects.checkpoint import VERSION, ChainCheckpoint, ChainPlace
from onelog.objects.store import ObjectStore, Taken

BACK_OFF_S: Final = 0.1
BACK_OFF_MAX_S: Final = 30.0
LOOK_S: Final = 10.0
"""How often a chain that writes nothing looks for another writer."""


class ChainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a chain is written."""

    linger_s: float = 0.25
    batch_bytes: int = 8 * 1024 * 1024
    inflight: int = 4


class ChainOwner(Protocol):
    """Whoever writes the chain."""

    def bulk_left(self, bulk: SealedBulk) -> None:
        """A bulk has its place in the chain. The lock is held."""
        ...

    def bulk_counts(self, bulk: SealedBulk) -> None:
        """A bulk and all before it are in the store. The lock is held."""
        ...

    def chain_ended(self, error: OnelogError) -> None:
        """Nothing more is written. The lock is held."""
        ...


class ChainFigures:
    """What a chain has done; plain numbers, read when somebody asks."""

    __slots__ = ("bulks", "bytes_written", "failures", "put_s", "put_s_max", "retries")

    def __init__(self) -> None:
        self.bulks = 0
        self.bytes_written = 0
        self.put_s = 0.0
        """Time of all writes together, tries included."""
        self.put_s_max = 0.0
        self.retries = 0
        self.failures = 0
        """Failures since the last success."""


class Chain:
    """The chain `name` of a node, open for writing."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        line: ChainLine,
        upkeep: ChainUpkeep,
        owner: ChainOwner,
        clock: Clock,
        *,
        threads: int,
    ) -> None:
        self.lock = threading.RLock()
        self._filled = threading.Condition(self.lock)
        """Threads that write wait for bulks."""
        self._changed = threading.Condition(self.lock)
        """Others wait for bulks that count, or for the end."""
        self.line = line
        self.upkeep = upkeep
        self.name = name
        self.figures = ChainFigures()
        self.error: OnelogError | None = None
        """Why nothing is written any more."""
        self.failing_since: float | None = None
        """Monotonic; None: the last answer of the store was good."""
        self.last_failure: ColdUnavailable | None = None
        self.on_trouble: Callable[[], None] = lambda: None
        """Called by any thread, without the lock, when the store begins or ceases to fail, and when
        the chain ends."""
        self._store = store
        self._owner = owner
        self._clock = clock
        self._closing = False
        self._ended = threading.Event()
        self._proved_at = time.monotonic()
        """When the store last showed that this chain is ours."""
        self._threads = [
            threading.Thread(target=self._work, name=f"chain-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        self._threads.append(
            threading.Thread(target=self._look_on, name=f"chain-{name}-look", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    # Adding. The caller holds the lock and has changed `line.open`.

    def check(self) -> None:
        """Raise why the chain has ended."""
        if self.error is not None:
            raise again(self.error)

    def grown(self) -> None:
        """Something was added to the open bulk."""
        self.line.grown()
        self._filled.notify()

    def note(self, *notes: Any) -> None:
        """Add notes to the open bulk."""
        self.line.open.notes.extend(notes)
        self._filled.notify()

    # Waiting.

    def when_in(self, done: BulkDone) -> None:
        """Call back when everything added so far is in the store; at once, if it is already."""
        with self.lock:
            error = self.error
            if error is None and self.line.add_waiter(BulkWaiter(done)):
                return
        done(None if error is None else again(error))

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until everything added so far is in the store. Raises why it is not, and
        ColdUnavailable after `timeout_s`."""
        ended = threading.Event()
        found: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            found.append(error)
            ended.set()

        self.when_in(done)
        if not ended.wait(timeout_s):
            raise ColdUnavailable(
                f"the store has not taken what was written for {timeout_s:g} s: {self.last_failure}"
            )
        if found[0] is not None:
            raise again(found[0])

    @property
    def away_s(self) -> float:
        """How long the store has failed; 0: it has not."""
        since = self.failing_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def oldest_s(self) -> float:
        """Age of the oldest bulk that left and does not count yet."""
        with self.lock:
            on_way = self.line.on_way
            return time.monotonic() - on_way[min(on_way)].left_at if on_way else 0.0

    # Writing, in threads.

    def _work(self) -> None:
        while (bulk := self._next()) is not None:
            self._write(bulk)

    def _next(self) -> SealedBulk | None:
        with self.lock:
            while self.error is None:
                now = time.monotonic()
                wait_s = self.line.wait_s(now)
                if wait_s == 0.0:
                    bulk = self.line.take(now, self._clock.now_ms(), is_last=self._closing)
                    self._owner.bulk_left(bulk)
                    return bulk
                self._filled.wait(wait_s)
            return None

    def _write(self, bulk: SealedBulk) -> None:
        name = names.chain_wal(self.name, self.line.epoch, bulk.seq)
        tries = 0
        while self.error is None:
            try:
                faults.hit("chain.put")
                self._store.create(name, bulk.wal.parts)
            except (ColdUnavailable, OSError) as error:
                tries += 1
                self._failed(_away(name, error), tries)
            except Taken as taken:
                self.end(self._fenced(taken.name))
            except Exception as error:  # noqa: BLE001 - nobody may wait for ever over a defect
                self.end(StorageError(f"writing {name} failed: {error!r}; restart the broker"))
            else:
                self._written(bulk)
                return

    def _failed(self, error: ColdUnavailable, tries: int) -> None:
        with self.lock:
            self.figures.retries += 1
            self.figures.failures += 1
            self.last_failure = error
            begins = self.failing_since is None
            if begins:
                self.failing_since = time.monotonic()
            if error.reason == "throttled":
                self.line.slow_down()
        if begins:
            self.on_trouble()
        delay_s = min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** min(tries - 1, 20))
        until = time.monotonic() + delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        with self.lock:
            self._changed.wait_for(lambda: self.error is not None, until - time.monotonic())

    def _written(self, bulk: SealedBulk) -> None:
        took_s = time.monotonic() - bulk.left_at
        figures = self.figures
        with self.lock:
            if self.error is not None:
                return
            figures.bulks += 1
            figures.bytes_written += bulk.wal.size_bytes
            figures.put_s += took_s
            figures.put_s_max = max(figures.put_s_max, took_s)
            figures.failures = 0
            self._proved_at = time.monotonic()
            recovered = self.failing_since is not None
            self.failing_since = None
            self.line.speed_up()
            counting = self.line.arrived(bulk.seq)
            for counted in counting:
                self._owner.bulk_counts(counted)
            self._changed.notify_all()
        if recovered:
            self.on_trouble()
        for counted in counting:
            for waiter in counted.waiters:
                waiter.wake(None)

    def _fenced(self, name: str) -> StoreFenced:
        return StoreFenced(
            f"another broker took over {names.chains_of(self.name)} of {self._store.url}: it wrote"
            f" {name}. This broker writes no more; only one broker may use a store's prefix"
            " at a time: stop one of them, and restart the other"
        )

    def end(self, error: OnelogError) -> None:
        """Write nothing more; everybody who waits gets the error."""
        with self.lock:
            if self.error is not None:
                return
            self.error = error
            self._ended.set()
            self._owner.chain_ended(error)
            waiting = self.line.give_up()
            self._changed.notify_all()
            self._filled.notify_all()
        self.on_trouble()
        for waiter in waiting:
            waiter.wake(again(error))

    # Looking, in a thread of its own.

    def _look_on(self) -> None:
        wait_s = LOOK_S
        while not self._ended.wait(wait_s):
            wait_s = self._proved_at + LOOK_S - time.monotonic()
            if wait_s <= 0:
                self.look()
                wait_s = LOOK_S

    def look(self) -> None:
        """If nothing is being written: ask the store whether somebody else wrote the object that
        would come next. It blocks."""
        with self.lock:
            if self.error is not None or not self.line.is_idle:
                return  # whoever writes finds out
            seq = self.line.seq + 1
        name = names.chain_wal(self.name, self.line.epoch, seq)
        try:
            self._store.get(name)
        except NotFound:
            self._looked(None)
        except ColdUnavailable as error:
            self._looked(error)
        except Exception as error:  # noqa: BLE001 - a write would tell it, too
            self._looked(ColdUnavailable(f"looking for {name} failed: {error!r}"))
        else:
            with self.lock:
                is_ours = self.line.seq >= seq
            if not is_ours:
                self.end(self._fenced(name))

    def _looked(self, failure: ColdUnavailable | None) -> None:
        with self.lock:
            if self.error is not None or not self.line.is_idle:
                return
            has_changed = (failure is None) != (self.failing_since is None)
            if failure is None:
                self._proved_at = time.monotonic()
                self.failing_since = None
            else:
                self.last_failure = failure
                self.failing_since = self.failing_since or time.monotonic()
        if has_changed:
            self.on_trouble()

    # Checkpoints. One thread at a time, and it blocks.

    def checkpoint(
        self, snapshot: Callable[[], tuple[Callable[[], bytes], Sequence[ChainPlace]]]
    ) -> bool:
        """Write the state as of the last object that left, then delete what it makes needless.

        `snapshot` is called with the lock held; it returns what encodes the state, and the objects
        that the state refers to. False: there is nothing new.
        """
        with self.lock:
            self.check()
            seq, link = self.line.seq, self.line.link
            if seq == self.upkeep.seq:
                return False
            encode, wanted = snapshot()
        line, upkeep = self.line, self.upkeep
        made = ChainCheckpoint(VERSION, line.epoch, seq, line.nonce, link, upkeep.fences, encode())
        with self.lock:
            self._changed.wait_for(lambda: line.durable_seq >= seq or self.error is not None)
            self.check()
        run_steps(upkeep.write(made, wanted), self._store)
        return True

    def delete_older_epochs(self, wanted: Collection[ChainPlace]) -> None:
        """Delete what older epochs left; see `ChainUpkeep`."""
        run_steps(self.upkeep.delete_older_epochs(wanted), self._store)

    def needed(self, listed: Sequence[str], wanted: Collection[ChainPlace]) -> Collection[str]:
        """Which of these objects are needed; see `ChainUpkeep`. Raises why the chain has ended."""
        with self.lock:
            self.check()
        return self.upkeep.needed(listed, wanted)

    # The end.

    def hurry(self) -> None:
        """From now on nothing waits for the linger."""
        with self.lock:
            self.line.is_hurried = True
            self._filled.notify_all()

    def close(self, deadline_s: float) -> None:
        """Write what is left, at once, and end the threads. Idempotent."""
        ends = time.monotonic() + deadline_s
        self.hurry()
        with self.lock:
            self._closing = True
            self._changed.wait_for(
                lambda: self.error is not None or self.line.is_idle, ends - time.monotonic()
            )
        self.end(Closed(f"the chain {self.name} of {self._store.url} is closed"))
        for thread in self._threads:
            thread.join(max(0.1, ends - time.monotonic()))


def _away(name: str, error: ColdUnavailable | OSError) -> ColdUnavailable:
    if isinstance(error, ColdUnavailable):
        return error
    return ColdUnavailable(f"{name} could not be written: {error}; it is tried again")
