"""Reads of a Kafka connection, cut into frames: what is copied, and how often."""

from __future__ import annotations

from collections import deque

import pytest

from onelog.base.errors import ProtocolViolation
from onelog.net.frames import SMALL_BYTES, Frame, FrameCutter

MAX = 10_000_000


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def bodies(frames: deque[Frame]) -> list[bytes]:
    return [bytes(buffer[start:end]) for buffer, start, end in frames]


def cut(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


@pytest.mark.parametrize("step", [1, 3, 5, 1000, SMALL_BYTES, 70_000, 1_000_000])
def test_frames_come_out_as_they_went_in_however_they_are_read(step: int) -> None:
    asked = [b"", b"a", bytes(range(256)) * 3, b"x" * 100_000, b"y", b"z" * 300_000, b"end"]
    if step < 1000:
        asked = [body[:500] for body in asked]
    cutter, frames = FrameCutter(), deque[Frame]()
    size = sum(cutter.take(read, MAX, frames) for read in cut(b"".join(map(framed, asked)), step))
    assert bodies(frames) == asked
    assert size == sum(map(len, asked))


def test_a_frame_in_one_read_is_not_copied() -> None:
    cutter, frames = FrameCutter(), deque[Frame]()
    read = framed(b"one") + framed(b"two")
    cutter.take(read, MAX, frames)
    assert [buffer is read for buffer, _start, _end in frames] == [True, True]


def test_a_frame_of_several_reads_has_a_buffer_of_its_own_that_may_be_changed() -> None:
    cutter, frames = FrameCutter(), deque[Frame]()
    data = framed(b"x" * 100_000) + framed(b"next")
    for read in cut(data, 60_000):
        cutter.take(read, MAX, frames)
    buffer, start, end = frames[0]
    assert isinstance(buffer, bytearray)
    assert (start, end) == (4, len(buffer))
    assert bodies(frames)[1] == b"next"


def test_a_peer_that_sends_byte_by_byte_costs_no_object_for_each_byte() -> None:
    cutter, frames = FrameCutter(), deque[Frame]()
    cutter.take(framed(b"x" * 50_000)[:30_000], MAX, frames)
    for _ in range(10_000):
        cutter.take(b"x", MAX, frames)
    assert len(cutter._parts) == 2


def test_good_frames_before_a_bad_one_are_served_first() -> None:
    bad = (MAX + 1).to_bytes(4, "big") + b"rest"
    for data, step in ((framed(b"good") + bad, 100), (framed(b"g" * 40_000) + bad, 30_000)):
        cutter, frames = FrameCutter(), deque[Frame]()
        for read in cut(data, step):
            cutter.take(read, MAX, frames)
        assert len(frames) == 1
        with pytest.raises(ProtocolViolation):
            cutter.check(MAX)
        cutter.check(2 * MAX)  # a login may have raised the bound


def test_a_bad_frame_alone_is_refused_at_once() -> None:
    with pytest.raises(ProtocolViolation):
        FrameCutter().take((MAX + 1).to_bytes(4, "big"), MAX, deque())
