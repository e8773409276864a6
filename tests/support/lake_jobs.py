"""A lake process over a folder, and the jobs that a broker would give it."""

from __future__ import annotations

from pathlib import Path

from onelog.kernel import scan_batches
from onelog.lake.jobs import (
    AddedFile,
    BringJob,
    CommitJob,
    ConvertJob,
    LakeSettings,
    RecoverJob,
    TablePlace,
)
from onelog.lake.process_link import LakeProcess
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row

STREAM = "orders-1"
PATIENCE_S = 60.0


def lake_process(folder: Path, *, faults: str = "") -> LakeProcess:
    """A process whose store is a folder."""
    store = folder / "store"
    store.mkdir(parents=True, exist_ok=True)
    return LakeProcess(
        LakeSettings(url=f"file://{store}", folder=str(folder / "tmp"), threads=4, faults=faults)
    )


def place_of(folder: Path, table_format: str, *, columns: str = "") -> TablePlace:
    """The table of the stream."""
    warehouse = folder / "store" / "lake"
    warehouse.mkdir(parents=True, exist_ok=True)
    if table_format == "delta":
        return TablePlace(format="delta", table=str(warehouse / "orders"), columns=columns)
    return TablePlace(
        format="iceberg",
        table="onelog.orders",
        catalog=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{warehouse}",
        columns=columns,
    )


class LakeClient:
    """Asks the process as a broker does."""

    def __init__(self, process: LakeProcess, place: TablePlace, folder: Path) -> None:
        self.process = process
        self.place = place
        self.folder = folder
        self.files = 0

    def convert(
        self,
        data: bytes,
        *,
        partition: int = 0,
        base: int | None = None,
        end: int | None = None,
        aborted: tuple[AbortedSpan, ...] = (),
        topic: str | None = "orders",
    ) -> Row:
        """A segment of these batches becomes a file."""
        infos = scan_batches(data)
        self.files += 1
        path = self.folder / f"{self.files}.log"
        path.write_bytes(data)
        answer = self.process.ask(
            ConvertJob(
                place=self.place,
                stream_id=STREAM,
                partition=partition,
                topic=topic,
                index_topics=topic is None,
                base=infos[0].base_offset if base is None else base,
                end=infos[-1].last_offset + 1 if end is None else end,
                created_ms=7,
                files=((str(path), len(data)),),
                state=b"state",
                aborted=aborted,
            ),
            PATIENCE_S,
        )
        return answer.rows[0]

    def commit(
        self, *rows: Row, partition: int = 0, before: int = -1, known: tuple[str, ...] = ()
    ) -> None:
        """Files become rows of the table."""
        self.process.ask(
            CommitJob(
                place=self.place,
                stream_id=STREAM,
                added=tuple(AddedFile(partition, row.base, row.end, row.file) for row in rows),
                ends={partition: before},
                known=known,
            ),
            PATIENCE_S,
        )

    def recover(self, end: int, partition: int = 0) -> tuple[tuple[Row, ...], int]:
        """Rows that the manifest does not know, and the table's mark."""
        answer = self.process.ask(
            RecoverJob(place=self.place, stream_id=STREAM, partition=partition, end=end),
            PATIENCE_S,
        )
        return answer.rows, answer.numbers[0]

    def bring(self, row: Row, offset: int, size_bytes: int = 4 << 20) -> tuple[int, int, bytes]:
        """Batches from an offset on."""
        path = self.folder / "brought"
        answer = self.process.ask(
            BringJob(row=row, offset=offset, size_bytes=size_bytes, path=str(path)), PATIENCE_S
        )
        first, end, size = answer.numbers
        data = path.read_bytes()
        assert len(data) == size
        return first, end, data
