"""The bound of the messages that wait for a client: the newest ones stay, older ones are skipped.

Rules: only messages that the session would get count: they match, have not expired, and are not the
client's own where it does not want those. Nothing is counted while fewer records were written at
all. Reading goes on in pages, so that others have a turn in between.
"""

from __future__ import annotations

import heapq
from typing import Final

from onelog.broker import Live, Position, Reading
from onelog.protocols.mqtt.matching import Matcher

PAGE_RECORDS: Final = 1000


async def newest_positions(
    reading: Reading, matcher: Matcher, most: int, now_ms: int
) -> list[Position] | None:
    """Where the newest `most` messages begin; None: there are no more than that.

    Reads to the end. Messages of several partitions are compared by their times.
    """
    if reading.lag() <= most:
        return None
    newest: list[tuple[int, int, int]] = []
    """(time, source, offset) as a heap. In a partition the time never goes back."""
    times: dict[int, int] = {}
    skipped = False
    while reading.is_behind():
        for index, record in reading.read(PAGE_RECORDS):
            if matcher.publish(reading.sources.sources[index].key, record, now_ms) is None:
                continue
            times[index] = max(record.timestamp_ms, times.get(index, 0))
            row = (times[index], index, record.offset)
            if len(newest) < most:
                heapq.heappush(newest, row)
            else:
                heapq.heappushpop(newest, row)
                skipped = True
        await reading.turn()
    if not skipped:
        return None
    first: dict[int, int] = {}
    for _time, index, offset in newest:
        first[index] = min(offset, first.get(index, offset))
    return [
        Position(*source.key, first.get(index, reading.position(index)))
        for index, source in enumerate(reading.sources.sources)
    ]


def has_caught_up(live: Live, reading: Reading) -> bool:
    """Whether a reading is where the live feed is, in all of its sources."""
    for index, source in enumerate(reading.sources.sources):
        followed = live.find(source.key)
        if followed is not None and reading.position(index) < followed.position:
            return False
    return not reading.is_behind()
