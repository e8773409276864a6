"""What a tier asks of whoever writes tables: the broker's process has no code for them.

Rules: every call blocks, and a thread of the tier makes it. A call may be made again, whatever
became of the first one. ColdUnavailable says that it may work later. Conflict of `convert` says
that the segments left meanwhile; of `commit`, that the table is not what the manifest says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row

Words = Mapping[str, str]
"""The settings of a stream's table: `format`, `table`, `catalog`, `columns`, `topic`."""


class SealedFile(NamedTuple):
    """The log of a sealed segment."""

    path: Path
    size_bytes: int


class Conversion(NamedTuple):
    """Segments that are to become a file of a table."""

    words: Words
    stream_id: str
    partition: int
    index_topics: bool
    base: int
    end: int
    created_ms: int
    files: Sequence[SealedFile]
    state: bytes
    aborted: Sequence[AbortedSpan]


class TableCommit(NamedTuple):
    """Files of one partition that are to become rows of its table."""

    words: Words
    stream_id: str
    partition: int
    before: int
    """How far the partition goes in the table, as the manifest says; -1: it is not there."""
    rows: Sequence[Row]
    known: Sequence[str]
    """Files that the manifest names."""


class InTable(NamedTuple):
    """What a table says of a partition."""

    rows: Sequence[Row]
    """Rows that the manifest does not name: behind its end, or instead of joined files."""
    end: int
    """How far the partition goes; -1: it is not there."""


class Adoption(NamedTuple):
    """A partition whose rows in the table somebody else may have rewritten."""

    words: Words
    partition: int
    index_topics: bool
    rows: Sequence[Row]
    """What its manifest names of the table."""


class Tables(Protocol):
    """Writes tables, and turns their rows into batches again."""

    def expect_reads(self) -> None:
        """There are rows of tables, which readers may want: be ready. Does not block."""
        ...

    def together(self, stream_id: str) -> AbstractContextManager[None]:
        """Whoever is inside at the same time commits to the stream's table together."""
        ...

    def convert(self, wanted: Conversion) -> Row:
        """Write a file and its frames, prove both, and put them in place. Nothing names them yet.

        Raises Conflict, ColdDamaged, ColdUnavailable.
        """
        ...

    def commit(self, wanted: TableCommit) -> None:
        """Make files part of the table, and move its mark, in one step. Raises Conflict,
        ColdUnavailable (it may be done or not)."""
        ...

    def look(self, words: Words, stream_id: str, partition: int, rows: Sequence[Row]) -> InTable:
        """What the table has that the manifest, with these rows of it, does not know.

        Raises ColdDamaged, ColdUnavailable.
        """
        ...

    def join(
        self, words: Words, stream_id: str, partition: int, rows: Sequence[Row], index_topics: bool
    ) -> Row | None:
        """Make one file of neighbours, and replace them in the table; None: the table changed
        meanwhile. Raises ColdDamaged, ColdUnavailable."""
        ...

    def adopt(self, stream_id: str, parts: Sequence[Adoption]) -> Mapping[int, Sequence[Row]]:
        """Find rows of files that the table no longer has in other files of it, prove them, and
        replace those files; new rows by partition. `parts` are all partitions of the stream.

        Raises Conflict when something cannot be proved: nothing is changed then. Raises
        ColdDamaged, ColdUnavailable (it may be done or not: `look` tells).
        """
        ...

    def keep_up(self, words: Words, stream_id: str, starts: Mapping[int, int], now_ms: int) -> None:
        """Remove what retention took, and forget old snapshots. Raises ColdUnavailable."""
        ...

    def close(self) -> None:
        """End what was started for this."""
        ...
