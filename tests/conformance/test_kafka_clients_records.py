"""What one client sends, compressed in every way, every other client reads as it was."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from tests.conformance.kafka_brokers import KINDS, Clients, KafkaServer, unique
from tests.conformance.kafka_clients import Record

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLOCKS_MS = 120_000
STAMP_MS = 1_700_000_000_123
# Text that compresses, longer than one block of snappy's framing.
LONG = b" ".join(b"%d bottles of beer on the wall" % number for number in range(3000))

RECORDS: dict[str, Record] = {
    "plain": Record(b"value", b"key"),
    "no key": Record(b"value"),
    "empty key": Record(b"value", b""),
    "no value": Record(None, b"key"),
    "empty value": Record(b"", b"key"),
    "nothing": Record(None, None),
    "binary": Record(bytes(range(256)), bytes(reversed(range(256)))),
    "long": Record(LONG, b"long"),
    "header": Record(b"value", b"key", (("name", b"text"), ("ümlaut", b"\x00\xff"))),
    "same header twice": Record(b"value", b"key", (("a", b"1"), ("a", b"2"))),
    "headers in order": Record(b"value", b"key", (("b", b"1"), ("a", b"2"), ("b", b"3"))),
    "empty header": Record(b"value", b"key", (("a", b""),)),
    "null header": Record(b"value", b"key", (("a", None), ("b", b"1"))),
    "time": Record(b"value", b"key", (), STAMP_MS),
    "older time": Record(b"value", b"key", (), STAMP_MS - 60_000),
}
"""By name; the names say what a client cannot do."""


class Sent(NamedTuple):
    """What a client sent with one codec."""

    topic: str
    names: list[str]


# What the clients themselves cannot do; the same against Apache Kafka.
CANNOT_SEND: dict[str, frozenset[str]] = {
    "aiokafka": frozenset({"nothing"}),
    "kafka-python": frozenset({"nothing", "null header"}),
    "kafkajs": frozenset({"headers in order", "null header"}),  # headers are an object
    "platformatic": frozenset({"time", "older time"}),  # is off where other records have no time
    "kcat": frozenset({"nothing", "binary", "header", "null header", "time", "older time"}),
}
CANNOT_SHOW: dict[str, frozenset[str]] = {
    "kafkajs": frozenset({"headers in order"}),
    "kcat": frozenset({"header"}),  # its value is binary
}
CANNOT_UNPACK: dict[tuple[str, str], frozenset[str]] = {
    # Raw snappy only, not the framing that these write.
    ("platformatic", "snappy"): frozenset({"aiokafka", "kafka-python", "java-3", "java-4"}),
}
_sent: dict[tuple[str, str], dict[str, Sent]] = {}


def sent_by(server: KafkaServer, clients: Clients, kind: str) -> dict[str, Sent]:
    """What a client sends, once for all readers."""
    key = server.name, kind
    if key not in _sent:
        client = clients.get(server, kind)
        names = [name for name in RECORDS if name not in CANNOT_SEND.get(kind, ())]
        done: dict[str, Sent] = {}
        for codec in CODECS:
            if codec not in client.codecs:
                continue
            topic = unique(f"{kind}-{codec}-")
            # Some records are years old: by age they would leave while others still read.
            clients.get(server, "confluent").create(topic, 1, {"retention.ms": "-1"})
            offsets = client.produce(topic, [RECORDS[name] for name in names], codec)
            assert offsets in ([], list(range(len(names))))  # kcat tells none
            done[codec] = Sent(topic, names)
        _sent[key] = done
    return _sent[key]


@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("writer", KINDS)
def test_what_a_client_sends_the_others_read(kafka_server, kafka_clients, writer, reader):
    client = kafka_clients.get(kafka_server, reader)
    began_ms = int(time.time() * 1000) - CLOCKS_MS
    wanted = {
        codec: sent
        for codec, sent in sent_by(kafka_server, kafka_clients, writer).items()
        if codec in client.codecs and writer not in CANNOT_UNPACK.get((reader, codec), ())
    }
    assert len(wanted) >= len(CODECS) - 2
    counts = {topic: len(names) for topic, names in wanted.values()}
    found = client.read(counts, committed=False)
    for codec, (topic, names) in wanted.items():
        assert [row.offset for row in found[topic]] == list(range(len(names)))
        for name, row in zip(names, found[topic], strict=True):
            if name in CANNOT_SHOW.get(reader, ()):
                continue
            assert row.content() == RECORDS[name].content(), (codec, name)
            assert row.timestamp_ms is not None
            if RECORDS[name].timestamp_ms is not None:
                assert row.timestamp_ms == RECORDS[name].timestamp_ms, (codec, name)
            else:
                assert began_ms < row.timestamp_ms < time.time() * 1000 + CLOCKS_MS
