"""The limits: the defaults satisfy their own bounds, and a value outside is refused."""

from __future__ import annotations

import msgspec
import pytest

from onelog.protocols.mqtt.limits import MqttLimits


def test_the_defaults_satisfy_their_own_bounds():
    held = msgspec.structs.asdict(MqttLimits())
    assert msgspec.convert(held, MqttLimits) == MqttLimits()


def test_an_unauthenticated_peer_gets_a_smaller_packet_than_a_known_one():
    limits = MqttLimits()
    assert limits.connect_packet_bytes == 64 * 1024 < limits.packet_bytes == 1024 * 1024


@pytest.mark.parametrize("key", MqttLimits.__struct_fields__)
def test_no_limit_takes_a_negative_number(key):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({key: -1}, MqttLimits)


def test_every_limit_says_what_it_bounds():
    for field in msgspec.inspect.type_info(MqttLimits).fields:
        schema = field.type.extra_json_schema
        assert schema is not None and schema["description"].endswith("."), field.name
