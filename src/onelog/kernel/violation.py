"""The faults that a Kafka request can have, as a table: both implementations use the same numbers.

Rules: a number never changes its meaning; `_native/kafka_wire.pxd` repeats the numbers for C.
"""

from __future__ import annotations

from onelog.base.errors import InvalidRequest, ProtocolViolation

CUT_SHORT = 1
BAD_SIZE = 2
BAD_ARRAY = 3
TOO_MANY = 4
BAD_TEXT = 5
BAD_NUMBER = 6
BAD_TAG = 7

REASONS = {
    CUT_SHORT: "the request ends inside a field",
    BAD_SIZE: "a length is null where it must not be, negative, or runs past the end",
    BAD_ARRAY: "an array is null, or its count is negative or more than the bytes left can hold",
    TOO_MANY: "more topics and partitions than one request may name",
    BAD_TEXT: "a string is not UTF-8",
    BAD_NUMBER: "a varint is cut short or too long",
    BAD_TAG: "a tag is not above the one before it, or has more than 32 bits",
}

PRODUCE_VERSIONS = range(3, 12)
"""Versions of Produce that the kernel reads and answers."""
FETCH_VERSIONS = range(4, 18)
"""Versions of Fetch that the kernel reads and answers."""


def violation(code: int, position: int) -> ProtocolViolation:
    """Build the error for `code`."""
    return ProtocolViolation(f"Kafka request, byte {position}: {REASONS[code]}")


def bad_frame(length: int, position: int, limit: int) -> ProtocolViolation:
    """The error for a frame of an impossible length: the limits of frames are lost."""
    return ProtocolViolation(
        f"Kafka frame at byte {position}: its length {length} is negative or above the {limit}"
        " bytes that this listener takes"
    )


def unknown_version(name: str, version: int, known: range) -> InvalidRequest:
    """The error for a version that the caller should have refused."""
    return InvalidRequest(f"{name} version {version} is none of {known.start} to {known.stop - 1}")
