"""What readers may see of a partition, who waits for more of it, and which feeds get it.

Rules:
- `high_watermark` is the end that readers see. It only grows. When it passes an offset, waiters for
  that offset are called in the same pass of the loop, and then the feeds, with the batches in
  order.
- Writers wait by `when_visible`; readers wait by `when_stable`, or by both, and look again.
- A waiter or a feed that raises is isolated: `Troubles` has the error, the others are called, a
  feed gets the next batch, and the writer gets its answer all the same.
- Batches that are not visible yet are held for the feeds, up to a bound for all partitions. Batches
  beyond the bound are a gap: they are read back from the log once they are visible, a slice per
  pass of the loop.
  Where a slice is not in memory, the feeds wait for it and the loop does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from onelog.base.errors import OnelogError, again
from onelog.base.ids import Offset
from onelog.base.limits import UNSEEN_BYTES_MAX
from onelog.kernel import NOTHING_HELD, VisibleEnd, scan_batches
from onelog.log.arrivals import Arrivals
from onelog.log.producers import Producers
from onelog.log.promises import LiveFeed
from onelog.log.wakeup import Callback, Waiter, Waiters, as_future
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Cold, PartitionLog

SLICE_BYTES: Final = 1024 * 1024
"""Bytes of a gap that one pass of the loop reads back."""
FEED: Final = "partition-feed"
"""Incidents: a feed raised."""
WAITER: Final = "partition-waiter"
"""Incidents: a waiter raised."""


Written = tuple[Offset, bytes | bytearray, bytes | None]
"""Batches that were written together: their end, their bytes, and their topics if known."""


class UnseenBytes:
    """How many bytes are held for feeds until they are visible. All partitions share it."""

    __slots__ = ("held", "limit", "overflows", "share")

    def __init__(self, limit: int = UNSEEN_BYTES_MAX) -> None:
        self.held = 0
        self.limit = limit
        self.share = limit // 2
        """How much of it one partition may hold, so that one that waits long leaves room to the
        others."""
        self.overflows = 0
        """How often batches were dropped, to be read back from the log."""


class Visibility(VisibleEnd):
    """The visible part of a partition. All methods run on the loop's thread."""

    feeds: tuple[LiveFeed, ...]
    unseen: deque[Written]
    waiters: Waiters
    stable_waiters: Waiters
    producers: Producers
    budget: UnseenBytes

    __slots__ = (
        "_arrivals", "_log", "_place", "_scheduled", "_troubles", "stopped",
    )  # fmt: skip

    def __init__(
        self,
        place: str,
        log: PartitionLog,
        producers: Producers,
        troubles: Troubles,
        budget: UnseenBytes,
        high_watermark: Offset,
        arrivals: Arrivals,
    ) -> None:
        self._arrivals = arrivals
        self._place = place
        self._log = log
        self.producers = producers
        self._troubles = troubles
        self.stopped: OnelogError | None = None
        self.high_watermark = high_watermark
        self.feeds = ()
        self.topics_wanted = False
        self.fed_topics = None
        raised = self._waiter_raised
        self.waiters = Waiters(raised)
        self.stable_waiters = Waiters(raised)
        self.budget = budget
        self.unseen = NOTHING_HELD
        self.unseen_bytes = 0
        self.gap_start = self.gap_end = Offset(0)
        self.late = {}
        self.feeding = self._scheduled = False

    @property
    def last_stable_offset(self) -> Offset:
        """End of what is decided: no record of an open transaction lies below it."""
        first_open = self.producers.first_open_offset
        return self.high_watermark if first_open is None else min(first_open, self.high_watermark)

    # -- what becomes visible

    def hold(self, end: Offset, data: bytes | bytearray, topics: bytes | None) -> None:
        """Hold batches that end at `end` for the feeds until they are visible."""
        size, budget = len(data), self.budget
        budget.held += size
        self.unseen_bytes += size
        if self.unseen is NOTHING_HELD:
            self.unseen = deque()
        self.unseen.append((end, data, topics))
        if budget.held > budget.limit or self.unseen_bytes > budget.share:
            budget.overflows += 1
            if self.gap_start == self.gap_end:
                self.gap_start = Offset(int.from_bytes(self.unseen[0][1][:8], "big"))
            self.gap_end = end
            self._let_go()

    def _let_go(self) -> None:
        self.unseen.clear()
        self.budget.held -= self.unseen_bytes
        self.unseen_bytes = 0

    def show(self, end: Offset, data: bytes | bytearray, topics: bytes | None) -> None:
        """Let batches that were just written be seen at once."""
        if (
            self.unseen
            or self.waiters.rows
            or self.stable_waiters.rows
            or self.feeding
            or self.gap_start < self.gap_end
            or self.pending_writes
        ):
            # A waiter that is called may append: records still become visible in the order of the
            # log.
            if self.feeds:
                self.hold(end, data, topics)
            self.advance(end)
            return
        self.high_watermark = end
        self.producers.settle(end)
        if self.feeds:
            # As `_give`, without the extra call: it would cost each single message.
            self.feeding = True
            self.fed_topics = topics
            for feed in self.feeds:
                try:
                    feed(data)
                except Exception as error:  # noqa: BLE001 - the others are fed nevertheless
                    self.feed_raised(data, error)
            self.feeding = False
            if self.unseen or self.gap_start < self.gap_end:  # a feed appended
                self.feed()

    def advance(self, end: Offset) -> None:
        """Everything below `end` is visible now."""
        if end > self.high_watermark:
            self.high_watermark = end
            self.producers.settle(end)
            self.spill()
            self.waiters.advance(end)
            if self.stable_waiters.rows:
                self.stable_waiters.advance(self.last_stable_offset)
            if self.unseen or self.gap_start < self.gap_end:
                self.feed()

    # -- feeds

    @property
    def _has_gap(self) -> bool:
        return self.gap_start < self.gap_end

    def follow(self, feed: LiveFeed, end: Offset) -> None:
        """From now on, also hand batches that become visible to `feed`; the log ends at `end`."""
        if not self.feeds and self.high_watermark < end:
            # Batches that are not visible yet were held for nobody until now.
            self.gap_start, self.gap_end = self.high_watermark, end
        elif self._has_gap and self.gap_start < self.high_watermark:
            self.late[feed] = self.high_watermark
        self.feeds = (*self.feeds, feed)

    def unfollow(self, feed: LiveFeed) -> None:
        """Hand nothing more to `feed`."""
        self.feeds = tuple(known for known in self.feeds if known != feed)
        self.late.pop(feed, None)
        if not self.feeds:
            self._let_go()
            self.gap_start = self.gap_end = Offset(0)

    def feed(self) -> None:
        """Hand visible batches to the feeds, as far as this pass goes. A call from within a feed
        returns at once."""
        if self.feeding:
            return
        self.feeding = True
        try:
            while self.feeds:
                if self._has_gap:
                    if self._scheduled or not self._read_back():
                        return
                elif self.unseen and self.unseen[0][0] <= self.high_watermark:
                    _end, data, topics = self.unseen.popleft()
                    self.unseen_bytes -= len(data)
                    self.budget.held -= len(data)
                    self._give(data, topics)
                elif not self.unseen or not self._split_run():
                    return
        finally:
            self.feeding = False

    def _split_run(self) -> bool:
        """Split the first held batches at the high watermark. Returns whether some are visible.

        Other replicas may have reached the middle of batches that were written together.
        """
        end, data, _topics = self.unseen[0]
        first = _below(data, self.high_watermark)
        if first is None:
            return False
        self.unseen[0] = (end, data[len(first[1]) :], None)
        self.unseen.appendleft(first)
        return True

    def _read_back(self) -> bool:
        """Feed a slice of the gap from the log. Returns whether the gap is closed."""
        upto = min(self.gap_end, self.high_watermark)
        if self.gap_start < upto:
            try:
                data = self._log.read(self.gap_start, SLICE_BYTES, upto)
                # One by one: a feed that reads the log itself may have begun at any of them.
                for info in scan_batches(data, 0, False):
                    batch = bytes(data[info.position : info.position + info.size_bytes])
                    self.gap_start = Offset(info.last_offset + 1)
                    self._give(batch, None)
            except Cold as cold:
                self._scheduled = True
                self._arrivals.when_here(cold, self._go_on)
                return False
            except Exception as error:  # noqa: BLE001 - what follows is fed nevertheless
                if self.stopped is None:  # a partition that stopped has reported it
                    self._troubles.note(FEED, self._place, error, offset=int(self.gap_start))
                self.gap_start = upto
        if not self._has_gap:
            return True
        if self.gap_start < self.high_watermark:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)
        return False

    def _go_on(self, _error: OnelogError | None = None) -> None:
        """Feed on; a log that cannot be read says so when it is read."""
        self._scheduled = False
        self.feed()

    def _give(self, data: bytes | bytearray, topics: bytes | None) -> None:
        self.fed_topics = topics
        base = int.from_bytes(data[:8], "big") if self.late else 0
        if self.late and base >= max(self.late.values()):
            self.late.clear()
        for feed in self.feeds:
            if self.late and base < self.late.get(feed, 0):
                continue
            try:
                feed(data)
            except Exception as error:  # noqa: BLE001 - the others are fed, and it gets the next
                self.feed_raised(data, error)

    def feed_raised(self, data: bytes | bytearray, error: Exception) -> None:
        """A feed raised over these batches: report it."""
        offset = int.from_bytes(data[:8], "big")
        self._troubles.note(FEED, self._place, error, offset=offset)

    # -- waiting

    def when_visible(self, offset: Offset, callback: Callback) -> Waiter | None:
        """Call back when the record at `offset` is visible; at once (None) when it is already."""
        if self.stopped is not None:
            callback(again(self.stopped))
            return None
        if offset < self.high_watermark:
            callback(None)
            return None
        return self.waiters.add(offset, callback)

    def when_stable(self, offset: Offset, callback: Callback) -> Waiter | None:
        """As `when_visible`, for readers of committed records: below the last stable offset."""
        if self.stopped is not None:
            callback(again(self.stopped))
            return None
        if offset < self.last_stable_offset:
            callback(None)
            return None
        return self.stable_waiters.add(offset, callback)

    def wait_visible(self, offset: Offset) -> asyncio.Future[None]:
        """A future for `when_visible`."""
        return as_future(lambda callback: self.when_visible(offset, callback))

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self.waiters) + len(self.stable_waiters) + self.pending_writes

    def _waiter_raised(self, offset: Offset, error: Exception) -> None:
        self._troubles.note(WAITER, self._place, error, offset=int(offset))

    # -- the end

    def stop(self, error: OnelogError) -> None:
        """Refuse everything from now on; everybody who waits gets the error."""
        if self.stopped is None:
            self.stopped = error
            if self._has_gap:
                self.gap_end = self.high_watermark
            self._let_go()  # invisible records stay invisible; visible ones are in the log
            self.spill()
            self.waiters.fail(error)
            self.stable_waiters.fail(error)

    def fail_writers(self, start: Offset, end: Offset, error: OnelogError) -> None:
        """Fail those who wait for a record in [start, end) to become visible: it may never be."""
        self.spill()
        self.waiters.fail_between(start, end, error)

    def cut(self, end: Offset) -> None:
        """The log now ends at `end`: drop the held batches behind it."""
        kept = [row for row in self.unseen if row[0] <= end]
        if len(kept) < len(self.unseen):
            first = _below(self.unseen[len(kept)][1], end)
            kept += [first] if first is not None else []
        self._let_go()
        self.unseen.extend(kept)
        self.unseen_bytes = sum(len(data) for _end, data, _topics in kept)
        self.budget.held += self.unseen_bytes
        self.gap_end = min(self.gap_end, end)
        self.gap_start = min(self.gap_start, self.gap_end)


def _below(data: bytes | bytearray, offset: Offset) -> Written | None:
    """The batches in `data` that lie below `offset`; None: none does."""
    if int.from_bytes(data[:8], "big") >= offset:
        return None
    found = [info for info in scan_batches(data, 0, False) if info.last_offset < offset]
    if not found:
        return None
    last = found[-1]
    return Offset(last.last_offset + 1), data[: last.position + last.size_bytes], None
