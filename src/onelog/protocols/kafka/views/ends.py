"""Where a view of one exact topic ends: behind its last match, found by the topic index (V2).

Rules: the index is asked only about records since the last question. It may name records that are
gone or have another topic of the same hash; then the end is a little too high, and a filler leads
consumers there. The end does not change when retention removes the records.
"""

from __future__ import annotations

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
        log = self._glass.place.log
        start, upto, _visible = log.ends()
        if upto > self._checked_to and log.stopped is None:
            self._update(max(self._checked_to, start), upto)
            self._checked_to = upto
        return min(max(self._end, start), upto)

    def has_none_between(self, start: int, end: int) -> bool:
        """Whether it is known that no match lay in [start, end), even if that is trimmed by now."""
        return self._end <= start and self._checked_to >= end

    def _update(self, start: int, upto: int) -> None:
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
            hits = glass.hits(middle, upto, 1)
            if hits is None:
                self._end = upto
                return
            if hits:
                low = self._end = int(hits[0]) + 1
            else:
                high = middle
            middle = (low + high) // 2
