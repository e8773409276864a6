"""The topics that there are: learned from the log when somebody asks, kept in memory from then on.

Rules: nothing is noted when messages are written; the first question starts a survey of the newest
`SURVEY_BYTES_MAX` bytes of the log, and each later question takes in what came since. The survey
works in pieces (`LoopShare`) and tells how far it is. Topics are numbered as they are found, so a
page goes on after a number; `TOPICS_MAX` of them are kept. Each block of `TRIE_TOPICS` numbers has
a trie of its own: a filter is looked for block by block, so that no look holds the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from onelog.admin.api.share import LoopShare
from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import Broker, PartitionHandle, Stream
from onelog.kernel import ATTR_CONTROL, TopicTrie, batch_topics, scan_batches
from onelog.record.batch import decode, inflated_records

TOPICS_MAX: Final = 1_000_000
SURVEY_BYTES_MAX: Final = 1024**3
"""Of the whole log, the newest bytes of each partition first."""
READ_BYTES: Final = 8 * 1024
TRIE_TOPICS: Final = 4096
"""Topics of one trie. A filter that matches a million topics must not find all of them in one
piece."""

Key = tuple[str, int]


class TopicSurvey:
    """The topics of one broker, as far as they are known."""

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._reached: dict[Key, int] = {}
        """Per partition: everything below was looked at, or is left out."""
        self._hashes: dict[Key, set[int]] = {}
        self._numbers: dict[str, int] = {}
        self._topics: list[str] = []
        self._tries: list[TopicTrie] = []
        """One for each `TRIE_TOPICS` topics in the order of their numbers."""
        self._running: asyncio.Task[None] | None = None
        self.complete = True
        """Whether no part of the log is left out and nothing was too much."""

    def __len__(self) -> int:
        return len(self._topics)

    async def refresh(self, broker: Broker, wait_s: float) -> bool:
        """Take in what came since; whether all of it was taken in within this time."""
        if self._running is None or self._running.done():
            work = self._share.metered(self._survey(broker))
            self._running = asyncio.ensure_future(_awaited(work))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await asyncio.shield(self._running)
        return self._running.done()

    async def close(self) -> None:
        """Survey no more."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def find(self, text: str, after: int) -> Iterator[tuple[int, str | None]]:
        """Topics of a filter by number, from the first one above `after`.

        None comes after each block, so that others may have their turn where nothing matches.
        """
        for block in range(max(0, after + 1) // TRIE_TOPICS, len(self._tries)):
            first = block * TRIE_TOPICS
            numbers: Iterable[int] = range(first, min(first + TRIE_TOPICS, len(self._topics)))
            if text != "#":
                numbers = sorted(self._tries[block].covered(text.encode()))
            for number in numbers:
                if number > after:
                    yield number, self._topics[number]
            yield first + TRIE_TOPICS - 1, None

    # -- looking

    async def _survey(self, broker: Broker) -> None:
        budget = SURVEY_BYTES_MAX
        for stream in broker.streams.streams():
            if stream.config.internal:
                continue
            fixed = stream.record.fixed_topic
            if fixed is not None:
                self._note(fixed)
                if stream.record.fixed_until is None:
                    continue
            for partition in stream.partitions:
                await self._share.turn()
                with contextlib.suppress(OnelogError):  # stopped, or gone meanwhile
                    budget -= await self._look(stream, partition, budget)

    async def _look(self, stream: Stream, partition: PartitionHandle, budget: int) -> int:
        key = (stream.record.id, int(partition.id))
        reached = self._reached.get(key)
        if reached is None:
            reached = self._first(partition, budget)
        position = max(reached, partition.start_offset)
        looked = 0
        while position < partition.high_watermark and len(self._topics) < TOPICS_MAX:
            read = partial(partition.read_now, Offset(position), READ_BYTES)
            data = await partition.until_here(read)
            if not data:
                break
            position = self._take(key, data)
            looked += len(data)
            self._reached[key] = position
            await self._share.turn()
        self._reached[key] = position
        if len(self._topics) >= TOPICS_MAX:
            self.complete = False
        return looked

    def _first(self, partition: PartitionHandle, budget: int) -> int:
        """Where to begin in a partition of which nothing is known: what fits the budget."""
        size = 0
        start = int(partition.high_watermark)
        for segment in reversed(partition.segments()):
            size += segment.size_bytes
            if size > budget and start != partition.high_watermark:
                self.complete = False
                break
            start = int(segment.base_offset)
        return start

    def _take(self, key: Key, data: memoryview) -> int:
        known = self._hashes.setdefault(key, set())
        end = 0
        for info in scan_batches(data, 0, False):
            end = info.last_offset + 1
            if info.attributes & ATTR_CONTROL or not info.count:
                continue
            pairs = batch_topics(data, info.position, inflated_records(data, info))
            hashes = set(memoryview(pairs).cast("I")[::2])
            if hashes <= known:
                continue
            known |= hashes
            slices = decode(data, info, check_crc=False)
            for index in range(len(slices)):
                topic = slices.topic(index)
                if topic is not None:
                    self._note(topic.decode(errors="replace"))
        return end

    def _note(self, topic: str) -> None:
        if topic not in self._numbers and len(self._topics) < TOPICS_MAX:
            number = self._numbers[topic] = len(self._topics)
            self._topics.append(topic)
            if number % TRIE_TOPICS == 0:
                self._tries.append(TopicTrie())
            self._tries[-1].add(topic.encode(), number)


async def _awaited(work: object) -> None:
    await work  # type: ignore[misc]
