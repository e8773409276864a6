"""What deliveries remember is bounded in bytes, whatever the headers of messages are (I8)."""

from __future__ import annotations

from onelog.protocols.amqp import deliveries


def headers(number: int, size: int) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"a%d" % number, bytes(size)),)


def test_large_headers_are_not_remembered() -> None:
    before = deliveries._remembered.cache_info().currsize
    for number in range(50):
        assert deliveries._plain_properties(headers(number, deliveries.PLAIN_BYTES_MAX)) is None
    assert deliveries._remembered.cache_info().currsize == before
    small = headers(0, 10)
    assert deliveries._plain_properties(small) == deliveries._plain_properties(small) is not None
