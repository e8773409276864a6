"""Do frames of inner links come out as they went in, however the stream is cut or changed?"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onelog.base.errors import ProtocolViolation
from onelog.base.ids import PartitionId
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, ForwardOutcome
from onelog.cluster.frames import (
    AckFeed,
    CloseFeed,
    CloseReason,
    Diverge,
    FeedBatches,
    MarkFeed,
    OpenFeed,
)
from onelog.cluster.link import codec
from onelog.cluster.link.calls import (
    decode_call,
    decode_failure,
    encode_call,
    encode_failure,
)
from onelog.cluster.link.codec import decode_frame, encode_frames
from onelog.cluster.link.layout import (
    FRAME_BYTES_MAX,
    HEAD,
    INNER_HEAD_BYTES,
    LinkKind,
    LinkViolation,
    frame,
    read_head,
)
from onelog.net.frames import FrameCutter
from onelog.storage.engine import PartitionKey
from tests.fuzz.mutation import mutate_bytes
from tests.support.links import GREETING, accepting, frames_in, greeted

FEEDS = st.integers(0, 2**32 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 2**31 - 1)
MAYBE_EPOCHS = st.integers(-1, 2**31 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9~_-][A-Za-z0-9~._-]{0,254}", fullmatch=True)
KEYS = st.builds(PartitionKey, NAMES, st.integers(0, 9_999).map(PartitionId))


@st.composite
def acks(draw):
    written = draw(OFFSETS)
    return AckFeed(draw(FEEDS), draw(EPOCHS), written, draw(st.integers(0, written)))


FRAMES = st.one_of(
    st.builds(OpenFeed, FEEDS, KEYS, EPOCHS, OFFSETS, OFFSETS, MAYBE_EPOCHS, st.booleans()),
    st.builds(Diverge, FEEDS, EPOCHS, MAYBE_EPOCHS, OFFSETS),
    st.builds(CloseFeed, FEEDS, EPOCHS, st.sampled_from(CloseReason), OFFSETS, st.booleans()),
    st.builds(
        FeedBatches, FEEDS, EPOCHS, OFFSETS, OFFSETS, OFFSETS, OFFSETS, st.binary(min_size=1)
    ),
    st.builds(MarkFeed, FEEDS, EPOCHS, OFFSETS, OFFSETS, OFFSETS),
    acks(),
    st.builds(ForwardBatch, FEEDS, st.integers(0, 2**64 - 1), KEYS, EPOCHS, st.binary(min_size=1)),
    st.builds(Forwarded, FEEDS, st.sampled_from(ForwardOutcome), EPOCHS, OFFSETS),
)


def joined(frames) -> bytes:
    return b"".join(map(bytes, encode_frames(frames)))


def decoded(reads) -> list:
    """What a link makes of reads of a socket."""
    cutter, found, whole = FrameCutter(), [], deque()
    for data in reads:
        cutter.take(data, FRAME_BYTES_MAX, whole)
        while whole:
            buffer, start, end = whole.popleft()
            kind, flags, channel = read_head(buffer, start, end)
            found += decode_frame(kind, flags, channel, buffer, start + INNER_HEAD_BYTES, end)
    return found


@given(st.lists(FRAMES, max_size=20), st.data())
def test_frames_come_out_as_they_went_in_wherever_the_stream_is_cut(frames, data):
    stream = joined(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    edges = [0, *cuts, len(stream)]
    reads = [stream[a:b] for a, b in pairwise(edges) if a < b]
    assert decoded(reads) == frames
    assert decoded([stream[at : at + 1] for at in range(len(stream))]) == frames


@given(st.lists(FRAMES, min_size=1, max_size=20))
def test_neighbours_of_one_kind_are_one_frame_and_nothing_overtakes(frames):
    kinds = [kind for kind, _, _, _ in frames_in(joined(frames))]
    alone = [frames_in(joined([one]))[0][0] for one in frames]
    rows = {
        LinkKind.ACK, LinkKind.MARK, LinkKind.BATCHES, LinkKind.FORWARD, LinkKind.FORWARDED,
    }  # fmt: skip
    merged = [
        kind
        for at, kind in enumerate(alone)
        if at == 0 or kind not in rows or alone[at - 1] != kind
    ]
    assert kinds == merged


def test_stored_bytes_are_not_copied():
    stored = memoryview(bytearray(b"x" * 5000))
    pieces = encode_frames([FeedBatches(1, 2, 3, 4, 5, 6, stored)])
    assert any(piece is stored for piece in pieces)
    stream = b"".join(map(bytes, pieces))
    [one] = decoded([stream])
    assert one.data.obj is stream


def test_batches_share_a_frame_up_to_its_size_and_a_larger_one_is_alone():
    small, large = b"s" * 100_000, b"l" * (codec.BATCHES_BYTES + 1)
    rows = [FeedBatches(n, 0, 0, 0, 0, 0, data) for n, data in enumerate([small] * 4 + [large] * 2)]
    sizes = [len(body) for kind, _, _, body in frames_in(joined(rows)) if kind == LinkKind.BATCHES]
    assert len(sizes) == 4
    assert decoded([joined(rows)]) == rows


@given(st.lists(FRAMES, min_size=1, max_size=8), st.integers(0, 2**32))
@settings(max_examples=300)
def test_a_changed_stream_gives_valid_frames_or_ends(frames, seed):
    chance = random.Random(seed)
    stream = bytearray(joined(frames))
    for _ in range(chance.randint(1, 3)):
        mutate_bytes(chance, stream)
    try:
        found = decoded([bytes(stream)])
    except ProtocolViolation:
        return
    assert decoded([joined(found)]) == found  # each is one that could have been sent


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=200))
def test_any_body_of_any_kind_is_a_frame_or_a_violation(kind, flags, channel, body):
    try:
        found = decode_frame(kind, flags, channel, body, 0, len(body))
    except LinkViolation:
        return
    assert joined(found) == frame(kind, body, channel, flags)


@pytest.mark.parametrize(
    ("kind", "flags", "channel", "body"),
    [
        (LinkKind.ACK, 0, 0, b""),
        (LinkKind.ACK, 0, 0, bytes(23)),
        (LinkKind.ACK, 0, 1, bytes(24)),
        (LinkKind.ACK, 1, 0, bytes(24)),
        (LinkKind.ACK, 0, 0, bytes(8) + bytes(8) + bytes(7) + b"\1"),  # durable beyond written
        (LinkKind.ACK, 0, 0, bytes(24) * 10_001),
        (LinkKind.MARK, 0, 0, bytes(4) + b"\xff" * 4 + bytes(24)),
        (LinkKind.BATCHES, 0, 0, b""),
        (LinkKind.BATCHES, 0, 0, bytes(44)),  # a row without bytes
        (LinkKind.BATCHES, 0, 0, bytes(40) + b"\0\0\0\2" + b"x"),  # says more than it has
        (LinkKind.BATCHES, 0, 0, bytes(40) + b"\xff\xff\xff\xff" + b"x"),
        (LinkKind.FORWARD, 0, 0, b""),
        (LinkKind.FORWARD, 0, 1, bytes(20) + b"\1" + b"\0\0\0\1" + b"sx"),
        (LinkKind.FORWARD, 1, 0, bytes(20) + b"\1" + b"\0\0\0\1" + b"sx"),
        (LinkKind.FORWARD, 0, 0, bytes(20) + b"\1" + b"\0\0\0\0" + b"s"),  # no batch
        (LinkKind.FORWARD, 0, 0, bytes(20) + b"\1" + b"\0\0\0\2" + b"sx"),
        (LinkKind.FORWARD, 0, 0, bytes(20) + b"\0" + b"\0\0\0\1" + b"x"),  # no name
        (LinkKind.FORWARD, 0, 0, bytes(20) + b"\3" + b"\0\0\0\1" + b"../x"),
        (LinkKind.FORWARD, 0, 0, bytes(20) + b"\xff" + b"\0\0\0\1" + b"sx"),
        (LinkKind.FORWARD, 0, 0, bytes(16) + b"\xff" * 4 + b"\1" + b"\0\0\0\1" + b"sx"),
        (LinkKind.FORWARDED, 0, 0, bytes(16)),
        (LinkKind.FORWARDED, 0, 1, bytes(17)),
        (LinkKind.FORWARDED, 0, 0, bytes(4) + b"\x7f" + bytes(12)),
        (LinkKind.FORWARDED, 0, 0, bytes(9) + b"\xff" * 8),
        (LinkKind.OPEN, 0, 7, bytes(28)),
        (LinkKind.OPEN, 2, 7, bytes(28) + b"s"),
        (LinkKind.OPEN, 0, 7, bytes(28) + b"../up"),
        (LinkKind.OPEN, 0, 7, bytes(28) + b"s" * 256),
        (LinkKind.OPEN, 0, 7, b"\xff" * 4 + bytes(24) + b"s"),
        (LinkKind.CLOSE, 99, 7, bytes(12)),
        (LinkKind.DIVERGE, 0, 7, bytes(17)),
        (0, 0, 0, b""),
        (77, 0, 0, b""),
    ],
)
def test_a_body_that_lies_is_a_violation(kind, flags, channel, body):
    with pytest.raises(LinkViolation):
        decode_frame(kind, flags, channel, body, 0, len(body))


@given(st.text(min_size=1, max_size=20), st.binary(max_size=50), st.floats(0.001, 600))
def test_a_call_comes_out_as_it_went_in(method, argument, timeout_s):
    data = encode_call(method, argument, timeout_s, 9)
    call = decode_call(data[HEAD.size :])
    assert call.method == method
    assert call.timeout_ms == max(1, int(timeout_s * 1000))


@given(st.binary(max_size=100))
@example(b"\x93\xa1x\x01\xc1")
def test_bytes_that_are_no_call_or_failure_are_violations(body):
    for decode in (decode_call, decode_failure):
        try:
            decode(body)
        except LinkViolation:
            continue


def test_an_error_of_a_later_release_is_an_error_all_the_same():
    data = encode_failure(LinkViolation("why"), 3)
    assert type(decode_failure(data[HEAD.size :])).__name__ == "ProtocolViolation"


# -- the connection: whatever comes, it goes on or ends; nothing is raised


def feed(reads: list[bytes], *, is_greeted: bool = True) -> None:
    async def run() -> None:
        connection, wire, owner = greeted() if is_greeted else accepting()
        for data in reads:
            if wire.is_closing():
                break
            connection.data_received(data)
            await asyncio.sleep(0)
        frames_in(wire.written)
        assert not owner.troubles.rows(), "bad bytes met a fault of ours"
        connection.end("test")
        await connection.closed
        assert owner.losses == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.booleans())
@settings(max_examples=50)
def test_any_bytes_leave_a_link_open_or_end_it(reads, is_greeted):
    feed(reads, is_greeted=is_greeted)


@given(st.integers(0, 2**32), st.lists(FRAMES, max_size=5))
@settings(max_examples=100)
def test_a_changed_conversation_leaves_a_link_open_or_ends_it(seed, frames):
    chance = random.Random(seed)
    calls = encode_call("no-such", [1], 1.0, 4) + frame(LinkKind.CANCEL, b"", 4)
    tail = frame(LinkKind.PING, bytes(8)) + frame(LinkKind.CREDIT, (1 << 20).to_bytes(8, "big"))
    stream = bytearray(GREETING + joined(frames) + calls + tail)
    mutate_bytes(chance, stream)
    size = chance.choice((1, 5, 50, 100_000))
    feed([bytes(stream[at : at + size]) for at in range(0, len(stream), size)], is_greeted=False)
