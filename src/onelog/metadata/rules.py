"""Limits of every metadata store: keys, operations and sizes.

Rule: each store refuses before it begins what etcd refuses, with the same defaults, so that a call
that works on one store works on all.
"""

from __future__ import annotations

from collections.abc import Sequence

from onelog.base.errors import InvalidRequest, LimitExceeded, NotFound
from onelog.metadata.parts import TXN_BYTES_MAX, TXN_OPS_MAX, size_of
from onelog.metadata.store import Compare, Delete, Op, Put

KEY_BYTES_MAX = 4096
"""UTF-8 bytes of a key."""


def check_text(text: str) -> None:
    """Refuse a prefix that is not UTF-8 text of a sane length."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"a metadata key is UTF-8 text: {text!r} is not") from error
    if size > KEY_BYTES_MAX:
        raise LimitExceeded(f"a metadata key has at most {KEY_BYTES_MAX} bytes, this one {size}")


def check_key(key: str) -> None:
    """Refuse a key that is empty, too long or not UTF-8 text."""
    if not key:
        raise InvalidRequest("a metadata key has at least one character")
    check_text(key)


def check_lease(lease: int) -> None:
    """Refuse a number that cannot be a lease (0: none)."""
    if not 0 <= lease < 1 << 63:
        raise NotFound(f"lease {lease} does not exist; grant one first")


def check_txn(compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]) -> None:
    """Refuse a transaction that etcd would refuse for its shape."""
    if max(len(compares), len(then), len(otherwise)) > TXN_OPS_MAX:
        raise LimitExceeded(
            f"a metadata transaction has at most {TXN_OPS_MAX} compares or operations"
        )
    for compare in compares:
        check_key(compare.key)
        if isinstance(compare.operand, bytes) != (compare.target == "value"):
            raise InvalidRequest(f"cannot compare {compare.target} with {compare.operand!r}")
    _check_size(_check_ops(then) + _check_ops(otherwise))


def check_write(ops: Sequence[Op]) -> None:
    """Refuse operations that could not be done in parts either."""
    _check_ops(ops)
    for op in ops:
        _check_size(size_of(op))


def _check_size(size: int) -> None:
    if size > TXN_BYTES_MAX:
        raise LimitExceeded(
            f"a metadata transaction has at most {TXN_BYTES_MAX} bytes, this one {size}"
        )


def _check_ops(ops: Sequence[Op]) -> int:
    size = 0
    written: set[str] = set()
    for op in ops:
        if isinstance(op, Put):
            check_key(op.key)
            check_lease(op.lease)
            if op.key in written:
                raise InvalidRequest(f"one transaction writes {op.key!r} twice")
            written.add(op.key)
            size += size_of(op)
        elif op.prefix:
            check_text(op.key)
        else:
            check_key(op.key)
    for op in ops:
        # etcd refuses it too: within one revision a key has one change.
        if isinstance(op, Delete) and _covers(op, written):
            raise InvalidRequest(f"one transaction writes and deletes a key under {op.key!r}")
    return size


def _covers(op: Delete, keys: set[str]) -> bool:
    return any(key.startswith(op.key) for key in keys) if op.prefix else op.key in keys
