"""Reason codes, and the total table from the house's errors to them."""

from __future__ import annotations

import pytest

from onelog.base import errors
from onelog.protocols.mqtt.errors import ANSWERS, MqttError, reason_for
from onelog.protocols.mqtt.packet_types import PacketType, Side
from onelog.protocols.mqtt.reasons import (
    LEGAL,
    ONE_SENDER,
    REASONS_OF_RETURN_CODES,
    RETURN_CODES,
    ReasonCode,
    ReturnCode,
    is_legal,
)

ANSWERING = [
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.CONNACK,
    PacketType.DISCONNECT,
]


def tree(root: type[errors.OnelogError]) -> set[type[errors.OnelogError]]:
    found = {root}
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found |= tree(child)
    return found


def test_every_error_of_the_house_has_its_own_row():
    assert set(ANSWERS) == tree(errors.OnelogError)


@pytest.mark.parametrize("packet", ANSWERING)
@pytest.mark.parametrize("kind", sorted(ANSWERS, key=lambda kind: kind.__name__))
def test_an_error_is_told_by_a_failure_code_that_is_legal_in_the_packet(kind, packet):
    reason = reason_for(kind("x"), packet)
    assert reason >= 0x80
    assert is_legal(reason, packet, Side.SERVER)


def test_the_table_says_what_people_expect():
    assert reason_for(errors.NotAuthorized("x"), PacketType.PUBACK) == 0x87
    assert reason_for(errors.NotAuthorized("x"), PacketType.SUBACK) == 0x87
    assert reason_for(errors.NotAuthenticated("x"), PacketType.CONNACK) == 0x86
    assert reason_for(errors.InvalidName("x"), PacketType.PUBREC) == 0x90
    assert reason_for(errors.InvalidName("x"), PacketType.SUBACK) == 0x8F
    assert reason_for(errors.MessageTooLarge("x"), PacketType.DISCONNECT) == 0x95
    assert reason_for(errors.QuotaExceeded("x"), PacketType.PUBACK) == 0x97
    assert reason_for(errors.StorageFull("x"), PacketType.PUBACK) == 0x97
    assert reason_for(errors.Unavailable("x"), PacketType.CONNACK) == 0x88
    assert reason_for(errors.Closed("x"), PacketType.DISCONNECT) == 0x8B


def test_an_mqtt_error_tells_its_own_reason_where_that_is_legal():
    error = MqttError(ReasonCode.PAYLOAD_FORMAT_INVALID, "x")
    assert reason_for(error, PacketType.PUBACK) == 0x99
    assert reason_for(error, PacketType.DISCONNECT) == 0x99
    alias = MqttError(ReasonCode.TOPIC_ALIAS_INVALID, "x")
    assert reason_for(alias, PacketType.DISCONNECT) == 0x94
    assert reason_for(alias, PacketType.CONNACK) == 0x82


def test_an_error_class_of_another_room_is_told_as_its_nearest_parent():
    class Narrower(errors.NotAuthorized):
        pass

    assert reason_for(Narrower("x"), PacketType.SUBACK) == 0x87


def test_the_code_tables_are_total():
    assert set(LEGAL) == set(RETURN_CODES) == set(ReasonCode)
    assert set(REASONS_OF_RETURN_CODES) == set(ReturnCode)
    assert all(packet in LEGAL[code] for packet, code in ONE_SENDER)


def test_a_return_code_of_version_3_comes_back_through_its_reason():
    for code, reason in REASONS_OF_RETURN_CODES.items():
        assert RETURN_CODES[reason] is code


def test_only_success_is_accepted_in_version_3():
    accepted = [reason for reason, code in RETURN_CODES.items() if code is ReturnCode.ACCEPTED]
    assert accepted == [ReasonCode.SUCCESS]


@pytest.mark.parametrize(
    ("packet", "count"),
    [  # rows of the reason code tables of MQTT5 3.2.2.2, 3.4.2.1, … and 3.14.2.1 (with 0x8C of 2.4)
        (PacketType.CONNACK, 22),
        (PacketType.PUBACK, 9),
        (PacketType.PUBREC, 9),
        (PacketType.PUBREL, 2),
        (PacketType.PUBCOMP, 2),
        (PacketType.SUBACK, 12),
        (PacketType.UNSUBACK, 7),
        (PacketType.DISCONNECT, 30),
        (PacketType.AUTH, 3),
    ],
)
def test_a_packet_has_as_many_codes_as_its_table_in_the_specification(packet, count):
    assert sum(packet in places for places in LEGAL.values()) == count
