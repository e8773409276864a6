"""What is known of one transactional id, and where it may go from there: two tables.

    Empty ──► Ongoing ──► PrepareCommit ──► CompleteCommit ─┐
      ▲          │ ▲                                        ├──► Ongoing (the next), Empty, Dead
      │          └─┼────► PrepareAbort ───► CompleteAbort ──┘
      └────────────┘ (a new epoch)

`Facts` is one row of the coordinator's log. The log has its rows in order, so a row may build on
one that is not durable yet; the answer to a client waits until its own row is durable. A
transaction is decided by its Prepare row: after it, whatever happens, the same markers are written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from onelog.protocols.kafka.errors import ErrorCode
from onelog.record.batch import Marker

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1

EPOCH_MAX: Final = 2**15 - 1
"""The greatest epoch that a batch has room for. It only fences; no producer gets it."""


class State(StrEnum):
    """Kafka's names, as its tools show them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


_S = State

NEXT: Final[dict[State, frozenset[State]]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.DEAD}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.DEAD}),
    _S.DEAD: frozenset(),
}
"""Every step that a transactional id may take."""

ENDINGS: Final[dict[tuple[State, bool], State | ErrorCode]] = {
    (_S.EMPTY, True): ErrorCode.invalid_txn_state,
    (_S.EMPTY, False): ErrorCode.invalid_txn_state,
    (_S.ONGOING, True): _S.PREPARE_COMMIT,
    (_S.ONGOING, False): _S.PREPARE_ABORT,
    (_S.PREPARE_COMMIT, True): ErrorCode.concurrent_transactions,
    (_S.PREPARE_COMMIT, False): ErrorCode.invalid_txn_state,
    (_S.PREPARE_ABORT, True): ErrorCode.invalid_txn_state,
    (_S.PREPARE_ABORT, False): ErrorCode.concurrent_transactions,
    (_S.COMPLETE_COMMIT, True): ErrorCode.none,  # asked again, the answer was lost
    (_S.COMPLETE_COMMIT, False): ErrorCode.invalid_txn_state,
    (_S.COMPLETE_ABORT, True): ErrorCode.invalid_txn_state,
    (_S.COMPLETE_ABORT, False): ErrorCode.none,
    (_S.DEAD, True): ErrorCode.invalid_producer_id_mapping,
    (_S.DEAD, False): ErrorCode.invalid_producer_id_mapping,
}
"""The result of a producer's commit (True) or abort (False): the next state, or the answer."""

OUTCOMES: Final[dict[State, tuple[Marker, State]]] = {
    _S.PREPARE_COMMIT: (Marker.COMMIT, _S.COMPLETE_COMMIT),
    _S.PREPARE_ABORT: (Marker.ABORT, _S.COMPLETE_ABORT),
}
"""The states whose markers are still to be written: the marker, and the state after it."""

IDLE: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is under way: the id may begin one, get a new epoch, or be forgotten."""


class Producer(NamedTuple):
    """A producer id and its epoch: every new epoch of an id fences the one before."""

    id: int
    epoch: int


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """Everything that is kept of one transactional id."""

    producer_id: int
    epoch: int
    state: State
    timeout_ms: int
    updated_ms: int
    started_ms: int = -1
    partitions: frozenset[tuple[str, int]] = frozenset()
    """Topic and partition number of everything that the transaction may write to."""
    groups: frozenset[str] = frozenset()
    """Groups whose offsets the transaction may commit."""
    replaced: tuple[int, int] | None = None
    """The producer id and epoch that the producer itself gave up for the current ones: it names
    them again when it missed the answer."""

    @property
    def producer(self) -> Producer:
        """The producer that may act now."""
        return Producer(self.producer_id, self.epoch)


def encode(facts: Facts) -> bytes:
    """A row's value."""
    return msgspec.msgpack.encode(facts)


def decode(value: bytes) -> Facts:
    """The facts of a row. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(value, type=Facts)
