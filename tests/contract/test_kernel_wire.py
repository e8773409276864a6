"""What both kernels promise about small pieces: CRC, varints, MQTT lengths and strings."""

import mmap

import pytest

from onelog.base.errors import (
    CorruptBatch,
    InvalidRequest,
    LimitExceeded,
    MessageTooLarge,
    ProtocolViolation,
)


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


def slow_crc(data, crc=0):
    """Bit by bit, from the definition."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_crc_gives_the_published_vectors(kernel):
    """RFC 3720 B.4."""
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc32c(bytes(32)) == 0x8A9136AA
    assert kernel.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert kernel.crc32c(bytes(range(32))) == 0x46DD794E
    assert kernel.crc32c(b"") == 0
    assert kernel.topic_hash(b"123456789") == 0xE3069283


def test_the_crc_goes_on_from_where_it_stopped_at_every_length(kernel):
    data = bytes(n * 7 & 255 for n in range(15_000))
    for size in (0, 1, 7, 8, 9, 767, 768, 769, 1536, 12_287, 12_288, 12_289, 15_000):
        whole = kernel.crc32c(data[:size])
        assert whole == slow_crc(data[:size])
        for cut in {0, min(1, size), size // 3, size}:
            assert kernel.crc32c(data[cut:size], kernel.crc32c(data[:cut])) == whole


def test_the_crc_by_tables_equals_the_one_by_instructions():
    crc = pytest.importorskip("onelog.kernel._native.crc", exc_type=ImportError)
    data = bytes(n * 31 & 255 for n in range(13_000))
    for size in (0, 3, 8, 100, 13_000):
        assert crc.crc32c_by_table(data[:size], 99) == crc.crc32c(data[:size], 99)


def test_the_crc_takes_any_contiguous_buffer(kernel):
    with mmap.mmap(-1, 4096) as mapped:
        mapped[:9] = b"123456789"
        view = memoryview(mapped)[:9]
        assert kernel.crc32c(view) == kernel.crc32c(bytearray(b"123456789")) == 0xE3069283
        view.release()


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"),
        ((1 << 63) - 1, "feffffffffffffffff01"), (-(1 << 63), "ffffffffffffffffff01"),
    ],
)  # fmt: skip
def test_zigzag_varints(kernel, number, encoded):
    raw = bytes.fromhex(encoded)
    assert kernel.encode_varint(number) == raw
    assert kernel.decode_varint(b"x" + raw + b"x", 1) == (number, 1 + len(raw))
    for cut in range(len(raw)):
        with pytest.raises(CorruptBatch):
            kernel.decode_varint(raw[:cut], 0)


def test_unsigned_varints_end_at_64_bits(kernel):
    largest = (1 << 64) - 1
    raw = kernel.encode_uvarint(largest)
    assert kernel.decode_uvarint(raw, 0) == (largest, 10)
    for bad in (raw[:-1] + b"\x02", b"\x80" * 10 + b"\x00", b"\xff" * 11, b""):
        with pytest.raises(CorruptBatch):
            kernel.decode_uvarint(bad, 0)
    for number in (-1, 1 << 64):
        with pytest.raises(InvalidRequest):
            kernel.encode_uvarint(number)
    with pytest.raises(InvalidRequest):
        kernel.encode_varint(1 << 63)
    with pytest.raises(InvalidRequest):
        kernel.decode_varint(b"\0", 2)


def test_remaining_lengths_have_one_to_four_bytes(kernel):
    """MQTT5 1.5.5."""
    for number, raw in (
        (0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (16_384, b"\x80\x80\x01"),
        (268_435_455, b"\xff\xff\xff\x7f"),
    ):  # fmt: skip
        assert kernel.encode_remaining_length(number) == raw
        assert kernel.decode_remaining_length(raw + b"\xff", 0) == (number, len(raw))
        for cut in range(len(raw)):
            assert kernel.decode_remaining_length(raw[:cut], 0) is None
    with pytest.raises(ProtocolViolation):
        kernel.decode_remaining_length(b"\xff\xff\xff\xff", 0)
    with pytest.raises(MessageTooLarge):
        kernel.encode_remaining_length(268_435_456)
    with pytest.raises(InvalidRequest):
        kernel.encode_remaining_length(-1)


def test_string_fields_carry_their_length(kernel):
    assert kernel.encode_utf8_field(b"") == b"\0\0"
    assert kernel.encode_utf8_field(memoryview(b"abc")) == b"\0\3abc"
    assert kernel.encode_utf8_field(b"x" * 65_535)[:2] == b"\xff\xff"
    with pytest.raises(LimitExceeded):
        kernel.encode_utf8_field(b"x" * 65_536)


@pytest.mark.parametrize(
    ("raw", "good"),
    [
        (b"", True), (b"plain ascii of some length", True), ("ä€😀".encode(), True),
        (b"a\0b", False), (b"12345678\0", False), (b"\xc0\x80", False), (b"\xed\xa0\x80", False),
        (b"\xf4\x90\x80\x80", False), (b"\xe2\x82", False), (b"\x80", False), (b"\xff", False),
        (b"\xf0\x8f\xbf\xbf", False), (b"\xe0\x9f\xbf", False), ("\ud7ff\ue000".encode(), True),
        ("\U0010ffff".encode(), True),
    ],
)  # fmt: skip
def test_strings_are_utf8_without_null_and_surrogates(kernel, raw, good):
    """MQTT5 1.5.4-1, 1.5.4-2."""
    assert kernel.check_utf8(raw) is good
    assert kernel.check_topic(raw) is (good and raw != b"")
    assert kernel.check_utf8(memoryview(b"(" + raw + b")")) is good


def test_a_topic_that_is_published_to_has_no_wildcard(kernel):
    assert kernel.check_topic(b"a/b")
    for raw in (b"", b"a/+", b"#", b"a#b"):
        assert not kernel.check_topic(raw)
