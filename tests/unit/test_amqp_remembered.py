"""What deliveries remember is bounded in bytes, whatever the headers of messages are (I8)."""

from __future__ import annotations

from onelog.protocols.amqp import deliveries
from onelog.record import headers as names


def headers(number: int, size: int) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"a%d" % number, bytes(size)),)


def test_large_headers_are_not_remembered() -> None:
    before = len(deliveries._remembered.known)
    for number in range(50):
        assert deliveries._plain_properties(headers(number, deliveries.PLAIN_BYTES_MAX)) is None
    assert len(deliveries._remembered.known) == before
    small = headers(0, 10)
    assert deliveries._plain_properties(small) == deliveries._plain_properties(small) is not None


def test_what_is_remembered_is_bounded_in_bytes_as_a_whole() -> None:
    bound = deliveries.PROPERTIES_BYTES_MAX
    for size in (0, 10, 900):
        for number in range(bound // 1_000 + 100):
            assert deliveries._plain_properties(headers(number, size)) is not None
            assert deliveries._remembered.held_bytes <= bound
    kept = deliveries._remembered.known
    size = sum(
        len(value or b"") + sum(len(b"".join(row)) for row in key) for key, value in kept.items()
    )
    assert 0 < size <= bound


def test_properties_that_differ_from_message_to_message_are_not_remembered() -> None:
    varying = ((names.MESSAGE_ID, b"1"),)
    for _ in range(2):
        assert deliveries._plain_properties(varying) is None
    assert varying not in deliveries._remembered.known
