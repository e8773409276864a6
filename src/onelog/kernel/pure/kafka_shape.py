"""The shape of a Kafka request, interpreted: whether its lengths and counts fit before it is read.

Rules: a shape is a little program of bytes: `F n` takes n bytes, `S` a string, `B` bytes, `T` the
tagged fields, `A m h l …` an array of elements of at least m bytes that the next h*256+l bytes of
the program describe, `L m h l …` one that is never null, `N h l …` a structure of which one byte
says whether it is there (not below 0). Strings, bytes and arrays of `A` may be null. A request that
passed is safe for a decoder that trusts its counts and, once its tags are cut out, for one that
knows no tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.kernel.pure.kafka_wire import Reader

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer


def check_shape(
    buf: Buffer, start: int, end: int, shape: bytes, flexible: bool
) -> tuple[int, list[tuple[int, int]]]:
    """Where the fields of `shape` end in `buf[start:end]`, and where there are tagged fields.

    Each of those is (start, end), including its count. Raises ProtocolViolation.
    """
    reader = Reader(buf, start, end, flexible)
    tagged: list[tuple[int, int]] = []
    _walk(reader, shape, 0, len(shape), tagged)
    return reader.at, tagged


def _walk(reader: Reader, shape: bytes, at: int, stop: int, tagged: list[tuple[int, int]]) -> None:
    while at < stop:
        step = shape[at : at + 1]
        at += 1
        if step == b"F":
            reader.skip(shape[at])
            at += 1
        elif step == b"S":
            reader.nullable_span()
        elif step == b"B":
            reader.records()
        elif step == b"T":
            before = reader.at
            reader.skip_tags()
            if reader.at > before + 1:
                tagged.append((before, reader.at))
        elif step == b"N":
            size = shape[at] << 8 | shape[at + 1]
            if reader.i8() >= 0:
                _walk(reader, shape, at + 2, at + 2 + size, tagged)
            at += 2 + size
        else:
            size = shape[at + 1] << 8 | shape[at + 2]
            count = reader.nullable_count if step == b"A" else reader.count
            for _ in count(shape[at]):
                _walk(reader, shape, at + 3, at + 3 + size, tagged)
            at += 3 + size
