"""The codec: bytes that are fixed by the specification, and what older clients may still send."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from onelog.base.errors import InvalidRequest, LimitExceeded, MessageTooLarge
from onelog.protocols import mqtt
from onelog.protocols.mqtt import packets as p
from onelog.protocols.mqtt.codec import answer_version, decode_packet, encode_packet
from onelog.protocols.mqtt.errors import MqttError
from onelog.protocols.mqtt.packet_types import WILL, PacketType, Side
from onelog.protocols.mqtt.payload import check_payload
from onelog.protocols.mqtt.properties import NO_PROPERTIES, PROPERTY_TABLE, Properties
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.topics import split_share


def test_the_protocol_rooms_import_nothing_that_does_input_output_or_time():
    forbidden = {"asyncio", "socket", "ssl", "time", "uvloop", "websockets", "os", "threading"}
    names = (
        "codec* state packets packet_types properties reasons errors mapping topics wire payload"
    )
    folder = Path(mqtt.__file__).parent
    paths = [path for name in names.split() for path in folder.glob(f"{name}.py")]
    assert len(paths) >= 14
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found = {(node.module or "").split(".")[0]}
            else:
                continue
            assert not found & forbidden, f"{path.name} imports {found & forbidden}"


@pytest.mark.parametrize(
    ("packet", "version", "wire"),
    [
        (
            p.Connect(client_id="a", version=4, keep_alive_s=60),
            4,
            "100d00044d515454040200 3c000161",
        ),
        (p.Connect(client_id="a", version=3), 3, "100f00064d51497364700302 0000000161"),
        (p.Connect(client_id="", version=5), 5, "100d00044d5154540502 000000 0000"),
        (p.Connack(), 4, "20020000"),
        (p.Connack(session_present=True), 4, "20020100"),
        (p.Connack(session_present=True), 3, "20020000"),
        (p.Connack(session_present=True), 5, "2003010000"),
        (p.Connack(reason=ReasonCode.NOT_AUTHORIZED), 4, "20020005"),
        (p.Connack(reason=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION), 5, "2003008400"),
        (p.Publish(topic="a/b", payload=b"hi"), 4, "30070003612f626869"),
        (p.Publish(topic="a/b", payload=b"hi"), 5, "30080003612f62006869"),
        (p.Publish(topic="a", qos=2, dup=True, retain=True, packet_id=258), 4, "3d050001610102"),
        (p.Puback(1), 5, "40020001"),
        (p.Puback(1, ReasonCode.NO_MATCHING_SUBSCRIBERS), 5, "4003000110"),
        (p.Puback(1, ReasonCode.NO_MATCHING_SUBSCRIBERS), 4, "40020001"),
        (p.Pubrel(1), 4, "62020001"),
        (p.Pubcomp(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), 5, "7003000192"),
        (p.Subscribe(1, (p.Subscription("a", 1),)), 4, "8206000100016101"),
        (p.Subscribe(1, (p.Subscription("a", 2, True, True, 2),)), 5, "820700010000 01612e"),
        (p.Suback(1, (ReasonCode.GRANTED_QOS_2, ReasonCode.QUOTA_EXCEEDED)), 4, "900400010280"),
        (p.Suback(1, (ReasonCode.GRANTED_QOS_2, ReasonCode.QUOTA_EXCEEDED)), 5, "90050001000297"),
        (p.Unsuback(1, (ReasonCode.NO_SUBSCRIPTION_EXISTED,)), 4, "b0020001"),
        (p.Unsuback(1, (ReasonCode.NO_SUBSCRIPTION_EXISTED,)), 5, "b00400010011"),
        (p.Pingreq(), 4, "c000"),
        (p.Pingresp(), 5, "d000"),
        (p.Disconnect(), 5, "e000"),
        (p.Disconnect(ReasonCode.SESSION_TAKEN_OVER), 5, "e0018e"),
        (p.Disconnect(ReasonCode.SESSION_TAKEN_OVER), 4, "e000"),
        (
            p.Auth(
                ReasonCode.CONTINUE_AUTHENTICATION,
                Properties(authentication_method="S", authentication_data=b"x"),
            ),
            5,
            "f00a180815000153 16000178",
        ),
    ],
)
def test_a_packet_is_written_as_the_specification_says(packet, version, wire):
    assert encode_packet(packet, version).hex() == wire.replace(" ", "")


def test_a_large_body_has_a_length_of_more_bytes():
    wire = encode_packet(p.Publish(topic="a", payload=b"x" * 200), 4)
    assert wire[:3] == bytes.fromhex("30cb01")
    assert decode_packet(wire[0], wire[3:], 4).payload == b"x" * 200


@pytest.mark.parametrize(
    ("first_byte", "body"),
    [
        (0x8A, "0001 000161 01"),  # DUP in SUBSCRIBE, as 3.1 clients set it when they try again
        (0x6A, "0001"),  # DUP in PUBREL
        (0xC1, ""),  # a flag that 3.1 calls unused
        (0x38, "000161"),  # DUP at QoS 0
        (0x82, "0001 000161 fd"),  # unused bits beside the QoS
    ],
)
def test_mqtt_31_bits_that_were_unused_then_are_ignored(first_byte, body):
    assert decode_packet(first_byte, bytes.fromhex(body), 3).type == first_byte >> 4
    with pytest.raises(MqttError):
        decode_packet(first_byte, bytes.fromhex(body), 4)


def test_mqtt_31_a_user_name_that_the_length_leaves_out_is_none():
    body = bytes.fromhex("00064d514973647003 c2 003c 000161")
    packet = decode_packet(0x10, body, 4)
    assert (packet.username, packet.password) == (None, None)


def test_mqtt_31_ignores_will_bits_without_a_will_and_the_reserved_flag():
    packet = decode_packet(0x10, bytes.fromhex("00064d514973647003 3b 003c 000161"), 4)
    assert packet.will is None


def test_an_empty_client_id_is_for_the_server_to_assign():
    v4 = decode_packet(0x10, bytes.fromhex("00044d515454 04 02 0000 0000"), 4)
    v5 = decode_packet(0x10, bytes.fromhex("00044d515454 05 00 0000 00 0000"), 4)
    assert (v4.client_id, v4.clean_start, v5.client_id, v5.clean_start) == ("", True, "", False)


def test_mqtt_5_takes_a_password_without_a_user_name():
    body = bytes.fromhex("00044d515454 05 42 0000 00 000161 000170")
    packet = decode_packet(0x10, body, 4)
    assert (packet.username, packet.password) == (None, b"p")


@pytest.mark.parametrize(
    ("body", "version"),
    [
        ("00044d51545404", 4),
        ("00044d51545405", 5),
        ("00044d51545406", 5),
        ("00044d5154547f", 5),
        ("00044d51545484", 4),
        ("00044d51545402", 4),
        ("00064d514973647003", 3),
        ("00064d5149736470", 3),
        ("00044d515454", 4),
        ("00044d51545804", 4),
        ("", 4),
    ],
)
def test_a_bad_connect_is_answered_in_the_words_of_the_version_that_it_claims(body, version):
    assert answer_version(bytes.fromhex(body)) == version
    assert answer_version(memoryview(bytes.fromhex(body))) == version


def test_a_text_may_begin_with_a_byte_order_mark_and_hold_any_other_character():
    topic = "\ufeffä/\U0001f600/\uffff/\x7f/\x01"  # 1.5.4-3: U+FEFF is not stripped
    wire = encode_packet(p.Publish(topic=topic), 5)
    assert decode_packet(wire[0], wire[2:], 5).topic == topic


def test_user_properties_keep_their_order_and_duplicates():
    pairs = (("b", "1"), ("a", ""), ("b", "1"), ("", "x"))
    packet = p.Publish(topic="t", properties=Properties(user_properties=pairs))
    wire = encode_packet(packet, 5)
    assert decode_packet(wire[0], wire[2:], 5).properties.user_properties == pairs


def test_a_server_may_send_many_subscription_identifiers_and_the_largest():
    ids = (1, 268_435_455, 127, 128, 1)
    packet = p.Publish(topic="t", properties=Properties(subscription_ids=ids))
    wire = encode_packet(packet, 5)
    back = decode_packet(wire[0], wire[2:], 5, sender=Side.SERVER)
    assert back.properties.subscription_ids == ids


def test_a_packet_without_properties_shares_one_object():
    wire = encode_packet(p.Publish(topic="t"), 5)
    assert decode_packet(wire[0], wire[2:], 5).properties is NO_PROPERTIES


@pytest.mark.parametrize(
    ("packet", "version", "error"),
    [
        (p.Publish(topic="a/#"), 4, InvalidRequest),
        (p.Publish(topic=""), 5, InvalidRequest),
        (p.Publish(topic="", properties=Properties(topic_alias=1)), 4, InvalidRequest),
        (p.Publish(topic="a", qos=1), 4, InvalidRequest),
        (p.Publish(topic="a", qos=3, packet_id=1), 4, InvalidRequest),
        (p.Publish(topic="a", dup=True), 4, InvalidRequest),
        (p.Publish(topic="a\0"), 4, InvalidRequest),
        (p.Publish(topic="\ud800"), 4, InvalidRequest),
        (p.Publish(topic="a" * 65_536), 4, LimitExceeded),
        (p.Publish(topic="a", qos=1, packet_id=65_536), 4, InvalidRequest),
        (p.Publish(topic="a", properties=Properties(topic_alias=0)), 5, InvalidRequest),
        (p.Publish(topic="a", properties=Properties(reason_string="x")), 5, InvalidRequest),
        (p.Publish(topic="a", properties=Properties(response_topic="#")), 5, InvalidRequest),
        (p.Puback(0), 5, InvalidRequest),
        (p.Subscribe(1, ()), 4, InvalidRequest),
        (p.Subscribe(1, (p.Subscription("a", 3),)), 4, InvalidRequest),
        (
            p.Subscribe(1, (p.Subscription("a"),), Properties(subscription_ids=(1, 2))),
            5,
            InvalidRequest,
        ),
        (p.Unsubscribe(1, ()), 4, InvalidRequest),
        (p.Auth(), 4, InvalidRequest),
        (p.Connack(reason=ReasonCode.MALFORMED_PACKET), 4, InvalidRequest),
        (p.Connect(client_id="a", version=6), 6, InvalidRequest),
        (p.Connect(client_id="a", version=4, password=b"x"), 4, InvalidRequest),
        (
            p.Connect(client_id="a", version=4, will=p.Will(topic="t", payload=b"", qos=3)),
            4,
            InvalidRequest,
        ),
    ],
)
def test_what_mqtt_cannot_say_is_never_written(packet, version, error):
    with pytest.raises(error):
        encode_packet(packet, version)


def test_a_body_that_the_four_length_bytes_cannot_count_is_never_written():
    with pytest.raises(MessageTooLarge):
        encode_packet(p.Publish(topic="a", payload=bytes(268_435_455)), 4)


def test_a_payload_marked_as_text_must_be_utf8_and_may_have_nul():
    text = Properties(payload_format=1)
    check_payload(b"a\0\xc3\xa4", text)
    check_payload(b"\xff", NO_PROPERTIES)
    check_payload(b"\xff", Properties(payload_format=0))
    with pytest.raises(MqttError) as caught:
        check_payload(b"abc\xff", text)
    assert caught.value.reason is ReasonCode.PAYLOAD_FORMAT_INVALID


@pytest.mark.parametrize(
    ("text", "group", "inner"),
    [
        ("a/b", None, "a/b"),
        ("$share", None, "$share"),
        ("$sharex/g/a", None, "$sharex/g/a"),
        ("$share/g/a/b", "g", "a/b"),
        ("$share/g//a", "g", "/a"),
        ("$share/g//", "g", "/"),
        ("$share/g/$SYS/#", "g", "$SYS/#"),
    ],
)
def test_a_shared_filter_is_a_group_and_a_filter(text, group, inner):
    assert split_share(text) == (group, inner)


def test_the_property_table_has_the_27_rows_of_the_specification():
    assert len(PROPERTY_TABLE) == 27
    assert len({row.number for row in PROPERTY_TABLE}) == 27
    assert [row.field for row in PROPERTY_TABLE] == list(Properties.__struct_fields__)
    counts = dict.fromkeys((*PacketType, WILL), 0)
    for row in PROPERTY_TABLE:
        assert row.places <= set(counts)
        assert row.repeats_in <= row.places
        for place in row.places:
            counts[place] += 1
    # MQTT5 table 2-4, counted by packet.
    assert {
        PacketType(place).name if place != WILL else "WILL": n for place, n in counts.items()
    } == {
        "CONNECT": 9,
        "CONNACK": 17,
        "PUBLISH": 8,
        "WILL": 7,
        "PUBACK": 2,
        "PUBREC": 2,
        "PUBREL": 2,
        "PUBCOMP": 2,
        "SUBSCRIBE": 2,
        "SUBACK": 2,
        "UNSUBSCRIBE": 1,
        "UNSUBACK": 2,
        "PINGREQ": 0,
        "PINGRESP": 0,
        "DISCONNECT": 4,
        "AUTH": 4,
    }
