"""A PUBLISH into a record and back (I6), also for records that other protocols wrote."""

from __future__ import annotations

import pytest

from onelog.base.ids import Offset, TimestampMs
from onelog.protocols.mqtt.codec import decode_packet, encode_packet
from onelog.protocols.mqtt.mapping import (
    expiry_ms,
    from_record,
    is_retained,
    remaining_expiry_s,
    stored_qos,
    to_message,
)
from onelog.protocols.mqtt.packet_types import Side
from onelog.protocols.mqtt.packets import Publish, Will
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from onelog.record.record import Message, Record

NOW = 1_700_000_000_000


def record_of(message: Message) -> Record:
    return Record(
        "main",
        0,
        Offset(0),
        message.topic,
        TimestampMs(message.timestamp_ms),
        message.topic.encode(),
        message.value,
        message.headers,
    )


def record(*headers: tuple[bytes, bytes | None], value: bytes | None = b"v") -> Record:
    return record_of(Message("t", value, headers=headers, timestamp_ms=NOW))


def test_a_plain_publish_has_no_headers():
    message = to_message(Publish(topic="a/b", payload=b"x"), topic="a/b", now_ms=NOW)
    assert message == Message("a/b", b"x", timestamp_ms=NOW)


def test_the_topic_is_the_one_that_the_alias_stands_for():
    publish = Publish(topic="", payload=b"x", properties=Properties(topic_alias=3))
    message = to_message(publish, topic="real/topic", now_ms=NOW)
    assert (message.topic, message.key, message.headers) == ("real/topic", None, ())


FULL = Publish(
    topic="a",
    payload=b"\0\xff",
    qos=2,
    retain=True,
    packet_id=7,
    properties=Properties(
        payload_format=1,
        message_expiry_s=60,
        content_type="text/plain",
        response_topic="reply/to",
        correlation_data=b"\0\xfe",
        user_properties=(("k", "1"), ("~x", "ä"), ("k", "1"), ("", "")),
    ),
)


def test_every_property_has_its_header_in_a_fixed_order_and_then_come_the_users():
    message = to_message(FULL, topic="a", now_ms=NOW)
    assert message.headers == (
        (b"~q", b"2"),
        (b"~r", b"1"),
        (b"~ct", b"text/plain"),
        (b"~rt", b"reply/to"),
        (b"~ci", b"\0\xfe"),
        (b"~ex", b"1700000060000"),
        (b"~pf", b"1"),
        (b"k", b"1"),
        (b"~~x", "ä".encode()),
        (b"k", b"1"),
        (b"", b""),
    )


def test_a_publish_comes_back_as_it_was():
    message = to_message(FULL, topic="a", now_ms=NOW)
    assert from_record(record_of(message), now_ms=NOW, packet_id=7) == FULL


def test_a_will_is_stored_as_a_publish_would_be():
    will = Will(topic="w", payload=b"x", qos=1, properties=Properties(will_delay_s=5))
    message = to_message(will, topic="w", now_ms=NOW)
    assert message.headers == ((b"~q", b"1"),)


def test_an_application_cannot_write_a_reserved_header():
    sent = Properties(user_properties=(("~q", "2"), ("~ex", "1"), ("~t", "other")))
    message = to_message(Publish(topic="a", properties=sent), topic="a", now_ms=NOW)
    delivered = from_record(record_of(message), now_ms=NOW)
    assert delivered is not None
    assert (delivered.qos, delivered.topic) == (0, "a")
    assert delivered.properties == sent


@pytest.mark.parametrize(
    ("stored", "allowed", "sent"), [(2, 1, 1), (1, 2, 1), (2, 2, 2), (1, 0, 0)]
)
def test_the_qos_is_the_smaller_of_the_two_and_qos_0_has_no_packet_id(stored, allowed, sent):
    held = record((b"~q", b"%d" % stored))
    delivered = from_record(held, now_ms=NOW, qos_max=allowed, packet_id=9, dup=True)
    assert delivered is not None
    assert delivered.qos == sent
    assert (delivered.packet_id, delivered.dup) == ((9, True) if sent else (0, False))


@pytest.mark.parametrize(("asked", "flag"), [(None, True), (False, False), (True, True)])
def test_the_retain_flag_is_as_published_or_as_the_session_says(asked, flag):
    delivered = from_record(record((b"~r", b"1")), now_ms=NOW, retain=asked)
    assert delivered is not None and delivered.retain is flag


def test_subscription_identifiers_are_those_of_the_receiver():
    delivered = from_record(record(), now_ms=NOW, subscription_ids=(4, 2))
    assert delivered is not None
    assert delivered.properties == Properties(subscription_ids=(4, 2))


@pytest.mark.parametrize(
    ("passed_ms", "left_s"),
    [
        (0, 10),
        (1, 10),
        (999, 10),
        (1000, 9),
        (9000, 1),
        (9001, 1),
        (9999, 1),
        (10_000, 0),
        (99_999, 0),
    ],
)
def test_the_expiry_that_is_left_is_rounded_up_and_nothing_is_left_at_its_end(passed_ms, left_s):
    publish = Publish(topic="a", properties=Properties(message_expiry_s=10))
    held = record_of(to_message(publish, topic="a", now_ms=NOW))
    assert remaining_expiry_s(held.headers, now_ms=NOW + passed_ms) == left_s
    delivered = from_record(held, now_ms=NOW + passed_ms)
    if left_s:
        assert delivered is not None and delivered.properties.message_expiry_s == left_s
    else:
        assert delivered is None


def test_an_expiry_further_than_mqtt_can_say_is_the_longest_that_it_can():
    assert remaining_expiry_s(((b"~ex", b"9" * 20),), now_ms=NOW) == 0xFFFF_FFFF


def test_without_expiry_a_message_lives_on():
    assert remaining_expiry_s((), now_ms=NOW) is None
    assert from_record(record(), now_ms=NOW + 10**12) is not None


@pytest.mark.parametrize("raw", [b"", b"-1", b"x", b"1.5", b"9" * 21, b" 1", b"\xd9\xa1", None])
def test_a_reserved_header_that_cannot_be_read_counts_as_absent(raw):
    headers = ((b"~ex", raw), (b"~q", raw), (b"~r", raw), (b"~pf", raw))
    assert expiry_ms(headers) is None
    assert (stored_qos(headers), is_retained(headers)) == (0, False)
    delivered = from_record(record(*headers), now_ms=NOW)
    assert delivered is not None and delivered.properties is NO_PROPERTIES


def test_a_null_value_is_an_empty_payload_and_a_null_header_an_empty_string():
    delivered = from_record(record((b"k", None), value=None), now_ms=NOW)
    assert delivered is not None
    assert delivered.payload == b""
    assert delivered.properties.user_properties == (("k", ""),)


def test_a_header_that_is_not_text_comes_as_base64_under_a_marked_name():
    delivered = from_record(record((b"a", b"\xff\x00"), (b"b", b"x\0"), (b"c", b"ok")), now_ms=NOW)
    assert delivered is not None
    assert delivered.properties.user_properties == (
        ("a;base64", "/wA="),
        ("b;base64", "eAA="),
        ("c", "ok"),
    )


def test_a_header_name_that_is_not_text_is_written_with_escapes():
    delivered = from_record(record((b"a\xff\0b", b"1")), now_ms=NOW)
    assert delivered is not None
    assert delivered.properties.user_properties == (("a\\xff\\x00b", "1"),)


def test_what_mqtt_cannot_hold_is_left_out_and_the_rest_is_delivered():
    long = b"x" * 65_536
    held = record(
        (b"~ct", long),
        (b"~rt", b"a/#"),
        (b"~ci", long),
        (b"big", long),
        (long, b"1"),
        (b"binary", b"\xff" * 60_000),
        (b"fits", long[1:]),
    )
    delivered = from_record(held, now_ms=NOW)
    assert delivered is not None
    assert delivered.properties == Properties(user_properties=(("fits", "x" * 65_535),))


@pytest.mark.parametrize("reply", [b"", b"+", b"a/#", b"\xff", b"a\0"])
def test_a_reply_to_that_is_no_topic_is_not_sent_as_a_response_topic(reply):
    delivered = from_record(record((b"~rt", reply), (b"~ct", b"\xff")), now_ms=NOW)
    assert delivered is not None and delivered.properties is NO_PROPERTIES


def test_whatever_the_headers_are_the_delivery_can_be_written_and_read():
    held = record(
        *[(bytes((n,)) + b"k", bytes((255 - n, n))) for n in range(256)],
        *[(b"n%d" % n, None) for n in range(1000)],
    )
    delivered = from_record(held, now_ms=NOW)
    assert delivered is not None
    wire = encode_packet(delivered, 5)
    assert decode_packet(wire[0], wire[3:], 5, sender=Side.SERVER) == delivered
