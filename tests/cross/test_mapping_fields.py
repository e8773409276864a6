"""Every field of `record/fields.py`, written by each protocol and read by each: cell by cell.

A protocol that has a word for the field writes and shows it; one that has none leaves it out, and
shows nothing of it. Expectations follow from the table; the samples and exceptions are here.
"""

from __future__ import annotations

from typing import Any

import pika
import pytest

from onelog.record.fields import FIELDS
from tests.cross.clients import NAMES, Said, has, now_ms

HOUR_MS = 3_600_000
SAMPLES: dict[str, Any] = {
    "qos": 1,
    "retain": True,
    "content_type": "text/plain; charset=utf-8",
    "content_encoding": "gzip",
    "reply_to": "answers/here",
    "correlation": "order 17, größer".encode(),
    "expires_ms": HOUR_MS,
    "payload_format": 1,
    "message_id": "m-1",
    "type": "order.made",
    "user_id": "guest",
    "app_id": "shop",
    "cluster_id": "c-1",
    "priority": 7,
    "timestamp": 1_700_000_000,
}
PAIRS = [(writer, reader) for writer in NAMES for reader in NAMES]
TOLERANCE_MS = 3_000


def test_every_field_of_the_table_has_a_sample():
    assert set(SAMPLES) == {row.name for row in FIELDS}


def expected(name: str, writer: str, reader: str, value: Any) -> dict[str, Any]:
    """What a reader sees of a field beside what every message says."""
    if not has(writer, name) or not has(reader, name):
        return {}
    if name == "retain" and reader == "mqtt3":
        return {}  # version 3 marks only what comes to a late subscriber
    return {name: value}


@pytest.mark.parametrize(("writer", "reader"), PAIRS, ids=[f"{w}-to-{r}" for w, r in PAIRS])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_field_crosses(clients, name, writer, reader):
    value = SAMPLES[name]
    if name == "expires_ms":
        value += now_ms()
    fields = {name: value} if has(writer, name) else {}
    wanted = expected(name, writer, reader, value)
    got = clients.carry(writer, reader, Said(b"a message", fields=fields, key=b"k")).fields
    if writer in ("mqtt3", "mqtt5") and has(reader, "qos"):
        wanted = {"qos": 1} | wanted  # what the test's clients send is acknowledged
    if (writer, reader) == ("kafka", "amqp"):
        assert abs(got["timestamp"] - now_ms() / 1000) < 60 or name == "timestamp"
        wanted = {"timestamp": got["timestamp"]} | wanted
    if "expires_ms" in wanted:
        assert abs(got.pop("expires_ms") - wanted.pop("expires_ms")) <= TOLERANCE_MS
    assert got == wanted


@pytest.mark.parametrize(
    ("written", "shown"), [(1, {"mqtt": 1, "amqp": 1}), (2, {"mqtt": 2, "amqp": 1})]
)
@pytest.mark.parametrize("writer", ["mqtt3", "mqtt5", "kafka"])
def test_what_is_above_qos_0_is_persistent_in_amqp(clients, writer, written, shown):
    said = Said(b"a message", fields={"qos": written}, key=b"k")
    assert clients.carry(writer, "mqtt5", said).fields["qos"] == shown["mqtt"]
    assert clients.carry(writer, "amqp", said).fields["qos"] == shown["amqp"]


@pytest.mark.parametrize("reader", NAMES)
def test_qos_0_says_nothing_in_other_protocols(clients, reader):
    got = clients.carry("mqtt5", reader, Said(b"a message", fields={"qos": 0}))
    assert "qos" not in got.fields


@pytest.mark.parametrize("reader", ["mqtt5", "kafka", "amqp"])
def test_a_transient_message_of_amqp_is_one_of_qos_0(clients, reader):
    amqp = clients["amqp"]
    properties = pika.BasicProperties(delivery_mode=1)
    amqp.channel.basic_publish("amq.topic", "cross.t", b"x", properties)
    amqp.write(Said(b"mark of transient"))
    got = None
    while (found := clients[reader].read()).payload != b"mark of transient":
        got = found
    assert got is not None
    assert got.fields.get("qos", 0) == 0


@pytest.mark.parametrize("writer", ["mqtt5", "kafka"])
@pytest.mark.parametrize(
    ("correlation", "shown"),
    [
        (b"\xff\x00\x80", b"base64:/wCA"),
        (b"x" * 255, b"x" * 255),
        (b"x" * 256, None),
        (b"\xff" * 180, b"base64:" + b"/" * 240),
        (b"\xff" * 200, None),
        (b"", b""),
    ],
    ids=["binary", "longest", "too-long", "long-binary", "too-long-binary", "empty"],
)
def test_a_correlation_that_is_no_short_text_is_base64_in_amqp(clients, writer, correlation, shown):
    said = Said(b"a message", fields={"correlation": correlation}, key=b"k")
    assert clients.carry(writer, "amqp", said).fields.get("correlation") == shown
    assert clients.carry(writer, "mqtt5", said).fields["correlation"] == correlation
    if shown is not None:  # and what a worker sends back is what was sent
        answer = Said(b"answer", fields={"correlation": shown})
        assert clients.carry("amqp", "mqtt5", answer).fields["correlation"] == correlation
        assert clients.carry("amqp", "amqp", answer).fields["correlation"] == shown


@pytest.mark.parametrize("text", [b"base64:QUJD", b"base64:not base64", b"base64:"])
def test_an_own_correlation_that_looks_like_base64_stays_what_it_is(clients, text):
    said = Said(b"a message", fields={"correlation": text})
    assert clients.carry("amqp", "amqp", said).fields["correlation"] == text
    assert clients.carry("amqp", "mqtt5", said).fields["correlation"] == text


@pytest.mark.parametrize("name", ["content_type", "reply_to", "message_id"])
def test_what_amqp_has_no_room_for_is_left_out_and_not_cut(clients, name):
    said = Said(b"a message", fields={name: "ä" * 200}, key=b"k")
    assert name not in clients.carry("kafka", "amqp", said).fields
    assert clients.carry("kafka", "kafka", said).fields[name] == "ä" * 200


@pytest.mark.parametrize("name", ["priority", "timestamp", "expires_ms", "qos", "payload_format"])
def test_a_number_that_kafka_wrote_and_nobody_can_read_counts_as_absent(clients, name):
    said = Said(b"a message", fields={name: "9" * 40}, key=b"k")
    got = clients.carry("kafka", "amqp", said).fields
    got.pop("timestamp")
    assert got == {}
    assert clients.carry("kafka", "mqtt5", said).fields == {}


def test_a_table_that_kafka_wrote_and_nobody_can_read_counts_as_absent(clients):
    said = Said(b"a message", headers=[("~ah", b"\x03abc\xff\xff"), ("x", b"1")], key=b"k")
    assert clients.carry("kafka", "amqp", said).headers == (("x", "1"),)
