"""What all partitions of an object engine share: the chain, the store, the image, the buffer.

Rules: `chain.lock` guards everything here. The image moves when a bulk leaves; an offset is durable
when its bulk counts. Bytes of batches that are in no row are bounded (`buffer_bytes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence

from onelog.base.clock import Clock
from onelog.base.errors import ColdUnavailable, OnelogError, StorageFull
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import scan_batches
from onelog.objects import names
from onelog.objects.access import Buffer
from onelog.objects.chain import Chain
from onelog.objects.chain_line import SealedBulk
from onelog.objects.checkpoint import ChainPlace
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.batch_segment import MemorySegment
from onelog.storage.cold import ColdRows, DoomedHold, PlanHold, RunCache
from onelog.storage.engine import PartitionKey, SyncDone
from onelog.storage.object.content import PartitionContent
from onelog.storage.object.image import LogImage, PartitionImage
from onelog.storage.object.notes import RowsNote
from onelog.storage.object.settings import ObjectSettings


class LoopAnswers:
    """Answers for one event loop: those of a bulk wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[SyncDone, Offset | None, BaseException | None]] = deque()

    def give(self, done: SyncDone, durable: Offset | None, error: BaseException | None) -> None:
        """Have `done` called on the loop. Any thread may call this."""
        is_first = not self._waiting
        self._waiting.append((done, durable, error))
        if is_first:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        while self._waiting:
            done, durable, error = self._waiting.popleft()
            self._loop.call_soon(done, durable, error)  # one that raises harms no other


class ObjectCore:
    """The state of an engine; a `ChainOwner`."""

    chain: Chain

    def __init__(
        self,
        store: ObjectStore,
        cache: RunCache,
        image: LogImage,
        settings: ObjectSettings,
        clock: Clock,
        plans: PlanHold | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.image = image
        self.contents: dict[PartitionKey, PartitionContent] = {}
        self.unsettled_bytes = 0
        """Bytes of batches that are in no row."""
        self.unsettled_since: float | None = None
        """Monotonic: when the oldest of them may have come."""
        self.wal_bytes = 0
        """Bytes of objects that left since the newest checkpoint."""
        self.refused = 0
        """Appends that found the buffer full."""
        self.wake_upkeep = threading.Event()
        self.checkpoint_wanted: Sequence[ChainPlace] = ()
        """The WAL objects that the newest checkpoint refers to."""
        self.hold = DoomedHold(plans)
        """Doomed objects that somebody plans to read."""
        self.scratch = cache.directory
        """Where files for a moment may lie."""
        self._cache = cache
        self._answers: dict[asyncio.AbstractEventLoop, LoopAnswers] = {}

    # Contents.

    def content(self, key: PartitionKey) -> PartitionContent:
        """What is held of a partition, empty if it is new."""
        found = self.contents.get(key)
        if found is None:
            place = f"partition {key.stream_id}/{key.partition}"
            cold = ColdRows(place, self.store, self._cache)
            found = PartitionContent(key, cold, self.clock.now_ms, self.weigh)
            self.contents[key] = found
        return found

    def recover(self) -> None:
        """Make the contents that the image describes."""
        for (stream_id, number), image in self.image.partitions.items():
            content = self.content(PartitionKey(stream_id, PartitionId(number)))
            content.start, content.end = image.start, image.end
            content.durable, content.high = image.end, min(image.high, image.end)
            content.states = list(image.states)
            content.cold.replace(image.rows, start=Offset(image.start))
            content.segments = self._replayed(image, content.name)
            self.weigh(content.memory_bytes)
            content.trim(content.start)
        self.image.data.clear()

    def _replayed(self, image: PartitionImage, name: tuple[str, int]) -> list[MemorySegment]:
        made: list[MemorySegment] = []
        most = self.settings.settle_bytes
        for ref in image.wal:
            wal = self.image.data[ref.place]
            for entry in wal.entries:
                if (entry.stream_id, entry.partition) != name or entry.base >= ref.end:
                    continue
                data, pairs = wal.batches(entry), wal.topics(entry)
                segment = made[-1] if made else None
                first = max(entry.base, ref.base)
                if (
                    segment is None
                    or segment.end_offset != first
                    or segment.indexed != (pairs is not None)
                    or segment.size_bytes + len(data) > most
                    or entry.end - segment.base_offset >= 1 << 31
                ):
                    segment = MemorySegment(first, ref.created_ms, pairs is not None)
                    made.append(segment)
                for info in scan_batches(data, 0, False):
                    if ref.base <= info.base_offset and info.last_offset < ref.end:
                        begin = info.position
                        segment.add(info, data[begin : begin + info.size_bytes])
                if pairs is not None:
                    kept = _between(pairs, entry.base, ref.base, ref.end)
                    segment.add_topics(kept, entry.base)
        return [segment for segment in made if len(segment)]

    def weigh(self, size_bytes: int) -> None:
        """Bytes of batches came into memory, or left it."""
        before = self.unsettled_bytes
        self.unsettled_bytes = after = before + size_bytes
        if before == 0 and after:
            self.unsettled_since = time.monotonic()
            self.wake_upkeep.set()
        elif after == 0:
            self.unsettled_since = None
        elif before < self.settings.settle_bytes <= after:
            self.wake_upkeep.set()

    def check_buffer(self, size_bytes: int) -> None:
        """Raise StorageFull when so many bytes do not fit the buffer."""
        most = self.settings.buffer_bytes
        if self.unsettled_bytes + size_bytes > most:
            self.refused += 1
            failure = self.chain.last_failure
            why = f": {failure}" if self.chain.away_s and failure else ""
            raise StorageFull(
                f"{self.unsettled_bytes} bytes wait for the object store {self.store.url}, and"
                f" object.buffer_bytes is {most}: try again when it has taken some{why}"
            )

    def wait(self) -> None:
        """Block until everything added so far is in the store, for a bounded time: other streams
        need this thread. Raises why the chain ended, and ColdUnavailable."""
        chain, most_s = self.chain, self.settings.wait_ms / 1000
        away_s = chain.away_s
        if away_s > most_s:
            raise ColdUnavailable(
                f"{self.store.url} has not answered for {away_s:.0f} s: try again when it does;"
                f" it said: {chain.last_failure}"
            )
        chain.wait(most_s)

    # Notes about rows. The caller holds the lock.

    def name_rows(
        self, content: PartitionContent, base: int, end: int, rows: Sequence[Row]
    ) -> None:
        """From now on, these rows hold the batches in [base, end)."""
        self.chain.note(RowsNote(*content.name, base, end, tuple(rows)))
        content.swap(base, end, rows)

    def put_data(self, parts: Sequence[Buffer]) -> str:
        """Write a data object. Returns its name. Blocks; without the lock."""
        name = names.data_object(names.new_tag(16))
        self.store.put(name, parts)
        return name

    # As a ChainOwner: with the lock held.

    def bulk_left(self, bulk: SealedBulk) -> None:
        """The image moves."""
        self.wal_bytes += bulk.wal.size_bytes
        place = ChainPlace(self.chain.line.epoch, bulk.seq)
        self.image.advance(place, bulk.written_ms, bulk.notes, bulk.entries)

    def bulk_counts(self, bulk: SealedBulk) -> None:
        """Its offsets are durable."""
        for entry in bulk.entries:
            key = PartitionKey(entry.stream_id, PartitionId(entry.partition))
            content = self.contents.get(key)
            if content is not None:
                content.durable = max(content.durable, min(entry.end, content.end))

    def chain_ended(self, error: OnelogError) -> None:
        """The upkeep ends, too."""
        del error
        self.wake_upkeep.set()

    # Answers on loops.

    def answers(self) -> LoopAnswers:
        """The answers for the running loop."""
        loop = asyncio.get_running_loop()
        found = self._answers.get(loop)
        if found is None:
            self._answers = {
                held: row for held, row in self._answers.items() if not held.is_closed()
            }
            found = self._answers[loop] = LoopAnswers(loop)
        return found


def _between(pairs: memoryview, entry_base: int, base: int, end: int) -> bytes:
    """The topic pairs of offsets in [base, end)."""
    low, high = base - entry_base, end - entry_base
    view = memoryview(bytes(pairs)).cast("I")
    if not len(view) or (low <= min(view[1::2]) and max(view[1::2]) < high):
        return bytes(pairs)
    kept = [at for at in range(0, len(view), 2) if low <= view[at + 1] < high]
    return b"".join(bytes(view[at : at + 2]) for at in kept)
