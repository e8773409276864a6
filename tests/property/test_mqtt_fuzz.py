"""The fuzz target of the MQTT codec, short: no bytes crash it, hang it or fill memory (I8, I10)."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.protocols.mqtt.codec import decode_packet
from onelog.protocols.mqtt.errors import MqttError
from tests.fuzz.fuzz_mqtt_codec import one_input, run


@pytest.mark.parametrize("seed", range(3))
def test_random_and_mutated_packets_are_decoded_or_refused(seed):
    accepted, refused = run(8_000, seed)
    assert accepted > 200  # the mutations stay near enough to real packets to reach the depths
    assert refused > 2_000


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data):
    one_input(data)


@pytest.mark.parametrize(
    ("first_byte", "head", "unit", "version"),
    [
        (0x82, b"\0\1", b"\0\1a\0", 4),
        (0xA2, b"\0\1", b"\0\1a", 4),
        (0x30, b"\0\1a\xfc\xff\x3f", b"\x26\0\0\0\0", 5),
        (0x10, b"\0\4MQTT\5\2\0\0\xfc\xff\x3f", b"\x26\0\1a\0\1b", 5),
        (0x30, b"\0\1a\xfc\xff\x3f", b"\x0b\1", 5),
        (0x82, b"\0\1", b"\xff\xff" + b"/" * 65_535 + b"\0", 4),
    ],
    ids=["filters", "unsubscribes", "users", "connect", "identifiers", "slashes"],
)
def test_a_packet_of_one_mib_costs_a_few_times_its_size(first_byte, head, unit, version):
    body = head + unit * ((1024 * 1024 - len(head)) // len(unit))
    tracemalloc.start()
    try:
        with contextlib.suppress(MqttError):
            decode_packet(first_byte, body, version)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
