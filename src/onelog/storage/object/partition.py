"""A partition of the object engine, open: the contract of `PartitionLog` over its content.

Rules: `append` waits for nothing; `sync` and `begin_sync` are answered when the chain has what was
appended before. Changes of the ends are notes in the chain. A state is a note, too, and nobody
waits for it: whatever comes behind it in the chain is never durable without it. A call that waits
for the store gives up after a while (ColdUnavailable): what it changed is in the chain, and counts
when the store has it. When the chain has ended, every call raises why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from onelog.base.errors import Closed, Conflict, InvalidRequest, OffsetOutOfRange, StorageError
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import BatchBuilder, BatchInfo, LogEnd, scan_batches
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.engine import (
    AskSync,
    Buffer,
    Cold,
    Lease,
    LogSettings,
    SegmentInfo,
    SyncDone,
    TornTail,
    check_ascending,
    in_place,
    seal_and_append,
)
from onelog.storage.object.building import CutRow
from onelog.storage.object.content import PartitionContent
from onelog.storage.object.core import ObjectCore
from onelog.storage.object.image import StateRow, kept_states
from onelog.storage.object.notes import CutNote, HighNote, StartNote, StateNote
from onelog.storage.object.rewrite import ObjectRewrite
from onelog.storage.tables import SealedFile
from onelog.storage.tier import Tier
from onelog.storage.topic_pairs import derive_pairs

_READ_BYTES = 1024 * 1024


class ObjectLog:
    """One partition's log."""

    def __init__(self, core: ObjectCore, content: PartitionContent, settings: LogSettings) -> None:
        self._core = core
        self._content = content
        self._chain = core.chain
        self._lock = core.chain.lock
        self.is_closed = False
        with self._lock:
            content.reconfigure(settings)

    # Positions.

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return Offset(self._content.start)

    @property
    def local_start_offset(self) -> Offset:
        """The start: the engine moves batches to the store itself, and its owner forgets
        nothing."""
        return self.start_offset

    @property
    def tier(self) -> Tier | None:
        """None: there is nothing to move from here."""
        return None

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """The rows with offsets in [start, upto), in order. Their pieces do not list aborted
        transactions: those were open when the pieces were made, and the owner knows them."""
        rows = self._content.cold.rows
        first = max(self._content.start, start)
        return rows[rows.number_at(first) : rows.number_from(upto)]

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Delete no object that a row of this engine names now before this time."""
        self._core.hold.until(self._core.clock.now_ms(), until_ms)

    def aborted(self, start: Offset, upto: Offset) -> Sequence[AbortedSpan]:
        """None: the owner knows all of them."""
        del start, upto
        return ()

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return Offset(self._content.end)

    @property
    def durable_offset(self) -> Offset:
        """Every record below it is in the store."""
        return Offset(self._content.durable)

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held."""
        with self._lock:
            return self._content.size_bytes

    @property
    def kept_high_watermark(self) -> Offset:
        """The high watermark that was kept last; 0: none was kept."""
        return Offset(self._content.high)

    @property
    def torn(self) -> TornTail | None:
        """None: an object is there or not."""
        return None

    @property
    def log_end(self) -> LogEnd | None:
        """None: the kernel appends to files only."""
        return None

    # Writing.

    def append(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None = None
    ) -> None:
        """Append whole batches that start at or after the end, in order."""
        if not batches:
            return
        content = self._content
        with self._lock:
            self._check()
            if content.is_frozen:
                raise Conflict(f"{content.place} is being truncated; try again")
            check_ascending(content.place, content.end, batches)
            size_bytes = sum(info.size_bytes for info in batches)
            self._core.check_buffer(size_bytes)
            pairs: bytes | None = None
            if content.settings.topic_index:
                pairs = derive_pairs(data, batches) if topics is None else topics
            view = memoryview(data)
            rows = [
                (bytes(view[info.position : info.position + info.size_bytes]), info)
                for info in batches
            ]
            content.append(rows, size_bytes, pairs)
            self._chain.line.open.add(content.name, rows, pairs)
            self._chain.grown()

    def append_built(self, builder: BatchBuilder, leader_epoch: int, index_topics: bool) -> bytes:
        """Seal the staged records as one batch at the end and append it. Returns the batch."""
        return seal_and_append(self, builder, leader_epoch, index_topics=index_topics)

    def roll(self) -> None:
        """Seal the active segment, unless it is empty."""
        with self._lock:
            self._check()
            self._content.roll()

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on."""
        with self._lock:
            self._check()
            self._content.reconfigure(settings)

    # Reading.

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset`, or the next."""
        content, at = self._content, int(offset)
        while True:
            with self._lock:
                self._check()
                if not content.start <= offset <= content.end:
                    raise OffsetOutOfRange(
                        f"{content.place}: offset {offset} is outside {content.start} to"
                        f" {content.end}"
                    )
                found = content.read_memory(at, max_bytes, upto)
                if found is not None and len(found):
                    return found
                behind = content.next_memory(at)
                cold, end = content.cold, content.end
            if found is None and at < cold.end_offset:
                view = cold.read(
                    Offset(max(at, cold.start_offset)), max_bytes, Offset(min(upto, behind))
                )
                if len(view):
                    return view
            if behind >= min(upto, end):
                return memoryview(b"")
            at = behind

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        with self._lock:
            self._check()
            held = self._content.memory_for_time(timestamp_ms)
            start, cold = self._content.start, self._content.cold
        found = [at for at in (held, cold.offset_for_time(timestamp_ms)) if at is not None]
        return Offset(max(start, min(found))) if found else None

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) under this hash; None without an index."""
        with self._lock:
            self._check()
            content = self._content
            if not content.settings.topic_index:
                return None
            first = Offset(max(start, content.start))
            held = content.memory_of_topic(topic_hash, first, upto, limit)
            cold = content.cold
        rows = cold.offsets_of_topic(topic_hash, first, upto, limit) if held is not None else None
        if held is None or rows is None:
            return None
        return [Offset(at) for at in sorted({*held, *rows})[:limit]]

    def bring(self, cold: Cold) -> Lease:
        """Fetch cold bytes from the store."""
        return self._content.cold.bring(cold)

    def segments(self) -> list[SegmentInfo]:
        """Rows and segments in order; the last is the active one."""
        with self._lock:
            self._check()
            return self._content.infos()

    # Durability.

    def sync(self) -> Offset:
        """Wait until everything appended before this call is in the store."""
        with self._lock:
            self._check()
        self._core.wait()
        return self.durable_offset

    def begin_sync(self, ask: AskSync, done: SyncDone) -> bool:
        """As `sync`, and no thread waits."""
        del ask
        answers = self._core.answers()

        def finished(error: BaseException | None) -> None:
            answers.give(done, None if error else self.durable_offset, error)

        self._chain.when_in(finished)
        return True

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep a derived state as of `offset`: a note, which nobody waits for."""
        with self._lock:
            self._check()
            fresh = StateRow(name, int(offset), bytes(blob))
            self._content.states = kept_states(self._content.states, fresh)
            self._chain.note(StateNote(*self._content.name, fresh.kind, fresh.offset, fresh.blob))

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest state of `name` whose offset is <= `end_offset`."""
        with self._lock:
            self._check()
            fitting = [
                (Offset(row.offset), row.blob)
                for row in self._content.states
                if row.kind == name and row.offset <= self._content.end
            ]
        return max(fitting, default=None)

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep durably how far all replicas that count are."""
        content = self._content
        with self._lock:
            self._check()
            kept = max(content.high, min(int(offset), content.end))
            if kept == content.high:
                return
            content.high = kept
            self._chain.note(HighNote(*content.name, kept))
        self._core.wait()

    # The ends.

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably; what lies below it leaves."""
        content = self._content
        self._core.wait()  # while the store is away, the log stays as it is
        with self._lock:
            self._check()
            if start > content.start:
                content.trim(int(start))
                self._chain.note(StartNote(*content.name, content.start))
        self._core.wait()

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`, durably.

        A row in the store that reaches across the end is written again up to it.
        """
        content = self._content
        with self._lock:
            self._check()
            if end >= content.end:
                return
            content.is_frozen = True
        try:
            self._core.wait()  # bulks on their way would grow beyond the cut
            made = self._rest_of_row(int(end))
            with self._lock:
                self._check()
                cut = int(end)
                if made is not None:
                    cut = made.end
                    rows = [made.finish()] if made.batches else []
                    self._core.name_rows(content, made.base, made.row_end, rows)
                cut = content.cut(cut)
                self._chain.line.open.cut(content.name, cut)
                self._chain.note(CutNote(*content.name, cut))
            self._core.wait()
        finally:
            content.is_frozen = False

    def _rest_of_row(self, end: int) -> CutRow | None:
        """What stays of the row that holds offsets on both sides of `end`; None: there is none."""
        content = self._content
        table = content.cold.rows
        number = table.number_at(end)
        if number == len(table) or table.base(number) >= end:
            return None
        row = table[number]
        made = CutRow(row, content.settings.topic_index, min(end, row.end))
        at = max(row.base, content.start)
        while at < end:
            data = in_place(self, partial(self.read, Offset(at), _READ_BYTES, Offset(end)))
            infos = scan_batches(data)
            if not infos:
                break
            made.add(bytes(data), infos)
            at = infos[-1].last_offset + 1
        made.end = self._batch_end(at, end)
        made.put(self._core)
        return made

    def _batch_end(self, at: int, end: int) -> int:
        """Where the log ends if the batch at `at`, which reaches `end`, is cut as a whole."""
        if at >= end:
            return end
        content = self._content
        data = in_place(self, lambda: self.read(Offset(at), 1, Offset(content.end)))
        infos = scan_batches(data, 0, False)
        return min(end, infos[0].base_offset) if infos else end

    def rewrite(self, start: Offset, end: Offset) -> ObjectRewrite:
        """Begin to replace the sealed batches in [start, end); both are segment boundaries."""
        with self._lock:
            self._check()
            return ObjectRewrite(self._core, self._content, int(start), int(end))

    # For a tier in front of this log: rows of a table, in the place of data objects.

    def sealed_topics(self, base: Offset) -> bytes | None:
        """None: they are derived from the records."""
        del base
        return None

    def prepend(self, start: Offset, log_start: Offset, created_ms: TimestampMs) -> ObjectRewrite:
        """Refused: there is no disk here that history could come back to."""
        del start, log_start, created_ms
        raise InvalidRequest(
            f"{self._content.place}: the engine object has no disk to bring history back to; it"
            " stays readable where it is"
        )

    @contextmanager
    def sealed_file(self, info: SegmentInfo) -> Iterator[SealedFile]:
        """The batches of a sealed segment in a file, for a process that reads files."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._core.scratch, suffix=".log") as file:
                at = max(info.base_offset, self.start_offset)
                while at < info.end_offset:
                    data = in_place(self, partial(self.read, at, _READ_BYTES, info.end_offset))
                    if not len(data):
                        break
                    file.write(data)
                    at = Offset(scan_batches(data, 0, False)[-1].last_offset + 1)
                file.flush()
                yield SealedFile(Path(file.name), file.tell())
        except OffsetOutOfRange as error:
            raise Conflict(f"{self._content.place}: a segment left meanwhile") from error
        except OSError as error:
            raise StorageError(
                f"{self._content.place}: a file in {self._core.scratch} cannot be written: {error}"
            ) from error

    # Life.

    def close(self) -> None:
        """Refuse everything from now on. The engine writes what is left when it is closed."""
        self.is_closed = True

    def _check(self) -> None:
        self._chain.check()
        if self.is_closed:
            raise Closed(f"{self._content.place} was closed")
