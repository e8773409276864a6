"""Kafka's error codes as a client meets them: in words, as our errors, and whether to try again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from onelog.base import names
from onelog.base.errors import (
    CorruptBatch,
    DuplicateSequence,
    InvalidName,
    InvalidRequest,
    InvalidTxnState,
    MessageTooLarge,
    NotAuthenticated,
    NotAuthorized,
    OffsetOutOfRange,
    OnelogError,
    OutOfOrderSequence,
    ProducerFenced,
    StorageError,
    Timeout,
    TopicNotFound,
    Unavailable,
    UnknownProducer,
)

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC: Final = 3
POLICY_VIOLATION: Final = 44
DUPLICATE_SEQUENCE: Final = 46
CONCURRENT_TRANSACTIONS: Final = 51


class NoTransactions(InvalidRequest):
    """Partitions may not be written to in a transaction."""

    def __init__(self, parts: Iterable[tuple[str, int]]) -> None:
        self.parts = sorted(parts)
        texts = ", ".join(f"{topic}-{number}" for topic, number in self.parts)
        super().__init__(f"{texts}: no transaction may write there (error {POLICY_VIOLATION})")


class StorageAway(StorageError):
    """The broker cannot read or write a partition now; the same request may succeed later."""

    retriable = True


class Moved(Unavailable):
    """The node that was asked does not lead the partition, or cannot be reached: another one may
    do it. A batch that it took before it was deposed may stay."""


class Code(NamedTuple):
    """What an error code means."""

    kind: type[OnelogError]
    words: str
    passes: bool = False
    """Whether the same request may succeed a moment later."""


CODES: Final[dict[int, Code]] = {
    -1: Code(OnelogError, "the broker failed; its log says why"),
    1: Code(OffsetOutOfRange, "there is no such offset"),
    2: Code(CorruptBatch, "a damaged batch"),
    3: Code(TopicNotFound, "there is no such topic or partition"),
    5: Code(Moved, "the partition is not ready", passes=True),
    6: Code(Moved, "another broker leads the partition", passes=True),
    7: Code(Timeout, "the broker took too long", passes=True),
    10: Code(MessageTooLarge, "a batch is larger than the topic takes (max.message.bytes)"),
    14: Code(Unavailable, "the coordinator is loading", passes=True),
    15: Code(Unavailable, "the coordinator is not ready", passes=True),
    16: Code(Unavailable, "another broker coordinates", passes=True),
    17: Code(InvalidName, "no topic can have this name (docs/reference/names.md)"),
    19: Code(Unavailable, "the transaction cannot be verified now", passes=True),
    24: Code(InvalidRequest, "no group can have this name"),
    29: Code(NotAuthorized, "not authorized for the topic"),
    30: Code(NotAuthorized, "not authorized for the group"),
    31: Code(NotAuthorized, "not authorized for this"),
    33: Code(InvalidRequest, "the SASL mechanism is not offered"),
    36: Code(InvalidRequest, "the topic exists already"),
    42: Code(InvalidRequest, "the request is not one that the broker takes"),
    44: Code(InvalidRequest, "the broker's rules forbid it"),
    45: Code(OutOfOrderSequence, "batches are missing before this one"),
    46: Code(DuplicateSequence, "the batch was appended before"),
    47: Code(ProducerFenced, "a newer writer took this one's place"),
    48: Code(InvalidTxnState, "the transaction is not in a state that allows it"),
    49: Code(InvalidTxnState, "the transactional id belongs to another producer"),
    50: Code(InvalidRequest, "the transaction timeout is longer than the broker allows"),
    51: Code(Unavailable, "an earlier transaction of this id is being ended", passes=True),
    53: Code(NotAuthorized, "not authorized for the transactional id"),
    55: Code(InvalidRequest, "it was not tried, since another one was refused"),
    56: Code(
        StorageAway,
        "the partition is damaged, the disk is full or the object store is away; the broker's admin"
        " API says which, at /api/v1/streams/NAME/partitions",
        passes=True,
    ),
    58: Code(NotAuthenticated, "the user or the password is wrong"),
    59: Code(UnknownProducer, "the partition knows nothing of this producer"),
    87: Code(CorruptBatch, "the records are not what the topic takes"),
    90: Code(ProducerFenced, "a newer writer took this one's place"),
}


def meaning(code: int) -> Code:
    """What a code means; one that we never ask for is an error of the broker's."""
    return CODES.get(code, Code(OnelogError, "it was refused"))


def topic_right(action: str, name: str) -> str:
    """A right on a topic that Kafka knows by this name, as rules write it."""
    with contextlib.suppress(InvalidName):  # no rule can name it
        name = names.from_dotted(name)
    return f"{action} on topic:{name}"


def refusal(code: int, what: str, said: str | None = None) -> OnelogError:
    """The error of a code: what could not be done, and why."""
    row = meaning(code)
    return row.kind(f"{what}: {said or row.words} (error {code})")
