"""How batches that do not lie in the store as they are come to this machine.

Rules: the broker's process knows no table format. For a row of kind `parquet` a courier calls a
`Bringing`, which the assembly hands in; it asks the lake process and blocks until the file is
there. What it wrote is believed only after the CRC of every batch was checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from onelog.base.ids import Offset
from onelog.objects.rows import Row


class Brought(NamedTuple):
    """What a file that was just written holds."""

    first: Offset
    """The first offset that it answers for, at most the one that was asked for."""
    end: Offset
    """The first offset that it does not answer for: where the next run begins."""
    size_bytes: int
    """Bytes of the file: whole record batches, offsets ascending, each overlapping [first, end)."""


class Bringing(Protocol):
    """Rebuilds record batches of one row and writes them into a file."""

    def __call__(self, row: Row, offset: Offset, size_bytes: int, path: Path) -> Brought:
        """Write whole batches into the file `path`, which is empty or does not exist: from the one
        that holds `offset` (or the next one) on, or from one before it, about `size_bytes` of them.

        Raises NotFound when an object is gone, ColdDamaged when it does not hold what was written
        (with the object and the offsets in the text), ColdUnavailable when it may work later, and
        OSError when the file cannot be written. Called by couriers, several at a time.
        """
        ...
