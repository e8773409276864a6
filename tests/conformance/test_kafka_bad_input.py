"""Bad bytes over a real socket: exact answers, nothing appended, never another connection (I10)."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import cramjam
import pytest
from kio.schema.errors import ErrorCode

from onelog.kernel import HEADER_BYTES, crc32c
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.record.batch import build_batch
from tests.conformance.mqtt_brokers import Onelog
from tests.support.kafka_wire import Wire

REQUEST_BYTES = 1024 * 1024
ROW = (None, b"k", b"v", (), 0)
GOOD = build_batch([ROW, ROW])


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    started = Onelog(
        tmp_path_factory.mktemp("kafka-bad"), f"kafka.limits.request_bytes={REQUEST_BYTES}"
    ).start()
    with Wire(started.ports["kafka"]) as wire:
        wire.ask(ApiKey.METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    yield started
    assert started.stop() == 0
    assert not started.errors()


@pytest.fixture
def witness(server) -> Iterator[Wire]:
    """Another connection, which must not notice, and whose topic stays empty."""
    with Wire(server.ports["kafka"]) as wire:
        yield wire
        answer = wire.ask(
            ApiKey.LIST_OFFSETS,
            1,
            replica_id=-1,
            topics=[{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        )
        assert answer.topics[0].partitions[0].offset == 0


def raw(server: Onelog) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.ports["kafka"]), 10)


def is_closed(peer: socket.socket) -> bool:
    peer.settimeout(10)
    try:
        while data := peer.recv(65536):
            del data
    except ConnectionResetError:
        return True
    return True


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(key: int, version: int, body: bytes, client: bytes = b"\xff\xff") -> bytes:
    return framed(struct.pack(">hhi", key, version, 7) + client + body)


HUGE = struct.pack(">i", 2**31 - 1)

LOST = {
    "a negative length": struct.pack(">i", -1),
    "a length beyond the limit": struct.pack(">i", REQUEST_BYTES + 1),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an empty frame": framed(b""),
    "half a header": framed(b"\x00\x03\x00"),
    "an unknown API": request(999, 0, b""),
    "a negative API": request(-1, 0, b""),
    "an API between brokers": request(4, 0, b"\0" * 20),
    "a version that is too new": request(3, 99, b""),
    "a version that is too old": request(1, 3, b"\0" * 20),
    "a produce of the old format": request(0, 2, b"\0" * 20),
    "a client id longer than the frame": request(3, 1, b"", b"\x7f\xff"),
    "a client id that is not UTF-8": request(3, 1, b"\0\0\0\0", b"\0\2\xff\xfe"),
    "metadata with too many topics": request(3, 1, HUGE),
    "metadata cut short": request(3, 1, struct.pack(">i", 2) + b"\0\1a"),
    "a compact array without end": request(3, 12, b"\xff\xff\xff\xff\x0f"),
    "tags without end": request(3, 12, b"", b"\xff\xff\xff\xff\xff\xff\x0f"),
    "a fetch with too many topics": request(1, 4, b"\xff" * 4 + b"\0" * 13 + HUGE),
    "a produce with too many partitions": request(
        0, 3, b"\xff\xff\0\1\0\0\0\0" + struct.pack(">i", 1) + b"\0\1t" + HUGE
    ),
    "records longer than the frame": request(
        0, 3, b"\xff\xff\0\1\0\0\0\0" + struct.pack(">i", 1) + b"\0\1t"
        + struct.pack(">iii", 1, 0, 1000)
    ),
    "a join without its protocols": request(11, 5, b"\0\1g"),
    "nothing after the header of an offset commit": request(8, 2, b""),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_cannot_be_read_ends_that_connection_only(server, witness, name) -> None:
    with raw(server) as peer:
        peer.sendall(LOST[name])
        assert is_closed(peer)


def test_an_unknown_version_of_api_versions_is_answered_with_what_there_is(server) -> None:
    with raw(server) as peer:
        peer.sendall(request(18, 99, b"\0"))
        with peer.makefile("rb") as answer:
            size, number, code, count = struct.unpack(">iihi", answer.read(14))
        assert (number, code, count) == (7, ErrorCode.unsupported_version, len(APIS))
        assert size == 4 + 2 + 4 + 6 * count


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def with_crc(data: bytes) -> bytes:
    """The batch with a right checksum, whatever it says."""
    return changed(data, 17, struct.pack(">I", crc32c(data[21:])))


def bomb() -> bytes:
    """A batch whose records inflate to half a gigabyte of zeros."""
    squeezed = bytes(cramjam.zstd.compress(bytes(512 * 1024 * 1024), 1))
    batch = GOOD[:HEADER_BYTES] + squeezed
    batch = changed(batch, 8, struct.pack(">i", len(batch) - 12))
    return with_crc(changed(batch, 21, struct.pack(">h", 4)))


BATCHES = {
    "another checksum": (changed(GOOD, 17, b"\0\0\0\0"), ErrorCode.corrupt_message),
    "a flipped bit": (changed(GOOD, len(GOOD) - 1, b"\x01"), ErrorCode.corrupt_message),
    "a length that is wrong": (
        changed(GOOD, 8, struct.pack(">i", len(GOOD) - 13)),
        ErrorCode.corrupt_message,
    ),
    "half a header": (GOOD[:30], ErrorCode.corrupt_message),
    "more records than there are": (
        with_crc(changed(changed(GOOD, 57, struct.pack(">i", 9)), 23, struct.pack(">i", 8))),
        ErrorCode.invalid_record,
    ),
    "offsets with a gap": (
        with_crc(changed(GOOD, 23, struct.pack(">i", 5))),
        ErrorCode.invalid_record,
    ),
    "two batches": (GOOD + GOOD, ErrorCode.invalid_record),
    "an old magic": (changed(GOOD, 16, b"\x01"), ErrorCode.unsupported_for_message_format),
    "a codec that is not known": (
        with_crc(changed(GOOD, 21, struct.pack(">h", 7))),
        ErrorCode.unsupported_compression_type,
    ),
    "a bomb": (bomb(), ErrorCode.message_too_large),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_bad_batch_is_answered_with_its_code_and_the_connection_goes_on(
    server, witness, name
) -> None:
    data, code = BATCHES[name]
    with Wire(server.ports["kafka"]) as wire:
        answer = wire.ask(
            ApiKey.PRODUCE,
            7,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": data}]}],
        )
        found = answer.responses[0].partition_responses[0].error_code
        assert found is code, (found, answer)
        assert wire.ask(ApiKey.METADATA, 1, topics=[]).topics == ()


def test_a_bomb_costs_bounded_memory(server) -> None:
    before = server.rss_bytes()
    with Wire(server.ports["kafka"]) as wire:
        for _ in range(3):
            wire.ask(
                ApiKey.PRODUCE,
                7,
                acks=-1,
                timeout=1000,
                topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": bomb()}]}],
            )
    assert server.rss_bytes() - before < 400 * 1024 * 1024


def test_a_peer_that_sends_little_of_a_large_frame_costs_little(server) -> None:
    before = server.rss_bytes()
    peers = [raw(server) for _ in range(100)]
    for peer in peers:
        peer.sendall(struct.pack(">i", REQUEST_BYTES) + b"\0" * 100)
    with Wire(server.ports["kafka"]) as wire:
        wire.ask(ApiKey.METADATA, 1, topics=[])
    assert server.rss_bytes() - before < 32 * 1024 * 1024
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_after_a_good_header_never_harm_the_server(server, witness, seed) -> None:
    rng = random.Random(seed)
    for api in APIS.values():
        version = rng.randint(max(api.first, api.served), api.last)
        with raw(server) as peer:
            client = b"\0\1c" + (b"\0" if version >= api.flexible else b"")
            body = rng.randbytes(rng.randint(0, 80))
            peer.sendall(request(int(api.key), version, body, client))
            peer.shutdown(socket.SHUT_WR)
            assert is_closed(peer)
