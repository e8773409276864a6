"""Opens a partition's directory: finishes changes that a crash interrupted, then finds the log's
end.

Rules: every file that the checkpoint names must exist; a missing one is corruption. Only batches
behind the recovery point are scanned. The log is cut at the first bad batch, later segments are
deleted, and the good batches are written again and synced before they count (`renewal`). A clean
stop leaves nothing to scan. A checkpoint that was read is durable before files are deleted because
of it.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from typing import Final

import msgspec

from onelog.base.errors import PartitionCorrupt
from onelog.base.ids import Offset
from onelog.kernel import REL_MAX
from onelog.storage.engine import LogSettings, TornTail
from onelog.storage.files import OpenFile, is_full, remove, sync_directory
from onelog.storage.segment.checkpoint import (
    Checkpoint,
    CheckpointFile,
    SegmentRow,
    empty_checkpoint,
)
from onelog.storage.segment.files import sync_path
from onelog.storage.segment.renewal import renew
from onelog.storage.segment.scan import Walk
from onelog.storage.segment.segment import EXTENSIONS, LOG, EngineShared, Segment
from onelog.storage.segment.state import drop_states
from onelog.storage.segment.topics import derive_entries

CLEANED: Final = ".cleaned"
_SEGMENT_FILE: Final = re.compile(r"(\d{20})(\.cleaned)?\.(log|index|timeindex|topics)")
_REPAIR: Final = (
    "restore the file from a replica or a backup, or give the stream up (onelog stream start-over)"
)


@dataclass(slots=True)
class RecoveryStats:
    """The result of opening a partition."""

    bytes_scanned: int = 0
    bytes_cut: int = 0
    segments_removed: int = 0
    end_offset: int = 0
    """Where the log ends since then."""
    clean: bool = True

    @property
    def torn(self) -> TornTail | None:
        """The part that was cut off; None: nothing."""
        if not self.bytes_cut:
            return None
        return TornTail(self.bytes_cut, self.segments_removed, Offset(self.end_offset))


@dataclass(slots=True)
class RecoveredLog:
    """A partition after recovery."""

    checkpoint: Checkpoint
    box: CheckpointFile
    segments: list[Segment]
    """The last one is the active one."""
    end_offset: int
    stats: RecoveryStats


def stem_of(directory: str, base_offset: int) -> str:
    """Path of a segment's files without the extension."""
    return f"{directory}/{base_offset:020}"


class LogRecovery:
    """One opening of a partition's directory."""

    def __init__(
        self, directory: str, shared: EngineShared, lock: threading.RLock, settings: LogSettings
    ) -> None:
        self._directory = directory
        self._shared = shared
        self._lock = lock
        self._settings = settings
        self._stats = RecoveryStats()
        self._logs: dict[int, int] = {}
        self._box = CheckpointFile(directory)
        self._damaged = False

    def run(self, trusted: bool) -> RecoveredLog:
        """Recover; `trusted` says that the last shutdown was clean."""
        saved, self._damaged = self._box.load()
        known = self._finish(saved or empty_checkpoint())
        self._list()
        if saved is None:
            known = empty_checkpoint(min(self._logs, default=0))
            if not self._damaged:  # none was ever written, so nothing was ever trimmed
                known = msgspec.structs.replace(known, start_offset=0)
        sealed = [self._segment(row, sealed=True) for row in known.sealed]
        self._check_known(known)
        self._give_back(known)
        tail = known.tail
        bases = sorted(base for base in self._logs if base >= tail.base_offset)
        size = self._logs.get(tail.base_offset, 0)
        if bases in ([], [tail.base_offset]) and size == tail.size_bytes and not self._damaged:
            if not trusted and tail.size_bytes:
                self._check_last_batch(tail)
            active = self._segment(tail)
            active.exists = bool(bases)
            segments, end = [*sealed, active], known.end_offset
        else:
            self._stats.clean = False
            if tail.size_bytes:
                self._check_last_batch(tail)
            scanned, end = self._scan(bases, known)
            segments = [*sealed, *scanned]
            known = self._make_durable(known, segments, end)
        self._stats.end_offset = end
        # A mark beyond lost records must not count once the log has grown past it.
        known = msgspec.structs.replace(known, high_watermark=min(known.high_watermark, end))
        if drop_states(self._directory, end):
            sync_directory(self._directory)
        return RecoveredLog(known, self._box, segments, end, self._stats)

    def _segment(self, row: SegmentRow, *, sealed: bool = False) -> Segment:
        stem = stem_of(self._directory, row.base_offset)
        return Segment(stem, row, self._shared, self._lock, self._settings, sealed=sealed)

    # Changes that a crash interrupted.

    def _finish(self, known: Checkpoint) -> Checkpoint:
        """Bring the files to the state of the checkpoint, whichever step was the last."""
        replaced = set(known.swap)
        named = {row.base_offset for row in known.sealed} | {known.tail.base_offset}
        with os.scandir(self._directory) as entries:
            names = [entry.name for entry in entries]
        if self._damaged and any(CLEANED in name for name in names):
            raise PartitionCorrupt(
                f"{self._directory}: both checkpoint files are damaged while a rewrite was being "
                f"swapped in; {_REPAIR}"
            )
        self._confirm(known, names, named)
        for name in names:
            path = f"{self._directory}/{name}"
            match = _SEGMENT_FILE.fullmatch(name)
            if name.endswith(".tmp"):
                remove(path)
            elif match and match[2]:
                base = int(match[1])
                if base in replaced:
                    final = f"{stem_of(self._directory, base)}.{match[3]}"
                    os.replace(path, final)  # noqa: PTH105
                else:
                    remove(path)
            elif match and self._is_leftover(int(match[1]), known, named):
                remove(path)
        if known.cut and known.tail.size_bytes:
            self._cut(known.tail.base_offset, known.tail.size_bytes)
        if known.swap or known.cut:
            drop_states(self._directory, known.end_offset)
            sync_directory(self._directory)
            known = msgspec.structs.replace(known, swap=(), cut=False)
            self._box.save(known)
        return known

    def _confirm(self, known: Checkpoint, names: list[str], named: set[int]) -> None:
        """Before files are deleted because of a checkpoint: its own sync may be what failed."""
        found = [int(match[1]) for match in map(_SEGMENT_FILE.fullmatch, names) if match]
        if known.swap or known.cut or any(self._is_leftover(base, known, named) for base in found):
            self._save_again(known)

    def _save_again(self, known: Checkpoint) -> None:
        try:
            self._box.save(known)
        except OSError as error:
            if not is_full(error):
                raise

    def _is_leftover(self, base: int, known: Checkpoint, named: set[int]) -> bool:
        """Whether a segment was dropped: by trim, by a rewrite, or by truncate."""
        if base < known.tail.base_offset:
            return base not in named
        return known.cut and (base > known.tail.base_offset or known.tail.size_bytes == 0)

    def _cut(self, base: int, size: int) -> None:
        path = stem_of(self._directory, base) + LOG
        file = OpenFile(path, os.O_RDWR)
        if os.fstat(file.fd).st_size > size:
            file.cut(size)  # nothing is mapped yet
            file.sync_all()

    # Files that must exist.

    def _list(self) -> None:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                match = _SEGMENT_FILE.fullmatch(entry.name)
                if match and match[3] == "log":
                    self._logs[int(match[1])] = entry.stat().st_size

    def _check_known(self, known: Checkpoint) -> None:
        for row in (*known.sealed, *((known.tail,) if known.tail.size_bytes else ())):
            size = self._logs.get(row.base_offset)
            path = stem_of(self._directory, row.base_offset) + LOG
            if size is None:
                raise PartitionCorrupt(
                    f"{path} is missing: {row.size_bytes} durable bytes are lost; {_REPAIR}"
                )
            if size < row.size_bytes:
                raise PartitionCorrupt(
                    f"{path} has {size} bytes, {row.size_bytes} were durable; {_REPAIR}"
                )

    def _give_back(self, known: Checkpoint) -> None:
        """Cut off bytes that truncations left behind the ends of sealed segments."""
        longer = [row for row in known.sealed if self._logs[row.base_offset] > row.size_bytes]
        if longer:
            self._save_again(known)
        for row in longer:
            self._cut(row.base_offset, row.size_bytes)

    def _check_last_batch(self, tail: SegmentRow) -> None:
        """The batch that ends at the recovery point must be whole."""
        segment = self._segment(tail)
        walk = Walk(
            segment.buffer(tail.size_bytes), tail.last_batch_at, tail.size_bytes, -1, check_crc=True
        )
        for _ in walk.pieces():
            pass
        segment.let_go()
        if walk.why:
            raise PartitionCorrupt(
                f"{segment.stem}{LOG}, byte {walk.stop}: damage before the recovery point "
                f"(byte {tail.size_bytes}), {walk.why}; {_REPAIR}"
            )

    # Batches behind the recovery point.

    def _scan(self, bases: list[int], known: Checkpoint) -> tuple[list[Segment], int]:
        """The segments from the recovery point on, the last one active, and the log's end."""
        found: list[Segment] = []
        offset = known.end_offset
        for number, base in enumerate(bases):
            if not self._follows(base, offset, found[-1] if found else known.tail):
                self._drop(bases[number:])
                break
            row = known.tail if base == known.tail.base_offset else SegmentRow(base, 0)
            segment = self._segment(row)
            offset, torn = self._scan_segment(segment, max(offset, base))
            if segment.size_bytes:
                if found:
                    found[-1].seal()
                found.append(segment)
            else:
                remove(segment.stem + LOG)
            if torn:
                if self._damaged and bases[number + 1 :]:
                    raise PartitionCorrupt(
                        f"{segment.stem}{LOG}, byte {segment.size_bytes}: damage, and both "
                        f"checkpoint files are damaged too; {_REPAIR}"
                    )
                self._drop(bases[number + 1 :])
                break
        if not found:
            found.append(self._segment(SegmentRow(max(offset, known.tail.base_offset), 0)))
        return found, offset

    def _follows(self, base: int, offset: int, last: Segment | SegmentRow) -> bool:
        """Whether a segment may come next; if not, one before it is missing or lost its records."""
        if base in (offset, last.base_offset) or base - last.base_offset > REL_MAX:
            return True
        # Without a checkpoint it is unknown which segments compaction left with a gap.
        if self._damaged and base < offset:
            raise PartitionCorrupt(
                f"{stem_of(self._directory, base)}{LOG} overlaps the segment before it, and both "
                f"checkpoint files are damaged; {_REPAIR}"
            )
        return self._damaged

    def _scan_segment(self, segment: Segment, offset: int) -> tuple[int, bool]:
        """Take over a segment's good batches behind its row. Returns the offset reached, and
        whether torn."""
        length = self._logs[segment.base_offset]
        start = segment.size_bytes
        segment.exists = True
        log = segment.buffer(length) if length else None
        segment.prepare()
        walk = Walk(log, start, length, offset, check_crc=True)
        for window, batches, _ in walk.pieces():
            entries = []
            if segment.indexes.tail is not None:
                entries = derive_entries(window, batches, segment.base_offset)
            size = batches[-1].position + batches[-1].size_bytes
            segment.note(batches, size, entries)
        if segment.size_bytes and segment.created_ms < 0:
            segment.created_ms = self._shared.clock.now_ms()
        torn = walk.torn_bytes()
        self._stats.bytes_scanned += walk.stop - start + torn
        self._stats.bytes_cut += torn
        segment.let_go()
        if length > segment.size_bytes:
            self._cut(segment.base_offset, segment.size_bytes)
        return walk.offset, torn > 0

    def _drop(self, bases: list[int]) -> None:
        """Remove the segments behind a cut, the last first: a crash leaves no hole."""
        for base in reversed(bases):
            self._stats.segments_removed += 1
            self._stats.bytes_cut += self._logs[base]
            for extension in EXTENSIONS:
                remove(stem_of(self._directory, base) + extension)

    def _make_durable(self, known: Checkpoint, segments: list[Segment], end: int) -> Checkpoint:
        """Write the scanned batches again, sync them, and move the recovery point behind them."""
        rows = [segment.row() for segment in segments]
        for segment in segments:
            if segment.base_offset >= known.tail.base_offset and segment.size_bytes:
                is_tail = segment.base_offset == known.tail.base_offset
                start = known.tail.size_bytes if is_tail else 0
                renew(segment.stem + LOG, start, segment.size_bytes)
                segment.indexes.sync()
        sync_path(self._directory)
        fresh = msgspec.structs.replace(
            known,
            end_offset=end,
            sealed=tuple(rows[:-1]),
            tail=rows[-1],
            high_watermark=min(known.high_watermark, end),
        )
        try:
            self._box.save(fresh)
        except OSError as error:
            if not is_full(error):
                raise
            return known  # no room: the next recovery scans the same again
        return fresh
