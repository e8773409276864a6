"""The keys of streams: the settings of new ones, and of the built-in stream `main`.

Rules: these keys say what a stream gets when it is made; later, the stream itself is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from onelog.base.limits import BATCH_BYTES_MAX, PARTITIONS_PER_STREAM_MAX
from onelog.config.problems import Problem
from onelog.config.section import Section

_MIB = 1024 * 1024
_DAY_MS = 24 * 3600 * 1000

Engine = Literal["segment", "memory", "kv", "object"]
TierWord = Literal["", "log", "iceberg", "delta"]
Durability = Literal["memory", "os", "fsync"]


class StreamDefaults(Section, frozen=True, kw_only=True):
    """Settings of a new stream, unless its creator chooses others."""

    engine: Annotated[
        Engine,
        Meta(
            description="Storage engine; `kv` needs the extra `onelog[rocksdb]`, `object` needs"
            " `store.url`."
        ),
    ] = "segment"
    durability: Annotated[
        Durability,
        Meta(
            description="When a publish is answered: in memory, handed to the operating system "
            "(survives kill -9), or on disk (survives power loss)."
        ),
    ] = "fsync"
    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_PER_STREAM_MAX, description="Number of partitions.")
    ] = 1
    retention_age_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description='Retention removes records older than this; -1 or "unlimited": never.',
        ),
    ] = 7 * _DAY_MS
    retention_bytes: Annotated[
        int,
        Meta(ge=-1, description='Bytes that a stream keeps; -1 or "unlimited": no bound.'),
    ] = -1
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=128,
            le=BATCH_BYTES_MAX,
            description="Bytes of the largest message that the stream accepts.",
        ),
    ] = 16 * _MIB
    segment_bytes: Annotated[
        int, Meta(ge=4096, le=1024 * _MIB, description="Size at which a segment is sealed.")
    ] = 256 * _MIB
    segment_age_ms: Annotated[
        int, Meta(ge=1000, description="Age at which a segment is sealed.")
    ] = 7 * _DAY_MS
    tier: Annotated[
        TierWord,
        Meta(
            description="How history goes to the object store: as batches (`log`), as rows of a"
            " table that SQL reads, too (`iceberg`, `delta`), or not at all. Streams that cannot"
            " have a tier (compacted ones, other engines) get none."
        ),
    ] = ""
    local_age_ms: Annotated[
        int,
        Meta(
            ge=-2,
            description="With a tier: copied records older than this leave the disk here;"
            ' -1 or "unlimited": not by age, -2 or "retention": as `retention_age_ms`.',
        ),
    ] = -2
    local_bytes: Annotated[
        int,
        Meta(
            ge=-2,
            description="With a tier: bytes of copied records that a stream keeps here;"
            ' -1 or "unlimited": no bound, -2 or "retention": as `retention_bytes`.',
        ),
    ] = -2


class Defaults(Section, frozen=True, kw_only=True):
    """Default settings of objects that are created later."""

    stream: StreamDefaults = StreamDefaults()


class MainStream(Section, frozen=True, kw_only=True):
    """The built-in stream `main`, home of every topic that no other stream captures.

    These keys count only when the data directory is created. Later, change the stream itself
    (`onelog stream alter main`).
    """

    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_PER_STREAM_MAX, description="Number of partitions.")
    ] = 8
    retention_age_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description='Retention removes records older than this; -1 or "unlimited": never.',
        ),
    ] = 7 * _DAY_MS
    retention_bytes: Annotated[
        int, Meta(ge=-1, description='Bytes that the stream keeps; -1 or "unlimited": no bound.')
    ] = 10 * 1000**3


def stream_problems(chosen: StreamDefaults, *, has_store: bool) -> Iterator[Problem]:
    """Errors in the defaults of streams that concern several keys."""
    path = "defaults.stream.tier"
    if chosen.tier and not has_store:
        yield Problem(path, f"{path} = {chosen.tier!r} needs an object store: set store.url, too")
    if chosen.tier and chosen.engine in ("memory", "kv"):
        yield Problem(
            path,
            f"{path} = {chosen.tier!r} needs defaults.stream.engine segment or object, not"
            f" {chosen.engine}",
        )
    if chosen.tier == "log" and chosen.engine == "object":
        yield Problem(
            path,
            f"{path} = 'log' is not for the engine object, which keeps everything in the store:"
            " leave it away, or choose iceberg or delta",
        )
    if chosen.engine == "object" and not has_store:
        path = "defaults.stream.engine"
        yield Problem(path, f"{path} = 'object' needs an object store: set store.url, too")
