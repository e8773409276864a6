"""What the lake process does for each kind of job that concerns a table.

Rules: a job may be asked for again, whatever became of the first try. A file is proved before it
has a name in a table. Files on the way lie in one folder, which is emptied at the start. Commits to
tables are made one at a time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from onelog.base import faults
from onelog.base.errors import ColdDamaged, NotFound
from onelog.kernel import BatchInfo, scan_batches, scan_valid
from onelog.lake.adopting import Adopting
from onelog.lake.brought_files import BroughtFiles
from onelog.lake.framing import FramedRows, Framing
from onelog.lake.jobs import (
    AddedFile,
    AdoptJob,
    AnyJob,
    CommitJob,
    ConvertJob,
    Job,
    JoinJob,
    LakeAnswer,
    LakeSettings,
    RecoverJob,
    TablePlace,
    UpkeepJob,
)
from onelog.lake.log_rows import RowMaker
from onelog.lake.log_table import file_name
from onelog.lake.log_tables import LogTable
from onelog.lake.log_upkeep import keep_up_log
from onelog.lake.placing import put_file
from onelog.lake.rebuilding import row_of_frames, state_of
from onelog.lake.tables import LogPart, TableFile
from onelog.objects import names
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row


class LakeWork:
    """Does jobs. Any thread may call it."""

    def __init__(self, settings: LakeSettings, readers: BroughtFiles) -> None:
        self._folder = Path(settings.folder)
        self._store = readers.store
        self._access = readers.access
        self._rebuilding = readers.rebuilding
        self._committing = threading.Lock()
        self._handlers: dict[type[Job], Callable[..., LakeAnswer]] = {
            ConvertJob: self.convert,
            CommitJob: self.commit,
            RecoverJob: self.recover,
            JoinJob: self.join,
            AdoptJob: self.adopt,
            UpkeepJob: self.upkeep,
        }

    def do(self, job: AnyJob) -> LakeAnswer:
        """Do a job."""
        return self._handlers[type(job)](job)

    def _table(self, place: TablePlace) -> LogTable:
        return LogTable(place, self._access())

    # -- into the table

    def convert(self, job: ConvertJob) -> LakeAnswer:
        """Segments become a file and frames, both in place."""
        log = self._table(job.place)
        with self._temporary() as path:
            framing = self._framing(log, path, job, job.aborted)
            try:
                for batches, view in _batches(job):
                    framing.add(view, batches)
                target = self._target(log, job.partition, job.base, job.end)
                made = framing.finish(job.end, target, created_ms=job.created_ms, state=job.state)
            except BaseException:
                framing.discard()
                raise
            return LakeAnswer(0, "", "", (self._put(job, path, target, made, job.created_ms),))

    def _framing(
        self, log: LogTable, path: Path, job: ConvertJob | JoinJob, aborted: Sequence[AbortedSpan]
    ) -> Framing:
        with self._committing:
            table = log.open(make=True)
        maker = RowMaker(table.layout.schema, job.partition, topic=job.topic, typed=log.typed)
        base = job.base if isinstance(job, ConvertJob) else job.rows[0].base
        return Framing(base, path, maker, index_topics=job.index_topics, aborted=aborted)

    def _target(self, log: LogTable, partition: int, base: int, end: int) -> str:
        directory = log.open().layout.directory.rstrip("/")
        return f"{directory}/{file_name(partition, base, end, names.new_tag())}"

    def _put(
        self, job: ConvertJob | JoinJob, path: Path, target: str, made: FramedRows, created_ms: int
    ) -> Row:
        faults.hit("lake.file")
        footer = made.frames.footer
        put_file(self._access(), path, target)
        name = names.frames(job.stream_id, job.partition, footer.base, footer.end, names.new_tag())
        self._store.put(name, made.frames.parts)
        return made.frames.row(
            name, created_ms=created_ms, leader_epoch=made.leader_epoch, file=target
        )

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        path = self._folder / f"{names.new_tag()}.parquet"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def commit(self, job: CommitJob) -> LakeAnswer:
        """Files become part of the table."""
        with self._committing:
            log = self._table(job.place)
            log.add(job.stream_id, job.added, job.ends, job.known)
            return LakeAnswer(0, "", log.snapshot(log.open()))

    def recover(self, job: RecoverJob) -> LakeAnswer:
        """Rows that the table has and the manifest does not name, and the table's mark."""
        log = self._table(job.place)
        with self._committing:
            table = log.open(make=True)
        mark = table.end_of(LogPart(job.stream_id, job.partition))
        if mark is None:
            return LakeAnswer(0, "", "", (), (-1,))
        there = log.files(table)
        lacking = [file for file in job.known if file.path not in there]
        if mark <= job.end and not lacking:
            return LakeAnswer(0, "", "", (), (mark,))
        rows = self._unnamed(job, mark, there, lacking)
        reached = max([job.end, *(row.end for row in rows)])
        if reached < mark:
            raise ColdDamaged(
                f"the table {job.place.table} has partition {job.partition} of stream"
                f" {job.stream_id} up to offset {mark}, but the store has frames only up to"
                f" {reached}: restore the objects below"
                f" {names.frames_of(job.stream_id, job.partition)} from a copy of the bucket"
            )
        return LakeAnswer(0, "", "", tuple(rows), (mark,))

    def _unnamed(
        self,
        job: RecoverJob,
        mark: int,
        there: Mapping[str, TableFile],
        lacking: Sequence[AddedFile],
    ) -> list[Row]:
        """Rows of the table that lie behind the manifest's end, or instead of files it names."""
        rows: list[Row] = []
        known = {file.path for file in job.known}
        end = -1
        for base, last, name in sorted(self._named(job.stream_id, job.partition)):
            is_new = base >= job.end and last <= mark
            is_joined = any(base <= file.base and file.end <= last for file in lacking)
            if base < end or not (is_new or is_joined):
                continue
            with contextlib.suppress(NotFound):
                row = row_of_frames(self._store, name)
                if row.file in there and row.file not in known:
                    rows.append(row)
                    end = row.end
        return rows

    def _named(self, stream_id: str, partition: int) -> Iterator[tuple[int, int, str]]:
        for found in self._store.list(names.frames_of(stream_id, partition)):
            name = names.parse_ranged(found.name)
            if name is not None:
                yield name.base, name.end, found.name

    # -- upkeep

    def join(self, job: JoinJob) -> LakeAnswer:
        """Neighbouring files become one."""
        log = self._table(job.place)
        rows = job.rows
        opened = [self._rebuilding.opened(row) for row in rows]
        aborted = sorted({span for one in opened for span in one.part.aborted}, key=_first)
        state = state_of(self._store, rows[-1], opened[-1].part)
        created_ms = min(row.created_ms for row in rows)
        with self._temporary() as path:
            framing = self._framing(log, path, job, aborted)
            try:
                for row in rows:
                    run = self._rebuilding.run(row, row.base, row.log_bytes)
                    for part in run.parts:
                        framing.add(memoryview(part), scan_batches(part))
                target = self._target(log, job.partition, rows[0].base, rows[-1].end)
                made = framing.finish(rows[-1].end, target, created_ms=created_ms, state=state)
            except BaseException:
                framing.discard()
                raise
            joined = self._put(job, path, target, made, created_ms)
        with self._committing:
            table = log.open()
            there = log.files(table)
            removed = [there[row.file] for row in rows if row.file in there]
            if len(removed) != len(rows) or not log.replace(table, [joined.file], removed):
                self._store.delete([joined.object])
                return LakeAnswer(0, "", "")
        return LakeAnswer(0, "", "", (joined,))

    def adopt(self, job: AdoptJob) -> LakeAnswer:
        """Rows that somebody else rewrote become files of our own again."""
        log = self._table(job.place)
        with self._committing:
            log.open(make=True)  # with the columns that it has to have
        adopting = Adopting(self._store, self._access(), self._folder, log, job)
        made = adopting.run(self._committing)
        rows = tuple(row for _partition, row in made)
        return LakeAnswer(0, "", "", rows, tuple(partition for partition, _row in made))

    def upkeep(self, job: UpkeepJob) -> LakeAnswer:
        """What retention took leaves the table; old snapshots and unnamed files go."""
        with self._committing:
            removed, deleted = keep_up_log(self._table(job.place), job)
        return LakeAnswer(0, "", "", (), (removed, deleted))


def _first(span: AbortedSpan) -> tuple[int, int]:
    return span.first, span.producer_id


def _batches(job: ConvertJob) -> Iterator[tuple[list[BatchInfo], memoryview]]:
    """The batches of the segments between the job's base and end."""
    for name, size in job.files:
        if not Path(name).exists():
            raise NotFound(f"the segment {name} is gone: it was trimmed meanwhile")
        if not size:
            continue
        with Path(name).open("rb") as file:
            if os.fstat(file.fileno()).st_size < size:
                raise ColdDamaged(f"the segment {name} has less than {size} bytes")
            view = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        batches, stop, why = scan_valid(view, 0, True, -1)
        if stop != size:
            raise ColdDamaged(
                f"the segment {name} is damaged at byte {stop} ({why}); restore the file from a"
                " replica or a backup"
            )
        yield (
            [
                info
                for info in batches
                if info.last_offset >= job.base and info.base_offset < job.end
            ],
            view,
        )
