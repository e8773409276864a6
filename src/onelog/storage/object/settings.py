"""How the object engine writes, settles and joins."""

from __future__ import annotations

from typing import Final

import msgspec

_MIB: Final = 1024 * 1024


class ObjectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All keys of the engine."""

    chain: str = "0"
    """The name of the node's chain."""
    node: int = 0
    linger_ms: int = 250
    batch_bytes: int = 8 * _MIB
    inflight: int = 4
    buffer_bytes: int = 256 * _MIB
    """Bytes of batches that are in no data object yet; an append beyond it raises StorageFull."""
    settle_bytes: int = 128 * _MIB
    """So many of them become data objects."""
    settle_ms: int = 60_000
    """The oldest of them becomes part of a data object after this time."""
    own_object_bytes: int = 8 * _MIB
    """A partition with so many bytes to settle gets an object of its own."""
    join_rows: int = 8
    """So many small neighbours become one."""
    join_small_bytes: int = 32 * _MIB
    """A row below this size is small."""
    join_bytes: int = 128 * _MIB
    """Bytes of a joined row at most."""
    checkpoint_objects: int = 1000
    checkpoint_ms: int = 600_000
    grace_ms: int = 15 * 60_000
    """How long an object that no row names any more stays for its readers."""
    wait_ms: int = 10_000
    """How long a change of the log's ends, a rewrite or a deletion waits for the store."""
    close_ms: int = 30_000
    """How long closing waits for the store."""
