"""Partitions seen through their handles only, as if they lay on another node.

Rules: code of the broker above the log gets what `PartitionHandle` has and nothing else; asking for
more is an AssertionError. Tests, and the log itself, still see all of a partition.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from onelog.log.handle import PartitionHandle
from onelog.log.partition import Partition
from onelog.log.stream import Stream

MEMBERS = frozenset(name for name in vars(PartitionHandle) if not name.startswith("_"))


class Narrow:
    """A handle that is not the partition itself."""

    def __init__(self, inner: Partition) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        is_above = caller.startswith("onelog.") and not caller.startswith("onelog.log.")
        assert name in MEMBERS or not is_above, f"{caller} asks a handle for {name}"
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        assert name == "_inner", f"nobody sets {name} of a handle"
        super().__setattr__(name, value)


class Handles(Sequence[Narrow]):
    """The handles of a stream, as many as it has partitions."""

    def __init__(self, local: list[Partition]) -> None:
        self._local = local
        self._made: dict[int, Narrow] = {}

    def __len__(self) -> int:
        return len(self._local)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        return self._made.setdefault(number, Narrow(self._local[number]))


@contextmanager
def narrow_handles() -> Iterator[None]:
    """Streams that are opened meanwhile hand out such handles."""
    honest = Stream.__init__

    def opened(stream: Stream, record: Any, partitions: list[Partition]) -> None:
        honest(stream, record, partitions)
        stream.partitions = Handles(stream.local)

    with patch.object(Stream, "__init__", opened):
        yield
