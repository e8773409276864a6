"""A session as `~sessions` keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from onelog.base.errors import StateUnknown
from onelog.broker.kept import KeptRow

STREAM: Final = "~sessions"
NEVER_MS: Final = -1
_CHUNK_BYTES: Final = 1024 * 1024
"""Rows of the metadata store that become one batch, plus at most one more."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A persistent session as it is kept."""

    client_id: str
    protocol: str
    owner: str = ""
    """The user that it belongs to; empty: an older version wrote it, and the next user to attach
    has it."""
    expiry_ms: int
    """How long it outlives its connection; 0: not at all, NEVER_MS: for ever."""
    detached_at_ms: int | None = None
    cursors: tuple[str, ...] = ()
    """Cursors that end with it."""
    body: bytes = b""
    """State that only the protocol understands."""


def decode_row(key: bytes, value: bytes) -> SessionRecord:
    """A row of the stream. Raises StateUnknown."""
    try:
        return msgspec.json.decode(value, type=SessionRecord)
    except msgspec.MsgspecError as error:
        raise StateUnknown(
            f"the stream {STREAM} holds a row that cannot be read ({key!r}: {error})."
            " Restore the stream from a backup, then restart"
        ) from None


def chunks_of(rows: dict[bytes, bytes]) -> Iterator[list[KeptRow]]:
    """Rows in pieces that are one batch each."""
    chunk: list[KeptRow] = []
    size = 0
    for key, value in rows.items():
        chunk.append((key, value))
        size += len(key) + len(value)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
