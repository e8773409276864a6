"""The one error tree. Each protocol maps every class of it to its own code.

Rules: a message says what happened, to what, and what to do. `retriable` says whether the
same call may succeed later without a change by the caller.
"""

from __future__ import annotations

from typing import Literal, TypeVar

E = TypeVar("E", bound=BaseException)
StoreTrouble = Literal["away", "throttled", "refused", "bucket", "clock"]
"""Why an object store cannot be used: no answer, too many requests, credentials or rights, no such
bucket, clocks that differ."""


def again(error: E) -> E:
    """An error that is kept and raised more than once, ready to be raised.

    Without the frames and the causes of the last time: they would add up, with all that they hold,
    for as long as the error is kept.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class OnelogError(Exception):
    """Root of every error that OneLog raises on purpose."""

    retriable = False


class InvalidRequest(OnelogError):
    """The request can never succeed as it is (a bad argument)."""


class InvalidName(InvalidRequest):
    """A topic, filter, stream or protocol name breaks the naming rules."""


class ConfigError(InvalidRequest):
    """The configuration cannot be used; the message names the key and the nearest known one."""


class NotFound(OnelogError):
    """The named object does not exist."""


class StreamNotFound(NotFound):
    """No stream has this name."""


class TopicNotFound(NotFound):
    """No record of this topic is known."""


class CursorNotFound(NotFound):
    """No cursor has this name."""


class AlreadyExists(OnelogError):
    """The object that was to be created exists already."""


class Conflict(OnelogError):
    """The state changed under the caller: a compare failed, another owner holds it."""

    retriable = True


class NotAuthenticated(OnelogError):
    """The peer did not prove who it is."""


class NotAuthorized(OnelogError):
    """The principal may not do this."""


class QuotaExceeded(OnelogError):
    """A rate or size quota refuses this for now."""

    retriable = True


class LimitExceeded(OnelogError):
    """A configured limit refuses this; the message names the limit."""


class MessageTooLarge(LimitExceeded):
    """One message or batch is larger than the stream or the listener takes."""


class CorruptBatch(OnelogError):
    """Bytes that should be record batches are not: bad magic, length, CRC, counts or offsets."""


class UnsupportedMagic(CorruptBatch):
    """The batch has an older format: its magic byte is not 2."""


class InvalidRecords(CorruptBatch):
    """A batch came over whole, but its records, counts or offsets are not as they must be."""


class UnsupportedCodec(InvalidRequest):
    """The batch names a compression codec that is not known."""


class OffsetOutOfRange(OnelogError):
    """The offset lies before the log's start or after its end."""


class OutOfOrderSequence(OnelogError):
    """An idempotent producer skipped sequence numbers."""


class DuplicateSequence(OnelogError):
    """An idempotent batch is older than the ones remembered; it was appended before."""


class ProducerFenced(OnelogError):
    """A newer epoch of this producer exists."""


class UnknownProducer(OnelogError):
    """What is known of a producer does not say whether a batch of it is new: its producer must
    begin a new epoch."""


class InvalidTxnState(OnelogError):
    """A transaction operation does not fit the transaction's state."""


class StorageError(OnelogError):
    """The storage engine could not do what was asked."""


class StorageFull(StorageError):
    """No room on the disk; nothing was appended. Try again when there is room."""

    retriable = True


class PartitionStopped(StorageError):
    """The partition refuses work until the broker is restarted or the data repaired."""


class PartitionCorrupt(PartitionStopped):
    """Damage before the recovery point: the data on disk is not what was acknowledged."""


class ColdUnavailable(StorageError):
    """The object store cannot be used now: it is away, throttles or refuses this broker. Nothing is
    lost; whether a write was done is not known until it is tried again."""

    retriable = True

    def __init__(self, text: str, reason: StoreTrouble = "away") -> None:
        super().__init__(text)
        self.reason: StoreTrouble = reason


class ColdDamaged(StorageError):
    """An object of the log is gone or does not hold the bytes that were written; reads of its
    offsets fail until somebody restores it, and all other offsets are read as before."""

    retriable = True


class NotLeader(OnelogError):
    """This node does not own the partition."""

    retriable = True


class NotOwner(NotLeader):
    """Another node owns the name: its group, session, cursor or transactional id."""

    def __init__(self, text: str, node: int = -1) -> None:
        super().__init__(text)
        self.node = node
        """The owner; -1: it is not known, or an election is under way."""


class Fenced(OnelogError):
    """An older owner or epoch tried to act."""


class StoreFenced(PartitionStopped, Fenced):
    """Another broker took over what this one wrote in the object store; this one writes no more."""


class Unavailable(OnelogError):
    """The metadata store or the owner cannot be reached; nothing was changed."""

    retriable = True


class StateUnknown(Unavailable):
    """The state in an internal stream cannot be read; requests that need it fail until the
    repair."""


class StateLoading(Unavailable):
    """This node owns the name since a moment ago, and still reads what is kept of it."""


class Closed(OnelogError):
    """The object was closed; nothing was done."""


class Timeout(OnelogError):
    """The deadline passed; whether the work was done is not known."""

    retriable = True


class OutcomeUnknown(Timeout):
    """The metadata store may have made a change or not; nobody could find out yet."""


class ProtocolViolation(OnelogError):
    """A peer sent bytes that its protocol forbids."""


class DataDirLocked(OnelogError):
    """Another process holds the data directory."""


def without_frames(error: OnelogError) -> OnelogError:
    """An error for keeping or passing on, without the frames that it came through.

    Frames hold their local variables, such as an unwritten batch, and through their callers the
    object that keeps the error: a cycle, which stays in memory until the collector runs. Errors can
    be each other's cause: an error that is kept and raised again while another is handled.
    """
    part: BaseException | None = error
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        part.__traceback__ = None
        part = part.__cause__ or part.__context__
    return error
