"""What a store has to offer: a few blocking calls, behind which lies a bucket, a folder or memory.

Rules: an access says what the store said and decides nothing. It raises NotFound for a name that
is not there, `NameTaken` when the store says that a name to be created exists, and ColdUnavailable
for everything else. Its calls have deadlines of their own, and any thread may make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class NameTaken(Exception):
    """The store says that the name exists. Nobody believes it before the bytes were read back."""


class StoredObject(NamedTuple):
    """One name in a store."""

    name: str
    size_bytes: int
    modified_ms: int
    """By the clock of the store."""


class Access(Protocol):
    """Names, each with its bytes."""

    def put(
        self, name: str, parts: Sequence[Buffer], size_bytes: int, *, is_new: bool = False
    ) -> int:
        """Write a name whole; with `is_new` only if it is not there. Returns the requests made.

        Raises NameTaken.
        """
        ...

    def get(self, name: str) -> Buffer:
        """All bytes of a name. Nobody changes the buffer."""
        ...

    def get_range(self, name: str, start: int, length: int) -> Buffer:
        """A part of a name; shorter where the object ends. Nobody changes the buffer."""
        ...

    def get_suffix(self, name: str, length: int) -> bytes:
        """The last bytes of a name; all of them if it has fewer."""
        ...

    def list(self, prefix: str, after: str) -> Iterator[StoredObject]:
        """Names that begin with a folder's `prefix`, and lie behind `after`, ascending."""
        ...

    def delete(self, names: Sequence[str]) -> int:
        """Delete names; missing ones are no error. Returns the requests made."""
        ...


def size_of(parts: Sequence[Buffer]) -> int:
    """Bytes of all parts together."""
    return sum(memoryview(part).nbytes for part in parts)
