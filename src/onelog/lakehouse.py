"""The lake process as tiers use it: tables are written there, and rows become batches there.

Rules: this module knows both floors, the tier's and the lake's, and imports no Arrow. Partitions of
a stream that are ready at the same time go into one commit of its table. A process that died, or a
catalog that is away, is ColdUnavailable: tiers and readers try again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import (
    ColdUnavailable,
    Conflict,
    NotAuthorized,
    NotFound,
    OnelogError,
    Unavailable,
)
from onelog.base.ids import Offset
from onelog.config.lake import Lake, catalog_options
from onelog.lake.jobs import (
    AddedFile,
    AdoptJob,
    AdoptPart,
    AnyJob,
    BringJob,
    CommitJob,
    ConvertJob,
    JoinJob,
    LakeAnswer,
    LakeSettings,
    PingJob,
    RecoverJob,
    TablePlace,
    UpkeepJob,
)
from onelog.lake.process_link import LakeProcess
from onelog.objects.rows import Row
from onelog.objects.store import StoreSettings
from onelog.storage.cold import Brought
from onelog.storage.tables import Adoption, Conversion, InTable, TableCommit, Words

BYTES_PER_S_MIN: Final = 1_000_000
CALL_S: Final = 30.0
COMMIT_S: Final = 120.0
UPKEEP_S: Final = 600.0
LIBRARIES: Final = ("pyarrow", "pyiceberg", "deltalake", "numpy")


def has_libraries() -> bool:
    """Whether the extra `onelog[lake]` is installed; nothing of it is imported."""
    return all(find_spec(name) is not None for name in LIBRARIES)


def open_lakehouse(data_dir: Path, store: StoreSettings, keys: Lake) -> Lakehouse | None:
    """The lakehouse of a broker; None: it has none. Nothing is started before the first job."""
    if not has_libraries() or store.url.startswith("memory://"):
        return None
    own = data_dir.absolute()
    folder = keys.warehouse or f"{store.url.rstrip('/')}/lake"
    is_rest = keys.catalog.startswith(("http://", "https://"))
    process = LakeProcess(
        LakeSettings(
            url=store.url,
            options=dict(store.options),
            deadline_ms=store.deadline_ms,
            folder=str(own / "lake.tmp"),
            faults=os.environ.get("ONELOG_FAULTS", ""),
        )
    )
    return Lakehouse(
        process,
        LakeDefaults(
            catalog=keys.catalog or f"sqlite:///{own}/lake.db",
            catalog_name=keys.catalog_name,
            warehouse=keys.warehouse if is_rest else folder,
            folder=folder,
            namespace=keys.namespace,
            options=catalog_options(keys),
        ),
    )


class LakeDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Where tables lie and are registered, unless a stream says otherwise."""

    catalog: str
    catalog_name: str = "onelog"
    warehouse: str
    """Of the catalog; empty: a REST catalog knows it itself."""
    folder: str
    """Where tables of Delta lie."""
    namespace: str = "onelog"
    options: Mapping[str, str] = {}


class _Due:
    """A commit that waits for its turn."""

    __slots__ = ("error", "over", "wanted")

    def __init__(self, wanted: TableCommit) -> None:
        self.wanted = wanted
        self.over = False
        self.error: OnelogError | None = None


class _Gathering:
    """Commits to one stream's table that go together."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.due: list[_Due] = []


class Lakehouse:
    """`Tables` and `Bringing` of tiers, by the lake process."""

    def __init__(self, process: LakeProcess, defaults: LakeDefaults) -> None:
        self.process = process
        self._defaults = defaults
        self._lock = threading.Lock()
        self._gatherings: dict[str, _Gathering] = {}
        self._is_expected = False
        """Whether the process was started for readers that may come."""

    def close(self) -> None:
        """End the process."""
        self.process.close()

    def place(self, words: Words) -> TablePlace:
        """Which table the words of a stream mean."""
        known = self._defaults
        name = words["table"]
        if words["format"] == "delta":
            is_address = "/" in name
            table = name if is_address else f"{known.folder.rstrip('/')}/{name}"
            return TablePlace(format="delta", table=table, columns=words.get("columns", ""))
        return TablePlace(
            format="iceberg",
            table=name if "." in name else f"{known.namespace}.{name}",
            catalog=words.get("catalog") or known.catalog,
            catalog_name=known.catalog_name,
            warehouse=known.warehouse,
            options=known.options,
            columns=words.get("columns", ""),
        )

    # -- Tables

    def expect_reads(self) -> None:
        """See `Tables`. The process takes longer to start than a reader wants to wait."""
        with self._lock:
            if self._is_expected:
                return
            self._is_expected = True
        threading.Thread(target=self._greet, name="onelog-lake-start", daemon=True).start()

    def _greet(self) -> None:
        with contextlib.suppress(OnelogError):  # the first job that has a reader tells why
            self.process.ask(PingJob(), CALL_S)

    @contextlib.contextmanager
    def together(self, stream_id: str) -> Iterator[None]:
        """Whoever is inside at the same time commits together."""
        with self._lock:
            gathering = self._gatherings.setdefault(stream_id, _Gathering())
            with gathering.changed:
                gathering.inside += 1
        try:
            yield
        finally:
            with gathering.changed:
                gathering.inside -= 1
                gathering.changed.notify_all()

    def convert(self, wanted: Conversion) -> Row:
        """See `Tables`."""
        job = ConvertJob(
            place=self.place(wanted.words),
            stream_id=wanted.stream_id,
            partition=wanted.partition,
            topic=wanted.words.get("topic") or None,
            index_topics=wanted.index_topics,
            base=wanted.base,
            end=wanted.end,
            created_ms=wanted.created_ms,
            files=tuple((str(file.path), file.size_bytes) for file in wanted.files),
            state=wanted.state,
            aborted=tuple(wanted.aborted),
        )
        size = sum(file.size_bytes for file in wanted.files)
        try:
            return self._ask(job, CALL_S + 4 * size / BYTES_PER_S_MIN).rows[0]
        except NotFound as error:
            raise Conflict(str(error)) from error

    def commit(self, wanted: TableCommit) -> None:
        """See `Tables`. The last one who is inside commits for all."""
        due = _Due(wanted)
        gathering = self._gatherings[wanted.stream_id]
        ends = time.monotonic() + 2 * COMMIT_S
        with gathering.changed:
            gathering.due.append(due)
            gathering.changed.notify_all()
        while (together := self._gathered(gathering, due, ends)) is not None:
            self._commit_all(together)
            with gathering.changed:
                for one in together:
                    one.over = True
                gathering.changed.notify_all()
        if due.error is not None:
            raise type(due.error)(*due.error.args) from due.error

    @staticmethod
    def _gathered(gathering: _Gathering, due: _Due, ends: float) -> list[_Due] | None:
        """Commits that this thread has to make; None: somebody made its own."""
        with gathering.changed:
            while not due.over:
                left_s = ends - time.monotonic()
                is_whole = len(gathering.due) >= gathering.inside or left_s <= 0
                if due in gathering.due and is_whole:
                    together, gathering.due = gathering.due, []
                    return together
                gathering.changed.wait(max(left_s, 1.0))
        return None

    def _commit_all(self, together: Sequence[_Due]) -> None:
        first = together[0].wanted
        added = [
            AddedFile(due.wanted.partition, row.base, row.end, row.file)
            for due in together
            for row in due.wanted.rows
        ]
        job = CommitJob(
            place=self.place(first.words),
            stream_id=first.stream_id,
            added=tuple(added),
            ends={due.wanted.partition: due.wanted.before for due in together},
            known=tuple(path for due in together for path in due.wanted.known),
        )
        try:
            self._ask(job, COMMIT_S)
        except OnelogError as error:
            for due in together:
                due.error = error

    def look(self, words: Words, stream_id: str, partition: int, rows: Sequence[Row]) -> InTable:
        """See `Tables`."""
        end = rows[-1].end if rows else 0
        job = RecoverJob(
            place=self.place(words),
            stream_id=stream_id,
            partition=partition,
            end=end,
            known=tuple(AddedFile(partition, row.base, row.end, row.file) for row in rows),
        )
        try:
            answer = self._ask(job, COMMIT_S)
        except NotFound as error:  # not the table, which is made: the bucket that it is to lie in
            raise ColdUnavailable(str(error), "bucket") from error
        return InTable(answer.rows, answer.numbers[0])

    def join(
        self, words: Words, stream_id: str, partition: int, rows: Sequence[Row], index_topics: bool
    ) -> Row | None:
        """See `Tables`."""
        job = JoinJob(
            place=self.place(words),
            stream_id=stream_id,
            partition=partition,
            topic=words.get("topic") or None,
            index_topics=index_topics,
            rows=tuple(rows),
        )
        found = self._ask(job, UPKEEP_S).rows
        return found[0] if found else None

    def adopt(self, stream_id: str, parts: Sequence[Adoption]) -> Mapping[int, Sequence[Row]]:
        """See `Tables`."""
        words = parts[0].words
        job = AdoptJob(
            place=self.place(words),
            stream_id=stream_id,
            topic=words.get("topic") or None,
            parts=tuple(
                AdoptPart(one.partition, one.index_topics, tuple(one.rows)) for one in parts
            ),
            table_age_ms=int(words.get("table_age_ms", "-2")),
        )
        size = sum(row.log_bytes for one in parts for row in one.rows)
        answer = self._ask(job, UPKEEP_S + 4 * size / BYTES_PER_S_MIN)
        found: dict[int, list[Row]] = {one.partition: [] for one in parts}
        for partition, row in zip(answer.numbers, answer.rows, strict=True):
            found[partition].append(row)
        return found

    def keep_up(self, words: Words, stream_id: str, starts: Mapping[int, int], now_ms: int) -> None:
        """See `Tables`."""
        job = UpkeepJob(
            place=self.place(words),
            stream_id=stream_id,
            starts=starts,
            table_age_ms=int(words.get("table_age_ms", "-2")),
            snapshot_age_ms=int(words.get("snapshot_age_ms", "-1")),
            now_ms=now_ms,
        )
        self._ask(job, UPKEEP_S)

    # -- Bringing

    def bring(self, row: Row, offset: Offset, size_bytes: int, path: Path) -> Brought:
        """See `Bringing`."""
        job = BringJob(row=row, offset=offset, size_bytes=size_bytes, path=str(path))
        numbers = self._ask(job, CALL_S + size_bytes / BYTES_PER_S_MIN).numbers
        return Brought(Offset(numbers[0]), Offset(numbers[1]), numbers[2])

    def _ask(self, job: AnyJob, deadline_s: float) -> LakeAnswer:
        try:
            return self.process.ask(job, deadline_s)
        except (Unavailable, NotAuthorized) as error:
            raise ColdUnavailable(str(error)) from error
