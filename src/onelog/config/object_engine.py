"""The keys of the engine `object` and of metadata in the store.

Rules: no key here costs anything unless a stream has the engine `object`, or `metadata.url` is
`store`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from onelog.config.problems import Problem
from onelog.config.section import Section
from onelog.config.store import SCHEMES
from onelog.config.streams import StreamDefaults

_MIB = 1024 * 1024


class ObjectKeys(Section, frozen=True, kw_only=True):
    """The engine `object`: streams whose primary place is the object store."""

    linger_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=60_000,
            description="A write leaves at most so long after the one before it left: messages of"
            " that time share it. The first message after silence does not wait. Fewer writes cost"
            " less and take longer.",
        ),
    ] = 250
    batch_bytes: Annotated[
        int,
        Meta(ge=4096, le=256 * _MIB, description="A write leaves at once when it has so many."),
    ] = 8 * _MIB
    inflight: Annotated[
        int, Meta(ge=1, le=64, description="Writes that are on their way at once.")
    ] = 4
    buffer_bytes: Annotated[
        int,
        Meta(
            ge=_MIB,
            description="Bytes of messages that are in memory and in no data object yet; while"
            " there are more, the broker takes no messages.",
        ),
    ] = 256 * _MIB
    settle_bytes: Annotated[
        int, Meta(ge=65_536, description="So many of them become data objects.")
    ] = 128 * _MIB
    settle_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000, description="The oldest of them does so after this time."),
    ] = 60_000
    join_bytes: Annotated[
        int,
        Meta(
            ge=65_536,
            le=1024 * _MIB,
            description="Small data objects of a partition are joined up to this size.",
        ),
    ] = 128 * _MIB
    chain_url: Annotated[
        str,
        Meta(
            description="A store of its own, with the same options, for what is written first, such"
            " as a faster and dearer bucket; empty: `store.url`."
        ),
    ] = ""


class MetadataKeys(Section, frozen=True, kw_only=True):
    """Where streams, users, rules and offsets of groups are written down."""

    url: Annotated[
        Literal["", "store"],
        Meta(
            description="Empty: a file in `data_dir`. `store`: the object store, so that a broker"
            " with an empty data directory goes on where another one ended; then"
            " `defaults.stream.engine` has to be `object`."
        ),
    ] = ""


def object_problems(
    keys: ObjectKeys, metadata: MetadataKeys, stream: StreamDefaults, *, has_store: bool
) -> Iterator[Problem]:
    """Errors in these keys that concern several of them."""
    if stream.engine == "object" and stream.durability == "os":
        yield Problem(
            "defaults.stream.durability",
            "defaults.stream.durability = 'os' is not possible with the engine object, which hands"
            " nothing to the operating system: choose fsync or memory",
        )
    if keys.settle_bytes * 2 > keys.buffer_bytes:
        yield Problem(
            "object.buffer_bytes",
            f"object.buffer_bytes = {keys.buffer_bytes} has to be twice object.settle_bytes ="
            f" {keys.settle_bytes} at least: the broker would take no messages while it settles",
        )
    if keys.batch_bytes > keys.settle_bytes:
        yield Problem(
            "object.batch_bytes",
            f"object.batch_bytes = {keys.batch_bytes} is more than object.settle_bytes ="
            f" {keys.settle_bytes}: set it lower",
        )
    scheme, found, _ = keys.chain_url.partition("://")
    if keys.chain_url and not (found and scheme in (*SCHEMES, "memory")):
        yield Problem(
            "object.chain_url",
            f"object.chain_url = {keys.chain_url!r} is no store: write s3://BUCKET/PREFIX or leave"
            " it empty",
        )
    if (keys.chain_url or metadata.url) and not has_store:
        path = "metadata.url" if metadata.url else "object.chain_url"
        yield Problem(path, f"{path} needs an object store: set store.url, too")
    if metadata.url and stream.engine != "object":
        yield Problem(
            "metadata.url",
            "metadata.url = 'store' needs defaults.stream.engine = 'object': streams on a disk of"
            " this machine would be missing where the broker goes on",
        )
