"""Every packet that can be said comes back as it was, in every version (I6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onelog.kernel import decode_remaining_length
from onelog.protocols.mqtt import packets as p
from onelog.protocols.mqtt.codec import decode_packet, encode_packet
from onelog.protocols.mqtt.packet_types import SENDERS, WILL, PacketType, Side
from onelog.protocols.mqtt.properties import (
    NO_PROPERTIES,
    PROPERTY_TABLE,
    Properties,
    PropertyType,
)
from onelog.protocols.mqtt.reasons import RETURN_CODES, ReasonCode, is_legal


def split(stream: bytes) -> list[tuple[int, bytes]]:
    """Cut a stream of whole packets into first bytes and bodies."""
    found, position = [], 0
    while position < len(stream):
        head = decode_remaining_length(stream, position + 1)
        assert head is not None
        size, start = head
        found.append((stream[position], stream[start : start + size]))
        position = start + size
    assert position == len(stream)
    return found


# Surrogates cannot be encoded; U+0000 is forbidden by 1.5.4-2.
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
TEXT = st.text(CHARACTERS, max_size=20)
TOPIC = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
LEVEL = st.text(st.characters(codec="utf-8", exclude_characters="\0+#/"), max_size=5)
BINARY = st.binary(max_size=40)
PACKET_ID = st.integers(1, 65_535)
QOS = st.integers(0, 2)


@st.composite
def filters(draw) -> str:
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=4))
    text = "/".join(levels) or "a"
    if draw(st.booleans()):
        text += "/#"
    if text.startswith("$share/"):
        return "a"
    if draw(st.booleans()):
        group = draw(LEVEL.filter(bool))
        return f"$share/{group}/{text}"
    return text


VALUES = {
    PropertyType.BYTE: st.integers(0, 1),
    PropertyType.FLAG: st.booleans(),
    PropertyType.U16: st.integers(1, 65_535),
    PropertyType.U32: st.integers(1, 0xFFFF_FFFF),
    PropertyType.VARINT: st.integers(1, 268_435_455),
    PropertyType.TEXT: TEXT,
    PropertyType.BINARY: BINARY,
    PropertyType.PAIR: st.tuples(TEXT, TEXT),
}


def properties(place: int, *without: str) -> st.SearchStrategy[Properties]:
    """Any properties that are legal in a place, by the table itself."""
    fields = {}
    for row in PROPERTY_TABLE:
        if place not in row.places or row.field in without:
            continue
        value = TOPIC if row.is_topic else VALUES[row.type]
        if row.is_list:
            count = 4 if place in row.repeats_in else 1
            fields[row.field] = st.lists(value, max_size=count).map(tuple)
        else:
            fields[row.field] = st.one_of(st.none(), value)
    return st.builds(Properties, **fields)


def reasons(kind: PacketType, sender: Side) -> st.SearchStrategy[ReasonCode]:
    return st.sampled_from([code for code in ReasonCode if is_legal(code, kind, sender)])


def round_trip(packet, version: int, sender: Side):
    """Decode what was encoded, behind another packet, so that the length has to be right."""
    stream = encode_packet(packet, version) * 2
    parts = split(stream)
    assert len(parts) == 2 and parts[0] == parts[1]
    first, body = parts[0]
    assert decode_packet(first, memoryview(body), version, sender=sender) == decode_packet(
        first, body, version, sender=sender
    )
    return decode_packet(first, body, version, sender=sender)


ACKS = [p.Puback, p.Pubrec, p.Pubrel, p.Pubcomp]
BOTH = st.sampled_from([Side.CLIENT, Side.SERVER])
V3 = st.sampled_from([3, 4])


@st.composite
def connects(draw, version: int) -> p.Connect:
    v5 = version == 5
    will = None
    if draw(st.booleans()):
        held = draw(properties(WILL)) if v5 else NO_PROPERTIES
        payload = draw(TEXT).encode() if held.payload_format else draw(BINARY)
        will = p.Will(
            topic=draw(TOPIC),
            payload=payload,
            qos=draw(QOS),
            retain=draw(st.booleans()),
            properties=held,
        )
    held = draw(properties(PacketType.CONNECT)) if v5 else NO_PROPERTIES
    if held.authentication_method is None and held.authentication_data is not None:
        held = NO_PROPERTIES
    username = draw(st.none() | TEXT)
    may_have_password = v5 or username is not None
    clean = draw(st.booleans())
    return p.Connect(
        client_id=draw(TEXT if v5 else TEXT.filter(bool)),
        version=version,
        clean_start=clean,
        keep_alive_s=draw(st.integers(0, 65_535)),
        will=will,
        username=username,
        password=draw(st.none() | BINARY) if may_have_password else None,
        properties=held,
    )


@given(st.sampled_from([3, 4, 5]).flatmap(connects))
def test_connect_comes_back_as_it_was_and_says_its_own_version(packet):
    assert round_trip(packet, 4, Side.CLIENT) == packet
    assert round_trip(packet, packet.version, Side.CLIENT) == packet


@given(reasons(PacketType.CONNACK, Side.SERVER), st.booleans(), properties(PacketType.CONNACK))
def test_connack_comes_back_as_it_was(reason, present, held):
    packet = p.Connack(reason=reason, session_present=present and reason == 0, properties=held)
    assert round_trip(packet, 5, Side.SERVER) == packet


@given(st.sampled_from(sorted(code for code in ReasonCode if RETURN_CODES[code] is not None)))
def test_connack_of_version_3_tells_the_return_code_and_two_bytes(reason):
    packet = p.Connack(reason=reason, session_present=True)
    for version in (3, 4):
        assert len(encode_packet(packet, version)) == 4
        back = round_trip(packet, version, Side.SERVER)
        assert RETURN_CODES[back.reason] == RETURN_CODES[reason]
        assert back.session_present == (version == 4 and reason == 0)


@st.composite
def publishes(draw, version: int, sender: Side) -> p.Publish:
    qos = draw(QOS)
    without = () if sender is Side.SERVER else ("subscription_ids",)
    held = draw(properties(PacketType.PUBLISH, *without)) if version == 5 else NO_PROPERTIES
    return p.Publish(
        topic="" if held.topic_alias and draw(st.booleans()) else draw(TOPIC),
        payload=draw(BINARY),
        qos=qos,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) and qos > 0,
        packet_id=draw(PACKET_ID) if qos else 0,
        properties=held,
    )


@given(st.data(), st.sampled_from([3, 4, 5]), BOTH)
def test_publish_comes_back_as_it_was(data, version, sender):
    packet = data.draw(publishes(version, sender))
    assert round_trip(packet, version, sender) == packet


@given(st.data(), st.sampled_from(ACKS), BOTH, PACKET_ID)
def test_the_four_answers_come_back_as_they_were(data, make, sender, packet_id):
    packet = make(
        packet_id, data.draw(reasons(make.type, sender)), data.draw(properties(make.type))
    )
    assert round_trip(packet, 5, sender) == packet
    for version in (3, 4):
        assert len(encode_packet(packet, version)) == 4
        assert round_trip(packet, version, sender) == make(packet_id)


@st.composite
def subscriptions(draw) -> p.Subscription:
    text = draw(filters())
    return p.Subscription(
        text,
        draw(QOS),
        draw(st.booleans()) and not text.startswith("$share/"),
        draw(st.booleans()),
        draw(st.integers(0, 2)),
    )


@given(
    PACKET_ID,
    st.lists(subscriptions(), min_size=1, max_size=5),
    properties(PacketType.SUBSCRIBE),
    V3,
)
def test_subscribe_comes_back_as_it_was(packet_id, rows, held, v3):
    packet = p.Subscribe(packet_id, tuple(rows), held)
    assert round_trip(packet, 5, Side.CLIENT) == packet
    bare = tuple(p.Subscription(row.filter, row.qos) for row in rows)
    assert round_trip(packet, v3, Side.CLIENT) == p.Subscribe(packet_id, bare)


@given(
    PACKET_ID,
    st.lists(reasons(PacketType.SUBACK, Side.SERVER), min_size=1, max_size=5),
    properties(PacketType.SUBACK),
    V3,
)
def test_suback_keeps_its_order_and_version_3_has_one_failure(packet_id, codes, held, v3):
    packet = p.Suback(packet_id, tuple(codes), held)
    assert round_trip(packet, 5, Side.SERVER) == packet
    bare = tuple(code if code < 0x80 else ReasonCode.UNSPECIFIED_ERROR for code in codes)
    assert round_trip(packet, v3, Side.SERVER) == p.Suback(packet_id, bare)


@given(
    PACKET_ID,
    st.lists(filters(), min_size=1, max_size=5),
    properties(PacketType.UNSUBSCRIBE),
    V3,
)
def test_unsubscribe_comes_back_as_it_was(packet_id, texts, held, v3):
    packet = p.Unsubscribe(packet_id, tuple(texts), held)
    assert round_trip(packet, 5, Side.CLIENT) == packet
    assert round_trip(packet, v3, Side.CLIENT) == p.Unsubscribe(packet_id, tuple(texts))


@given(
    PACKET_ID,
    st.lists(reasons(PacketType.UNSUBACK, Side.SERVER), min_size=1, max_size=5),
    properties(PacketType.UNSUBACK),
    V3,
)
def test_unsuback_comes_back_as_it_was(packet_id, codes, held, v3):
    packet = p.Unsuback(packet_id, tuple(codes), held)
    assert round_trip(packet, 5, Side.SERVER) == packet
    assert round_trip(packet, v3, Side.SERVER) == p.Unsuback(packet_id)


@given(st.data(), BOTH)
def test_disconnect_comes_back_as_it_was(data, sender):
    without = ("session_expiry_s",) if sender is Side.SERVER else ()
    packet = p.Disconnect(
        data.draw(reasons(PacketType.DISCONNECT, sender)),
        data.draw(properties(PacketType.DISCONNECT, *without)),
    )
    assert round_trip(packet, 5, sender) == packet
    assert encode_packet(packet, 4) == b"\xe0\0"


@given(st.data(), BOTH, TEXT)
def test_auth_comes_back_as_it_was(data, sender, method):
    held = data.draw(properties(PacketType.AUTH, "authentication_method"))
    held = Properties(
        authentication_method=method,
        authentication_data=held.authentication_data,
        reason_string=held.reason_string,
        user_properties=held.user_properties,
    )
    packet = p.Auth(data.draw(reasons(PacketType.AUTH, sender)), held)
    assert round_trip(packet, 5, sender) == packet


@given(st.sampled_from([3, 4, 5]))
def test_pings_have_two_bytes(version):
    for packet in (p.Pingreq(), p.Pingresp()):
        (sender,) = SENDERS[packet.type]
        assert len(encode_packet(packet, version)) == 2
        assert round_trip(packet, version, sender) == packet
