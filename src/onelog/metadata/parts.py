"""How much one transaction takes, and how longer lists are cut (etcd's defaults).

Rule: whoever builds operations from a list that can grow uses `MetadataStore.write`, or cuts it
here; a plain transaction is for operations whose number the code can count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from onelog.metadata.store import Op, Put

TXN_OPS_MAX: Final = 128
"""Compares, or operations of one branch, of one transaction."""

TXN_BYTES_MAX: Final = 1_500_000
"""Bytes of keys and values of one transaction."""

T = TypeVar("T", bound=Op)


def in_parts(ops: Sequence[T]) -> Iterator[list[T]]:
    """Cut operations into runs, in their order, each of which one transaction takes."""
    part: list[T] = []
    size = 0
    for op in ops:
        more = size_of(op)
        if part and (len(part) == TXN_OPS_MAX or size + more > TXN_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(op)
        size += more
    if part:
        yield part


def size_of(op: Op) -> int:
    """What an operation counts towards the bytes of its transaction."""
    return len(op.key) + len(op.value) if isinstance(op, Put) else 0
