"""The rows of `~groups`: a generation per group, and one row per committed or pending offset.

Keys are msgpack arrays that begin with the kind. The last row of a key counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from onelog.base.errors import StateUnknown
from onelog.protocols.kafka.groups.kept import KeptGroup
from onelog.record.batch import NO_COORDINATOR

STREAM: Final = "~groups"

GROUP: Final = 0
COMMITTED: Final = 1
PENDING: Final = 2


class GroupOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The committed offset of a group in a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    order: int
    """Commits are numbered: one of a transaction does not undo a later one outside of it."""
    expires_ms: int = -1
    """When it expires, as older clients may choose; -1: by the retention."""
    coordinator_epoch: int = NO_COORDINATOR
    """Of a pending offset: the epoch of the coordinator that let it into its transaction."""


class GroupRow(msgspec.Struct, frozen=True):
    """A recovered generation."""

    group: str
    kept: KeptGroup


class OffsetRow(msgspec.Struct, frozen=True):
    """A recovered offset; with a producer id, it belongs to an open transaction."""

    group: str
    topic: str
    partition: int
    committed: GroupOffset
    producer_id: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(list[str | int]).decode
_decode_group = msgspec.msgpack.Decoder(KeptGroup).decode
_decode_committed = msgspec.msgpack.Decoder(GroupOffset).decode


def group_key(group: str) -> bytes:
    """The key of a generation."""
    return _encode((GROUP, group))


def committed_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset."""
    return _encode((COMMITTED, group, topic, partition))


def pending_key(group: str, producer_id: int, topic: str, partition: int) -> bytes:
    """The key of an offset that waits for its transaction."""
    return _encode((PENDING, group, producer_id, topic, partition))


def encode_group(kept: KeptGroup) -> bytes:
    """The value of a generation."""
    return _encode(kept)


def encode_committed(committed: GroupOffset) -> bytes:
    """The value of an offset."""
    return _encode(committed)


def name_of(key: bytes) -> bytes:
    """The group that a row belongs to."""
    return str(_decode_key(key)[1]).encode()


def read_rows(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[GroupRow | OffsetRow]:
    """The recovered rows. Raises StateUnknown."""
    for key, value in rows:
        try:
            yield _read(key, value)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateUnknown(
                f"the stream {STREAM} holds a row that cannot be read ({key!r}: {error})."
                " Restore the stream from a backup, then restart"
            ) from None


def _read(key: bytes, value: bytes) -> GroupRow | OffsetRow:
    match _decode_key(key):
        case [0, str(group)]:
            return GroupRow(group, _decode_group(value))
        case [1, str(group), str(topic), int(partition)]:
            return OffsetRow(group, topic, partition, _decode_committed(value))
        case [2, str(group), int(producer_id), str(topic), int(partition)]:
            return OffsetRow(group, topic, partition, _decode_committed(value), producer_id)
    raise ValueError("the key is of no known kind")
