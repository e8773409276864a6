"""Jobs of the lake process: what a broker asks, and what it is told.

Rules: both sides import this module, so it imports no Arrow. A job is whole in itself: the process
remembers nothing that the next one could not find out again. Errors go by the name of their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from onelog.base import errors
from onelog.base.errors import OnelogError, Unavailable
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row


class LakeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the process knows from its start on."""

    url: str
    """Of the store."""
    options: Mapping[str, str] = {}
    deadline_ms: int = 30_000
    folder: str
    """Where files lie while they are made."""
    threads: int = 8
    faults: str = ""
    """Fault points that a test armed."""


class TablePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Which table a stream's history is."""

    format: str
    """iceberg or delta."""
    table: str
    """Iceberg: namespace.name; Delta: the folder or its URI."""
    catalog: str = ""
    catalog_name: str = "onelog"
    warehouse: str = ""
    options: Mapping[str, str] = {}
    """More words of the catalog."""
    columns: str = ""
    """Typed columns."""


class Job(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something to do."""


class ConvertJob(Job, frozen=True, kw_only=True):
    """Turn sealed segments into a Parquet file and frames, prove both, and put them in place."""

    place: TablePlace
    stream_id: str
    partition: int
    topic: str | None
    """The topic of every record; None: each has its own."""
    index_topics: bool
    base: int
    end: int
    created_ms: int
    files: tuple[tuple[str, int], ...]
    """Path of each segment's log, and its bytes."""
    state: bytes
    aborted: tuple[AbortedSpan, ...]


class AddedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that a commit adds: it moves the mark of its partition."""

    partition: int
    base: int
    end: int
    path: str


class CommitJob(Job, frozen=True, kw_only=True):
    """Add files to a table and move the marks of their partitions, in one step."""

    place: TablePlace
    stream_id: str
    added: tuple[AddedFile, ...]
    ends: Mapping[int, int]
    """How far each of these partitions goes in the table, as its manifest says; -1: not there."""
    known: tuple[str, ...]
    """The files that the manifests name: all of them must be in the table."""


class RecoverJob(Job, frozen=True, kw_only=True):
    """Find rows that the table has and the manifest does not name."""

    place: TablePlace
    stream_id: str
    partition: int
    end: int
    """Where the manifest's rows end."""
    known: tuple[AddedFile, ...] = ()
    """The files that the manifest names."""


class BringJob(Job, frozen=True, kw_only=True):
    """Rebuild batches and write them into a file."""

    row: Row
    offset: int
    size_bytes: int
    path: str


class JoinJob(Job, frozen=True, kw_only=True):
    """Make one file of neighbouring files of a partition, and replace them in the table."""

    place: TablePlace
    stream_id: str
    partition: int
    topic: str | None
    index_topics: bool
    rows: tuple[Row, ...]


class AdoptPart(msgspec.Struct, frozen=True, array_like=True):
    """A partition whose rows somebody else may have rewritten."""

    partition: int
    index_topics: bool
    rows: tuple[Row, ...]
    """What its manifest names of the table."""


class AdoptJob(Job, frozen=True, kw_only=True):
    """Find the rows of files that the table no longer has in other files of it, prove them, and
    put files of our own in the place of those, in one commit."""

    place: TablePlace
    stream_id: str
    topic: str | None
    parts: tuple[AdoptPart, ...]
    """Every partition of the stream: a foreign file may hold rows of several."""
    table_age_ms: int
    """As in `UpkeepJob`: whether rows that the log let go stay."""


class UpkeepJob(Job, frozen=True, kw_only=True):
    """Remove files that retention took, expire snapshots, sweep files that nothing names."""

    place: TablePlace
    stream_id: str
    starts: Mapping[int, int]
    """The first offset that each partition's log still has."""
    table_age_ms: int
    """Rows stay so long although the log let them go; -2: no longer than the log, -1: for ever."""
    snapshot_age_ms: int
    """-1: no snapshot is forgotten."""
    now_ms: int


class PingJob(Job, frozen=True, kw_only=True):
    """LakeAnswer."""


AnyJob = ConvertJob | CommitJob | RecoverJob | BringJob | JoinJob | AdoptJob | UpkeepJob | PingJob


class BroughtRun(msgspec.Struct, frozen=True, array_like=True):
    """What a written file holds."""

    first: int
    end: int
    size_bytes: int


class UpkeepDone(msgspec.Struct, frozen=True, array_like=True):
    """What an upkeep did."""

    removed_files: int
    """Files that the table no longer has."""
    deleted_files: int
    """Files that no longer exist."""


class LakeAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The end of a job."""

    number: int
    error: str
    """The class of an error; empty: it was done."""
    text: str
    rows: tuple[Row, ...] = ()
    numbers: tuple[int, ...] = ()


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A job on its way."""

    number: int
    job: AnyJob


HEAD_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
ask_decoder: Final = msgspec.msgpack.Decoder(Ask)
answer_decoder: Final = msgspec.msgpack.Decoder(LakeAnswer)
settings_decoder: Final = msgspec.msgpack.Decoder(LakeSettings)


def error_of(answer: LakeAnswer) -> OnelogError:
    """The error that a job ended with."""
    kind = getattr(errors, answer.error, None)
    if isinstance(kind, type) and issubclass(kind, OnelogError):
        return kind(answer.text)
    return Unavailable(f"the lake process failed: {answer.error}: {answer.text}")
