"""CRC-32C without the compiled kernel, by a library that is fast enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcrc import crc32

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of `data`, going on from `value`."""
    view = data if isinstance(data, bytes) else memoryview(data).cast("B")
    return int(crc32.iscsi(view, value))


def topic_hash(topic: Buffer) -> int:
    """The u32 under which the topic index and the router know a topic."""
    return crc32c(topic)
