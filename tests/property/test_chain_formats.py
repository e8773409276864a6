"""WAL objects and checkpoints come back as they were made, and damaged ones are refused, whatever
they hold."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.errors import ColdDamaged
from onelog.kernel import crc32c
from onelog.objects.checkpoint import ChainCheckpoint, ChainPlace
from onelog.objects.wal import (
    CLEAN_END,
    NOT_INDEXED,
    WalEntry,
    WalHeader,
    decode_wal,
    encode_fence,
    encode_wal,
    fenced_by,
)

NAME = "n/0/w/1"
U64 = st.integers(0, (1 << 63) - 1)
U32 = st.integers(0, (1 << 32) - 1)


@st.composite
def wals(draw):
    """(header, entries, notes, data parts)."""
    header = WalHeader(
        draw(st.sampled_from([0, CLEAN_END])),
        draw(U32),
        draw(U64),
        draw(U64),
        draw(st.binary(min_size=16, max_size=16)),
        draw(U32),
        draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        draw(U64),
    )
    entries, parts, position = [], [], 0
    for number in range(draw(st.integers(0, 4))):
        log, topics = draw(st.binary(max_size=60)), draw(st.none() | st.binary(max_size=24))
        pairs = topics or b""
        base = draw(st.integers(0, 1 << 40))
        entries.append(
            WalEntry(
                f"s-{number}",
                draw(st.integers(0, 9)),
                base,
                base + draw(st.integers(1, 9)),
                position,
                len(log),
                NOT_INDEXED if topics is None else len(topics),
                draw(st.integers(-1, 1 << 40)),
                crc32c(pairs, crc32c(log)),
            )
        )
        parts += [log, pairs]
        position += len(log) + len(pairs)
    notes = msgspec.msgpack.encode(draw(st.lists(st.tuples(st.text(max_size=5), U64), max_size=3)))
    return header, tuple(entries), notes, parts


@given(wals())
def test_a_wal_object_comes_back_as_it_was_made(wal):
    header, entries, notes, parts = wal
    made = encode_wal(header, entries, notes, parts)
    data = b"".join(made.parts)
    found = decode_wal(data, NAME)
    assert (found.header, found.entries, found.notes) == (header, entries, notes)
    assert (found.crc, len(data)) == (made.crc, made.size_bytes)
    assert not found.is_fence
    for number, entry in enumerate(entries):
        assert found.batches(entry) == parts[2 * number]
        topics = found.topics(entry)
        assert (topics is None) == (entry.topic_bytes == NOT_INDEXED)
        assert bytes(topics or b"") == parts[2 * number + 1]


@settings(max_examples=20)
@given(wals())
def test_every_flipped_bit_and_every_cut_of_a_wal_object_is_found(wal):
    data = b"".join(encode_wal(*wal).parts)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ColdDamaged):
            decode_wal(flipped, NAME)
    for size in range(len(data)):
        with pytest.raises(ColdDamaged):
            decode_wal(data[:size], NAME)


@given(U32, U64, U64, st.binary(min_size=16, max_size=16), U64)
def test_a_fence_names_the_epoch_that_goes_on(node, epoch, seq, nonce, new_epoch):
    found = decode_wal(encode_fence(node, epoch, seq, nonce, new_epoch), NAME)
    assert found.is_fence
    assert (found.header.epoch, found.header.seq, found.header.nonce) == (epoch, seq, nonce)
    assert fenced_by(found, NAME) == new_epoch


@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_are_damage_and_nothing_else(data, is_framed):
    for decode, magic in ((decode_wal, b"OLW1"), (ChainCheckpoint.decode, b"OLK1")):
        framed = magic + crc32c(data).to_bytes(4, "little") + data if is_framed else data
        try:
            decode(framed, NAME)
        except ColdDamaged:
            continue
        raise AssertionError("bytes that nobody made were accepted")


@given(
    U64.filter(bool),
    U64,
    st.binary(min_size=16, max_size=16),
    U32,
    st.lists(st.tuples(U64, U64), max_size=4),
    st.binary(max_size=100) | st.just(b"x" * 5000),
)
def test_a_checkpoint_comes_back_as_it_was_made(epoch, seq, nonce, link, fences, state):
    places = tuple(ChainPlace(*row) for row in fences)
    made = ChainCheckpoint(1, epoch, seq, nonce, link, places, state)
    assert ChainCheckpoint.decode(made.encode(), NAME) == made


@settings(max_examples=10)
@given(st.binary(max_size=60) | st.just(b"x" * 3000))
def test_every_flipped_bit_and_every_cut_of_a_checkpoint_is_found(state):
    data = ChainCheckpoint(1, 3, 4, bytes(16), 5, (ChainPlace(1, 2),), state).encode()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ColdDamaged):
            ChainCheckpoint.decode(bytes(flipped), NAME)
    for size in range(len(data)):
        with pytest.raises(ColdDamaged):
            ChainCheckpoint.decode(data[:size], NAME)
