"""The tier of one partition: it copies sealed segments to the store, drops them here, brings them
back, and deletes objects that no row names any more.

Rules: one of these runs at a time. A piece is in the store before a manifest names it, the manifest
before its copy here, and the copy before a local segment goes. An object is doomed by a manifest,
then deleted, then forgotten by another. What `trim` and `truncate` decide is durable here at once;
the store hears of it with the next commit.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from onelog.base import faults
from onelog.base.clock import Clock
from onelog.base.errors import ColdUnavailable, StorageError
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import scan_batches
from onelog.objects import names
from onelog.objects.manifest import Doomed
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold import DoomedHold, PlanHold
from onelog.storage.engine import LogSettings, SegmentInfo, in_place
from onelog.storage.tables import Adoption, Tables
from onelog.storage.tier import PieceSource, TierStatus
from onelog.storage.tiered.building import READ_BYTES, build, next_run
from onelog.storage.tiered.commits import Commits, TierChange
from onelog.storage.tiered.inner import LocalLog
from onelog.storage.tiered.state import NO_ROWS, TierState
from onelog.storage.tiered.tabling import TableTier

_DELETED_AT_ONCE: Final = 1000


class PartitionTier:
    """Moves the sealed segments of one partition."""

    __slots__ = (
        "_clock", "_commits", "_hold", "_inner", "_state", "_store", "_table", "_work",
        "settings",
    )  # fmt: skip

    def __init__(
        self,
        store: ObjectStore,
        state: TierState,
        inner: LocalLog,
        settings: LogSettings,
        clock: Clock,
        house: bytes,
        tables: Tables | None = None,
        *,
        plans: PlanHold | None = None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._state = state
        self._inner = inner
        self._clock = clock
        self._commits = Commits(store, state, inner, house)
        self._table: TableTier | None = None
        """How rows get into the stream's table; None: this broker writes none."""
        if tables is not None:
            self._table = TableTier(tables, state, inner, self._commits, clock, self._kept)
        self._work = threading.RLock()
        self._hold = DoomedHold(plans)

    # Numbers: nothing here blocks.

    def status(self) -> TierStatus:
        """How far it is."""
        state = self._state
        with state.lock:
            first, rows = state.first, state.rows
            return TierStatus(
                rows=len(rows) - first,
                cold_bytes=rows.bytes_between(first, len(rows)),
                cold_end_offset=Offset(max(state.start, state.end)),
                local_start_offset=Offset(state.local),
                local_bytes=self._inner.size_bytes,
                hits=max(0, state.cold.found - state.cold.missed),
                misses=state.cold.missed,
                doomed=len(state.head.doomed) + first + len(state.dropped),
                seq=state.head.seq,
                halted=self._commits.fence or self._commits.refusal or self._table_halt,
            )

    @property
    def _table_halt(self) -> str:
        return "" if self._table is None else self._table.halt(self.settings)

    def waiting(self, stable: Offset) -> Sequence[SegmentInfo]:
        """Sealed segments that are not in the store and may go there, oldest first."""
        tier = self.settings.tier
        if tier is None or not tier.copy:
            return ()
        below = min(stable, self._inner.durable_offset)
        end = self._state.end
        found = []
        for info in self._inner.segments():
            if not info.sealed or info.end_offset > below:
                break
            if info.end_offset > end:
                found.append(info)
        return found

    def hold_doomed(self, until_ms: TimestampMs) -> None:
        """Delete no object that a row names now before this time, also after a restart. It
        blocks."""
        self._hold.until(self._clock.now_ms(), until_ms)

    # Into the store.

    def hurry(self) -> None:
        """Let the next upload commit to a table at once."""
        if self._table is not None:
            self._table.hurry()

    def upload(self, stable: Offset, source: PieceSource) -> Row | None:
        """Copy the next piece into the store."""
        with self._work:
            tier = self.settings.tier
            if tier is not None and tier.format != "log":
                return self._upload_rows(stable, source)
            while waiting := self.waiting(stable):
                self._commits.meet()
                if self._state.end < waiting[-1].end_offset:
                    row = self._copy(self.waiting(stable), source)
                    if self._add(row, source):
                        return row
            return None

    def _copy(self, waiting: Sequence[SegmentInfo], source: PieceSource) -> Row:
        """Put the next piece into the store. No manifest names it yet."""
        settings, inner, key = self.settings, self._inner, self._state.key
        run = next_run(inner, waiting, self._state.end, settings.segment_bytes)
        piece, epoch = build(inner, run, source, index_topics=settings.topic_index)
        name = names.tier_piece(*key, run.base, run.end, names.new_tag())
        self._store.put(name, piece.parts)
        created_ms = min(info.created_ms for info in run.segments)
        return piece.row(name, created_ms=created_ms, leader_epoch=epoch)

    def _upload_rows(self, stable: Offset, source: PieceSource) -> Row | None:
        return self._its_table().upload(self.settings, partial(self.waiting, stable), source)

    # Rows of a table that somebody else rewrote.

    def adoption(self) -> Adoption:
        """What the manifest says of the table."""
        with self._work:
            return self._its_table().adoption(self.settings)

    def adopt(self, parts: Sequence[Adoption]) -> Mapping[int, Sequence[Row]]:
        """Have rows of all partitions proved and written anew."""
        return self._its_table().adopt(parts)

    def take_adopted(self, part: Adoption, rows: Sequence[Row]) -> None:
        """Name the new files."""
        with self._work:
            self._its_table().take_adopted(part.words, rows)

    def _its_table(self) -> TableTier:
        if self._table is None:
            raise StorageError(
                f"the tier of {self._state.name} is a table, and this broker writes none: install"
                " the extra onelog[lake] and restart"
            )
        return self._table

    def _add(self, row: Row, source: PieceSource) -> bool:
        """Let a manifest name a piece. False: an earlier try was in the store after all."""
        stream, epoch = source.stream, source.leader_epoch

        def change() -> TierChange | None:
            if self._state.end > row.base:
                return None
            kept = self._kept()
            rows = kept.rows.spliced(len(kept.rows), len(kept.rows), (row,))
            return kept._replace(rows=rows, stream=stream, leader_epoch=epoch)

        if self._commits.commit(change):
            return True
        with contextlib.suppress(ColdUnavailable):  # the sweep does it
            self._store.delete([row.object])
        return False

    def _kept(self) -> TierChange:
        """What the next manifest says if nothing new comes: rows that left are doomed."""
        state = self._state
        with state.lock:
            return TierChange(
                rows=state.kept(),
                doomed=(*state.head.doomed, *_doom(state.gone(), self._clock.now_ms())),
                start=state.start,
            )

    # Out of the store.

    def settle(self, now_ms: TimestampMs, grace_ms: int) -> int:
        """Tell the store what left the log, and delete doomed objects after the grace time."""
        state = self._state
        with self._work:
            rows_left = state.has_gone
            if rows_left:
                self._commits.commit(self._if_gone)
            if self._table is not None:
                self._table.keep_up(self.settings, rows_left=rows_left)
            due = [
                one.object
                for one in state.head.doomed
                if self._hold.due_ms(one.since_ms, grace_ms) <= now_ms
            ]
            if not due:
                return 0
            self._commits.meet()  # nobody deletes what another writer may still name
            self._delete(due)
            gone = frozenset(due)

            def forget() -> TierChange | None:
                kept = self._kept()
                left = tuple(one for one in kept.doomed if one.object not in gone)
                return None if left == kept.doomed else kept._replace(doomed=left)

            self._commits.commit(forget)
            return len(due)

    def _if_gone(self) -> TierChange | None:
        return self._kept() if self._state.has_gone else None

    def _delete(self, objects: Sequence[str]) -> None:
        try:
            faults.hit("doom.delete")
        except OSError as error:
            raise ColdUnavailable(f"deleting objects of {self._state.name}: {error}") from error
        for at in range(0, len(objects), _DELETED_AT_ONCE):
            self._store.delete(objects[at : at + _DELETED_AT_ONCE])

    def delete_cold(self) -> None:
        """Name no row any more: the log begins at its local start."""
        state = self._state
        with self._work:
            local = self._inner.start_offset

            def change() -> TierChange | None:
                kept = self._kept()
                if not len(kept.rows):
                    return None
                doomed = (*kept.doomed, *_doom(kept.rows, self._clock.now_ms()))
                return kept._replace(rows=NO_ROWS, doomed=doomed, start=max(kept.start, local))

            self._commits.commit(change)
            with state.lock:
                state.move_start(max(Offset(state.start), local))
            state.wait()

    # The local window.

    def trim_local(self, upto: Offset) -> Offset:
        """Drop local segments of pieces that end at or before `upto`."""
        state, inner = self._state, self._inner
        with self._work:
            with state.lock:
                number = state.rows.number_at(upto)
                end = state.rows.end_of(number - 1) if number else 0
                local = Offset(max(end, inner.start_offset))
                if local > inner.start_offset:
                    state.move_local(local)  # readers go to the store from now on
            if local > inner.start_offset:
                try:
                    faults.hit("tier.trim")
                except OSError as error:
                    raise StorageError(f"trimming {state.name} here failed: {error}") from error
                inner.trim(local)
            return inner.start_offset

    def bring_back(self) -> bool:
        """Fetch the newest piece that is only in the store into a local segment."""
        state = self._state
        with self._work:
            self.load_rows()
            number = state.rows.number_from(state.local) - 1
            if number < state.first:
                return False
            self._prepend(state.rows[number])
            with state.lock:
                state.move_local(self._inner.start_offset)
            return True

    def _prepend(self, row: Row) -> None:
        state, inner = self._state, self._inner
        first = inner.segments()[0].base_offset
        offset = log_start = Offset(max(row.base, state.start))
        upto = Offset(min(row.end, first))
        base = Offset(min(row.base, first))
        rewrite = inner.prepend(base, log_start, TimestampMs(row.created_ms))
        try:
            while offset < upto:
                view = in_place(state.cold, partial(state.cold.read, offset, READ_BYTES, upto))
                if not view:
                    break
                batches = scan_batches(view, 0, False)
                rewrite.append(view, batches)
                offset = Offset(batches[-1].last_offset + 1)
            rewrite.commit()
        except BaseException:
            rewrite.abort()
            raise

    # For the log that it belongs to.

    def load_rows(self) -> None:
        """Ask the store for rows that the damaged copies no longer say."""
        with self._work:
            if self._state.lost:
                self._commits.meet()

    def cut(self, end: Offset) -> None:
        """The log is to end at `end`: rows beyond it go, and what of them stays comes back here."""
        state = self._state
        with self._work:
            self.load_rows()
            while state.start < end < state.local and self.bring_back():
                pass
            if self.settings.tier is not None or state.head.seq or state.lost:
                state.cut_rows(end, is_met=self._commits.is_met)
            else:
                state.follow_cut(end)

    def frozen(self, end: Offset) -> bytes | None:
        """What a copy of the partition up to `end` needs to know of the store; None: nothing."""
        return self._state.frozen(end)

    def keep(self, wanted: Iterable[str]) -> set[str]:
        """Those of some objects of this partition that are needed, or may be named yet."""
        with self._work:
            self._commits.meet()
            state = self._state
            with state.lock:
                known = {row.object for row in (*state.rows, *state.dropped)}
                known.update(one.object for one in state.head.doomed)
            return known.intersection(wanted)


def _doom(rows: Iterable[Row], now_ms: int) -> list[Doomed]:
    """Objects of rows that nobody reads any more."""
    return [Doomed(row.object, now_ms) for row in rows]
