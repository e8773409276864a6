"""Where a view of one exact topic ends: behind its last match, found by the topic index (V2).

Rules: the index is asked only about records since the last question. It may name records that are
gone or have another topic of the same hash; then the end is a little too high, and a filler leads
consumers there. The end does not change when retention removes the records. Where the index is
cold, `settle` waits for it before anybody asks for the end.
"""

from __future__ import annotations

from functools import partial

from onelog.protocols.kafka.views.looking import Glass


class TopicEnd:
    """The end of one topic in one partition, updated when it is asked for."""

    __slots__ = ("_checked_to", "_end", "_glass")

    def __init__(self, glass: Glass) -> None:
        self._glass = glass
        self._end = 0
        self._checked_to = 0

    def get(self) -> int:
        """The offset behind the last match; without an index, the last stable offset."""
        start, upto = self._catch_up(wait=True)
        return min(max(self._end, start), upto)

    async def settle(self) -> None:
        """Wait for what is cold of the index, so that `get` need not. Raises why it cannot be
        had."""
        await self._glass.place.log.until_here(partial(self._catch_up, wait=False))

    def _catch_up(self, *, wait: bool) -> tuple[int, int]:
        """Ask about the records since the last question; where the log begins and ends."""
        log = self._glass.place.log
        start, upto, _visible = log.ends()
        if upto > self._checked_to and log.stopped is None:
            self._update(max(self._checked_to, start), upto, wait=wait)
            self._checked_to = upto
        return start, upto

    def has_none_between(self, start: int, end: int) -> bool:
        """Whether it is known that no match lay in [start, end), even if that is trimmed by now."""
        return self._end <= start and self._checked_to >= end

    def _update(self, start: int, upto: int, *, wait: bool) -> None:
        glass = self._glass
        fixed = min(glass.fixed_until(), upto)
        if start < fixed:  # every record there has the stream's topic
            topic = glass.place.stream.record.fixed_topic
            if topic is not None and glass.wanted.matches(topic.encode()):
                self._end = fixed
            start = fixed
        # Each question finds the first match from some offset on: halve the rest.
        low, high, middle = start, upto, start
        while low < high:
            hits = glass.hits(middle, upto, 1, wait=wait)
            if hits is None:
                self._end = upto
                return
            if hits:
                low = self._end = int(hits[0]) + 1
            else:
                high = middle
            middle = (low + high) // 2
