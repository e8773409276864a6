"""The limits of one transaction, and how longer lists are cut (etcd's defaults).

Rule: code that builds operations from a list that can grow uses `MetadataStore.write`, or cuts the
list here; a plain transaction is for a fixed number of operations.
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
    """Cut operations into parts, in their order, each of which fits one transaction."""
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
    """The bytes of an operation in its transaction."""
    return len(op.key) + len(op.value) if isinstance(op, Put) else 0
