"""What nodes say of publishes to partitions that another node leads: plain values, which the link
turns into bytes.

Rules:
- A node forwards whole batches, as it sealed them. The leader sets their offsets and its epoch.
- Each batch has a number of its own, which no later try has again: a late answer is known by it.
- An *attempt* is a row of batches for one partition, sent one behind the other. After the leader
  has refused one of them, it refuses all that follow in the same attempt, so that none overtakes an
  earlier one that is sent again. A later attempt has a higher number.
- Every outcome but `DONE` and `UNKNOWN` says that this try appended nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from onelog.base.errors import (
    CorruptBatch,
    DuplicateSequence,
    InvalidTxnState,
    MessageTooLarge,
    NotLeader,
    OnelogError,
    OutOfOrderSequence,
    ProducerFenced,
    StorageFull,
    Timeout,
    Unavailable,
)
from onelog.cluster.frames import FeedFrame
from onelog.storage.engine import Buffer, PartitionKey


class ForwardOutcome(IntEnum):
    """What became of a forwarded batch. A number never gets another meaning."""

    DONE = 0
    """It is below the high watermark: `base` is the offset of its first record."""
    NOT_LEADER = 1
    """The node does not lead the partition in this epoch: `leader_epoch` is the one it knows."""
    AFTER_REFUSED = 2
    """An earlier batch of the attempt was refused."""
    TOO_FEW = 3
    """Too few replicas are in sync, or the partition takes nothing for another reason that
    passes."""
    FULL = 4
    """The disk is full."""
    TOO_LARGE = 5
    INVALID = 6
    """The bytes are no batch that a node forwards."""
    OUT_OF_ORDER = 7
    DUPLICATE = 8
    """It was appended before, and is visible; its offset is forgotten."""
    FENCED = 9
    IN_TRANSACTION = 10
    UNKNOWN = 11
    """It was appended, and may stay or not."""


OUTCOMES: Final = {int(outcome): outcome for outcome in ForwardOutcome}

ERRORS: Final[dict[ForwardOutcome, type[OnelogError]]] = {
    ForwardOutcome.NOT_LEADER: NotLeader,
    ForwardOutcome.AFTER_REFUSED: NotLeader,
    ForwardOutcome.TOO_FEW: Unavailable,
    ForwardOutcome.FULL: StorageFull,
    ForwardOutcome.TOO_LARGE: MessageTooLarge,
    ForwardOutcome.INVALID: CorruptBatch,
    ForwardOutcome.OUT_OF_ORDER: OutOfOrderSequence,
    ForwardOutcome.DUPLICATE: DuplicateSequence,
    ForwardOutcome.FENCED: ProducerFenced,
    ForwardOutcome.IN_TRANSACTION: InvalidTxnState,
    ForwardOutcome.UNKNOWN: Timeout,
}
"""The error for the publisher."""


class ForwardBatch(msgspec.Struct, frozen=True, gc=False):
    """Append this batch to a partition that you lead."""

    number: int
    attempt: int
    partition: PartitionKey
    leader_epoch: int
    """The epoch in which the receiver leads, as far as the sender knows."""
    data: Buffer


class Forwarded(msgspec.Struct, frozen=True, gc=False):
    """The answer to a forwarded batch, when it is visible or refused."""

    number: int
    outcome: ForwardOutcome
    leader_epoch: int
    base: int = 0


ForwardFrame = ForwardBatch | Forwarded
LinkFrame = FeedFrame | ForwardFrame
"""Everything that a link carries beside its own matters and calls."""
