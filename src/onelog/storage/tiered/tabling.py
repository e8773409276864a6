"""The tier of a partition whose history is a table.

Rules: in this order: file and frames lie in the store, the table names the file and moves its mark,
the manifest names the frames, a copy of it is here, local segments go. A start or a lost answer
between two of these steps is decided by the table's mark: what it has, and the manifest does not
name, is named by the next manifest; nothing is written twice. When the table is not what the
manifest says, nothing more is moved until somebody acts; reads go on while the files exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from onelog.base.clock import Clock
from onelog.base.errors import Conflict, InvalidRequest, StorageError
from onelog.objects.manifest import Doomed
from onelog.objects.rows import Row
from onelog.storage.cold import RowTable
from onelog.storage.engine import LogSettings, SegmentInfo
from onelog.storage.tables import Adoption, Conversion, TableCommit, Tables, Words
from onelog.storage.tier import PieceSource
from onelog.storage.tiered.building import SealedRun, next_run
from onelog.storage.tiered.commits import Commits, TierChange
from onelog.storage.tiered.inner import LocalLog
from onelog.storage.tiered.state import TierState

RUNS_MAX: Final = 16
"""Files of a partition that one commit adds."""
SMALL_BYTES: Final = 32 << 20
"""Files of fewer bytes of batches are joined with their neighbours."""
JOINED_MIN: Final = 4
"""Neighbours that are joined, at least: else every commit would write the last file anew."""
UPKEEP_S: Final = 3600.0
_NOT_THERE: Final = -1
_END, _SINCE = "end", "since"
_PLACE: Final = ("format", "table", "catalog")
"""The words that say which table it is."""

Kept = Callable[[], TierChange]


class TableTier:
    """Moves the sealed segments of one partition into its stream's table."""

    __slots__ = (
        "_clock", "_commits", "_due_at", "_halt", "_halted_at", "_inner", "_kept", "_state",
        "_tables", "_upkeep_at",
    )  # fmt: skip

    def __init__(
        self,
        tables: Tables,
        state: TierState,
        inner: LocalLog,
        commits: Commits,
        clock: Clock,
        kept: Kept,
    ) -> None:
        """`kept` says what the next manifest has if nothing new comes."""
        self._tables = tables
        self._state = state
        self._inner = inner
        self._commits = commits
        self._clock = clock
        self._kept = kept
        self._due_at = 0.0
        self._upkeep_at = 0.0
        self._halt = ""
        self._halted_at: Words = {}
        """Which table it is that nothing more is committed to."""

    @property
    def marks(self) -> Words:
        """What the manifest says of the table."""
        return self._state.head.marks

    def halt(self, settings: LogSettings) -> str:
        """Why nothing more is committed to the stream's table; empty: nothing hinders it."""
        tier = settings.tier
        if not self._halt or tier is None or tier.format == "log":
            return ""
        return self._halt if _is_place(self._halted_at, words_of(settings)) else ""

    # Into the table.

    def hurry(self) -> None:
        """Let the next upload commit, although its time has not come."""
        self._due_at = 0.0

    def upload(
        self,
        settings: LogSettings,
        waiting: Callable[[], Sequence[SegmentInfo]],
        source: PieceSource,
    ) -> Row | None:
        """Commit all that waits, once in a while. Returns the last row."""
        words = words_of(settings)
        if self._clock.monotonic() < self._due_at or not waiting():
            return None
        stream_id, partition = self._state.key
        with self._tables.together(stream_id):
            self._commits.meet()
            self._catch_up(words)
            rows = list(self._converted(settings, words, waiting, source))
            if not rows:
                return None
            before = self._before(words)
            known = [row.file for row in self._rows_of(words)]
            self._state.prove()
            try:
                self._tables.commit(
                    TableCommit(words, stream_id, int(partition), before, rows, known)
                )
            except Conflict as error:
                raise self._halted(words, str(error)) from error
        self._name(words, rows, source)
        self._due_at = self._clock.monotonic() + int(words.get("commit_ms", "0")) / 1000
        return rows[-1]

    def _converted(
        self,
        settings: LogSettings,
        words: Words,
        waiting: Callable[[], Sequence[SegmentInfo]],
        source: PieceSource,
    ) -> Iterator[Row]:
        end = self._state.end
        for _number in range(RUNS_MAX):
            left = [info for info in waiting() if info.end_offset > end]
            if not left:
                return
            run = next_run(self._inner, left, end, settings.segment_bytes)
            yield self._convert(settings, words, run, source)
            end = run.end

    def _convert(
        self, settings: LogSettings, words: Words, run: SealedRun, source: PieceSource
    ) -> Row:
        stream_id, partition = self._state.key
        with ExitStack() as files:
            return self._tables.convert(
                Conversion(
                    words,
                    stream_id,
                    int(partition),
                    settings.topic_index,
                    run.base,
                    run.end,
                    min(info.created_ms for info in run.segments),
                    [files.enter_context(self._inner.sealed_file(info)) for info in run.segments],
                    source.state(run.end),
                    source.aborted(run.base, run.end),
                )
            )

    def _before(self, words: Words) -> int:
        """How far the table goes, as the manifest says."""
        return int(self.marks.get(_END, _NOT_THERE)) if self._is_same(words) else _NOT_THERE

    def _is_same(self, words: Words) -> bool:
        return _is_place(self.marks, words)

    def _rows_of(self, words: Words) -> list[Row]:
        """The manifest's rows that are in this table."""
        since = int(self.marks.get(_SINCE, "0")) if self._is_same(words) else 1 << 63
        with self._state.lock:
            rows = list(self._state.kept())
        return [row for row in rows if row.kind == "parquet" and row.base >= since]

    def _halted(self, words: Words, why: str) -> StorageError:
        self._halt, self._halted_at = f"the table of {self._state.name}: {why}", words
        return StorageError(self._halt)

    # What the table knows and the manifest does not.

    def _catch_up(self, words: Words) -> None:
        """Name rows that a commit added before its answer was lost, or a join."""
        stream_id, partition = self._state.key
        rows = self._rows_of(words)
        found = self._tables.look(words, stream_id, int(partition), rows)
        before = self._before(words)
        if found.end < before:
            raise self._halted(
                words,
                f"its mark says offset {found.end}, and the manifest {before}: the table was"
                " dropped or restored from a copy, or lake.catalog and lake.warehouse are others"
                " now. Set them right and restart, or set tier.table to another name to begin anew",
            )
        if found.end > self._inner.end_offset:
            raise self._halted(
                words,
                f"it goes up to offset {found.end}, and this machine's log ends at"
                f" {self._inner.end_offset}: another broker writes to it. Give each broker a table"
                " of its own",
            )
        if found.rows:
            self._commits.commit(lambda: self._swapped(words, found.rows, found.end))

    def _swapped(self, words: Words, fresh: Sequence[Row], end: int) -> TierChange | None:
        """The manifest with rows instead of those that they cover, or behind them."""
        kept = self._kept()
        known = {row.object for row in kept.rows}
        missing = [row for row in fresh if row.object not in known]
        if not missing:
            return None
        rows = list(kept.rows)
        gone: list[Row] = []
        for row in missing:
            covered = [one for one in rows if row.base <= one.base and one.end <= row.end]
            gone += covered
            rows = [one for one in rows if one not in covered]
            rows.append(row)
        rows.sort(key=lambda row: row.base)
        now_ms = self._clock.now_ms()
        doomed = (*kept.doomed, *(Doomed(row.object, now_ms) for row in gone))
        marks = self._marks(words, missing[0].base, end)
        return kept._replace(rows=RowTable(rows), doomed=doomed, marks=marks)

    def _name(self, words: Words, rows: Sequence[Row], source: PieceSource) -> None:
        """Step 4: the manifest names what the table has."""

        def change() -> TierChange | None:
            wanted = self._swapped(words, rows, rows[-1].end)
            if wanted is None:
                return None
            return wanted._replace(stream=source.stream, leader_epoch=source.leader_epoch)

        self._commits.commit(change)

    def _marks(self, words: Words, first: int, end: int) -> dict[str, str]:
        """The marks of a manifest that names rows from `first` on for the first time."""
        since = self.marks.get(_SINCE, str(first)) if self._is_same(words) else str(first)
        return {**words, _SINCE: since, _END: str(max(end, self._before(words)))}

    # Rows that somebody else rewrote.

    def adoption(self, settings: LogSettings) -> Adoption:
        """What the manifest says of the table, once it knows what the table has. Raises
        InvalidRequest, StorageError."""
        tier = settings.tier
        if tier is None or tier.format == "log":
            raise InvalidRequest("only a tier that is a table (iceberg, delta) can be adopted")
        words = words_of(settings)
        self._commits.meet()
        self._catch_up(words)
        partition = int(self._state.key.partition)
        return Adoption(words, partition, settings.topic_index, self._rows_of(words))

    def adopt(self, parts: Sequence[Adoption]) -> Mapping[int, Sequence[Row]]:
        """Have the table's rows proved and written anew, for all partitions of the stream."""
        return self._tables.adopt(self._state.key.stream_id, parts)

    def take_adopted(self, words: Words, rows: Sequence[Row]) -> None:
        """The manifest names the new files; the tier goes on."""
        if rows:
            self._commits.commit(lambda: self._swapped(words, rows, rows[-1].end))
        self._halt, self._halted_at = "", {}

    # Upkeep.

    def keep_up(self, settings: LogSettings, *, rows_left: bool) -> None:
        """Join small files, and take from the table what left the log."""
        marks = self.marks
        if not marks or self.halt(settings):
            return
        now = self._clock.monotonic()
        if not rows_left and now < self._upkeep_at:
            return
        self._upkeep_at = now + UPKEEP_S
        words = {**marks, **words_of(settings)} if settings.tier is not None else dict(marks)
        stream_id, partition = self._state.key
        starts = {int(partition): self._state.start}
        self._tables.keep_up(words, stream_id, starts, self._clock.now_ms())
        if settings.tier is not None and self._is_same(words):
            self._join(settings, words)

    def _join(self, settings: LogSettings, words: Words) -> None:
        stream_id, partition = self._state.key
        for few in neighbours(self._rows_of(words), settings.segment_bytes):
            row = self._tables.join(words, stream_id, int(partition), few, settings.topic_index)
            if row is None:
                return
            self._commits.commit(partial(self._swapped, words, [row], row.end))


def _is_place(one: Words, other: Words) -> bool:
    """Whether words mean the same table."""
    return all(one.get(word, "") == other.get(word, "") for word in _PLACE)


def words_of(settings: LogSettings) -> dict[str, str]:
    """What a stream's settings say of its table."""
    tier = settings.tier
    assert tier is not None
    return {**tier.table, "format": tier.format}


def neighbours(rows: Sequence[Row], bytes_max: int) -> Iterator[list[Row]]:
    """Small rows that lie side by side, and that one file may hold."""
    few: list[Row] = []
    size = 0
    for row in rows:
        is_small = row.log_bytes < SMALL_BYTES
        fits = few and few[-1].end == row.base and size + row.log_bytes <= bytes_max
        if few and not (is_small and fits):
            if len(few) >= JOINED_MIN:
                yield few
            few, size = [], 0
        if is_small:
            few.append(row)
            size += row.log_bytes
    if len(few) >= JOINED_MIN:
        yield few
