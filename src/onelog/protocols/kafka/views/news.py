"""News for views: waiters for a record of some topic or filter in a partition, called only then.

Rules:
- A partition with waiters is followed once for all of them: a batch is looked at by one kernel
  call, which asks only about topics that are new to it. So the cost for a publisher does not grow
  with the number of waiting views. If all wait for exact topics, the hashes for the topic index are
  mostly enough, and the records are not touched.
- A batch that does not show its topics (compressed), or that decides about others (the end of a
  transaction), may be news for anybody: all waiters are called, and look.
- A waiter's `offset` moves on over records that were not for it, so that nobody looks there again.
- A partition that stops calls all waiters with its error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.base.topics import is_exact
from onelog.broker import Callback, PartitionHandle, Waiter
from onelog.kernel import TopicTrie, meets_topics, scan_batches, topic_hash, topic_runs
from onelog.observe.troubles import Troubles
from onelog.protocols.kafka.views.places import ShownPartition

_NEVER: Final = Offset(2**62)
TOPICS_MAX: Final = 100_000
"""Topics of a partition whose waiters are remembered."""
FILTERS_MAX: Final = 1_000
"""Filters without waiters that are still remembered: most come back at once."""

BIT_BYTES: Final = 32 * 1024
"""So large that a topic without waiters rarely looks like one with waiters."""


class _Filter:
    """A topic or filter, and its waiters."""

    __slots__ = ("number", "text", "waiters", "watch")

    def __init__(self, watch: _Watch, text: bytes, number: int) -> None:
        self.watch = watch
        self.text = text
        self.number = number
        self.waiters: dict[_FilterWaiter, None] = {}

    def drop(self, waiter: _FilterWaiter) -> None:
        """A waiter was cancelled."""
        if self.waiters.pop(waiter, self) is None:
            self.watch.waiting -= 1

    def tell(self, upto: int, error: OnelogError | None = None) -> None:
        """There may be news from `upto` on, and none before."""
        waiters, self.waiters = self.waiters, {}
        self.watch.waiting -= len(waiters)
        for waiter in waiters:
            waiter.pass_over(upto)
            callback, waiter.callback = waiter.callback, None
            if callback is not None:
                self.watch.troubles.tell("view-waiter", (callback,), error)


class _FilterWaiter(Waiter):
    """One wait; `cancel` forgets it at once."""

    __slots__ = ("_filter", "_hears_all")

    def __init__(
        self, offset: Offset, callback: Callback, wanted: _Filter, *, hears_all: bool
    ) -> None:
        super().__init__(offset, callback)
        self._filter = wanted
        self._hears_all = hears_all

    def pass_over(self, upto: int) -> None:
        """Nothing before `upto` was for it."""
        if self._hears_all:
            self.offset = Offset(max(self.offset, upto))

    def cancel(self) -> None:
        """Never call back."""
        if self.callback is not None:
            self.callback = None
            self.pass_over(self._filter.watch.heard_to)
            self._filter.drop(self)


Concerned = tuple[_Filter, ...] | Literal[False]
"""The filters that a topic concerns; False: none."""


class _Watch:
    """All waiters in one partition."""

    __slots__ = (
        "_bits",
        "_filters",
        "_from",
        "_next_number",
        "_numbers",
        "_place",
        "_topics",
        "_trie",
        "_wildcards",
        "heard_to",
        "troubles",
        "waiting",
    )

    def __init__(
        self, place: ShownPartition, troubles: Troubles, stopped: Callable[[], object]
    ) -> None:
        self.waiting = 0
        self.heard_to = 0
        """A waiter from before this offset has heard of everything up to here."""
        self._place = place
        self.troubles = troubles
        self._from = int(place.log.end_offset)
        """Appends from here on are heard of. Records before it may not be visible yet."""
        self._filters: dict[bytes, _Filter] = {}
        self._numbers: dict[int, _Filter] = {}
        self._next_number = 0
        self._trie = TopicTrie()
        self._topics: dict[bytes, Concerned] = {}
        self._bits = bytearray(BIT_BYTES)
        """The hashes of exact topics with waiters, now or earlier."""
        self._wildcards = 0
        place.log.follow(self._heard, wants_topics=True)

        def tell(error: OnelogError | None) -> None:
            stopped()
            self._tell_all(0, error)

        place.log.when_stable(_NEVER, tell)

    def close(self) -> None:
        """Stop listening."""
        self._place.log.unfollow(self._heard)

    def wait(self, text: bytes, offset: Offset, callback: Callback) -> Waiter | None:
        """Call back when there may be something for a filter; at once (None) when there is now."""
        log = self._place.log
        ends = log.ends()
        if log.stopped is not None or offset < ends.stable or ends.high_watermark < self._from:
            return log.when_stable(offset, callback)
        wanted = self._filters.get(text) or self._add(text)
        # Records that an open transaction holds back were heard of before they were decided.
        waiter = _FilterWaiter(offset, callback, wanted, hears_all=offset >= ends.high_watermark)
        wanted.waiters[waiter] = None
        self.waiting += 1
        return waiter

    def _add(self, text: bytes) -> _Filter:
        if len(self._filters) >= FILTERS_MAX:
            self._drop_idle()
        wanted = self._filters[text] = _Filter(self, text, self._next_number)
        self._numbers[wanted.number] = wanted
        self._next_number += 1
        self._trie.add(text, wanted.number)
        self._topics.clear()
        self._note(text)
        return wanted

    def _note(self, text: bytes) -> None:
        if is_exact(text.decode()):
            bit = topic_hash(text) % (BIT_BYTES * 8)
            self._bits[bit >> 3] |= 1 << (bit & 7)
        else:
            self._wildcards += 1

    def _drop_idle(self) -> None:
        for wanted in [row for row in self._filters.values() if not row.waiters]:
            del self._filters[wanted.text], self._numbers[wanted.number]
            self._trie.remove(wanted.text, wanted.number)
        self._bits, self._wildcards = bytearray(BIT_BYTES), 0
        for text in self._filters:
            self._note(text)

    def _heard(self, data: bytes | bytearray) -> None:
        """Batches became visible."""
        if not self.waiting:
            return
        log = self._place.log
        infos = scan_batches(data, 0, False)
        topics = log.fed_topics
        if topics is not None and not self._wildcards and not meets_topics(topics, self._bits):
            self.heard_to = infos[-1].last_offset + 1
            return
        fixed = self._place.stream.fixed_topic_at(log.id, Offset(infos[0].base_offset))
        rows, end = topic_runs(
            data, None if fixed is None else fixed.encode(), self._topics, self._concerned
        )
        for row in rows:
            for wanted in row[0] or ():
                wanted.tell(infos[0].base_offset)
        if end <= infos[-1].last_offset:
            self._tell_all(infos[0].base_offset)
        self.heard_to = infos[-1].last_offset + 1

    def _concerned(self, topic: bytes) -> Concerned:
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        found = tuple(self._numbers[number] for number in self._trie.match_uncached(topic))
        self._topics[topic] = found or False
        return self._topics[topic]

    def _tell_all(self, upto: int, error: OnelogError | None = None) -> None:
        for wanted in tuple(self._filters.values()):
            wanted.tell(upto, error)


class News:
    """All waiters, by partition."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._watches: dict[PartitionHandle, _Watch] = {}

    def wait(
        self, place: ShownPartition, text: bytes, offset: int, callback: Callback
    ) -> Waiter | None:
        """Call back once there may be something for a filter at `offset` or behind it."""
        log = place.log
        if log.stopped is not None:
            return log.when_stable(Offset(offset), callback)
        watch = self._watches.get(log)
        if watch is None:
            stopped = partial(self._watches.pop, log, None)
            watch = self._watches[log] = _Watch(place, self._troubles, stopped)
        return watch.wait(text, Offset(offset), callback)

    def close(self) -> None:
        """Stop listening."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
