"""A message through the log: MQTT's comes back as it was, any other's can be delivered (I6)."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import decode_remaining_length
from onelog.protocols.mqtt.codec import decode_packet, encode_packet
from onelog.protocols.mqtt.mapping import from_record, to_message
from onelog.protocols.mqtt.packet_types import Side
from onelog.protocols.mqtt.packets import Publish
from onelog.protocols.mqtt.properties import Properties
from onelog.record.batch import build_batch, iterate_batches
from onelog.record.record import Message, Record

NOW = 1_700_000_000_000
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TOPIC = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
NAMES = st.sampled_from([b"~", b"~~", b"~q", b"~ct", b"~rt", b"~ci", b"~ex", b"~pf", b"k"])

PROPERTIES = st.builds(
    Properties,
    payload_format=st.sampled_from([None, 1]),
    message_expiry_s=st.none() | st.integers(1, 0xFFFF_FFFF),
    content_type=st.none() | TEXT,
    response_topic=st.none() | TOPIC,
    correlation_data=st.none() | st.binary(max_size=12),
    user_properties=st.lists(
        st.tuples(st.one_of(TEXT, NAMES.map(bytes.decode)), TEXT), max_size=5
    ).map(tuple),
)


def through_the_log(message: Message) -> Record:
    """The record that a reader gets after the message was in a real batch."""
    topic = message.topic.encode()
    batch = build_batch([(topic, topic, message.value, message.headers, message.timestamp_ms)])
    ((_info, slices),) = iterate_batches(batch)
    ((offset, timestamp_ms, key, value, headers),) = slices.records()
    assert key == topic
    return Record(
        "main", 0, Offset(offset), message.topic, TimestampMs(timestamp_ms), key, value, headers
    )


@given(TOPIC, st.binary(max_size=30), st.integers(0, 2), st.booleans(), PROPERTIES)
def test_a_publish_comes_out_of_the_log_as_it_went_in(topic, payload, qos, retain, properties):
    publish = Publish(
        topic=topic,
        payload=payload,
        qos=qos,
        retain=retain,
        packet_id=5 if qos else 0,
        properties=properties,
    )
    held = through_the_log(to_message(publish, topic=topic, now_ms=NOW))
    assert from_record(held, now_ms=NOW, packet_id=5) == publish


@given(
    st.lists(
        st.tuples(st.one_of(NAMES, st.binary(max_size=8)), st.none() | st.binary(max_size=12)),
        max_size=8,
    ),
    st.none() | st.binary(max_size=12),
    st.integers(0, 2),
)
def test_whatever_headers_another_protocol_wrote_the_delivery_is_legal(headers, value, qos):
    held = through_the_log(Message("t", value, headers=tuple(headers), timestamp_ms=NOW))
    publish = from_record(held, now_ms=NOW, qos_max=qos, packet_id=1)
    assert publish == from_record(held, now_ms=NOW, qos_max=qos, packet_id=1)
    if publish is None:
        return
    for version in (3, 4, 5):
        wire = encode_packet(publish, version)
        head = decode_remaining_length(wire, 1)
        assert head is not None
        back = decode_packet(wire[0], wire[head[1] :], version, sender=Side.SERVER)
        if version == 5:
            assert back == publish
        else:
            bare = msgspec.structs.replace(publish, properties=Properties())
            assert back == bare
