"""Fuzz target of the MQTT codec: whatever the bytes are, a packet or MqttError comes out (I10).

Run it: `python -m tests.fuzz.fuzz_mqtt_codec [seconds] [seed]`. With atheris installed,
`one_input` is its target. A failure prints the seed and the bytes.
"""

from __future__ import annotations

import random
import sys
import time

from onelog.kernel import decode_remaining_length
from onelog.protocols.mqtt import packets as p
from onelog.protocols.mqtt.codec import answer_version, decode_packet, encode_packet
from onelog.protocols.mqtt.errors import MqttError
from onelog.protocols.mqtt.packet_types import Side
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import RETURN_CODES, ReasonCode
from tests.fuzz.mutation import mutate_bytes

MESSAGE = Properties(
    payload_format=1,
    message_expiry_s=9,
    content_type="text/plain",
    response_topic="r/t",
    correlation_data=b"\0\1",
    user_properties=(("k", "v"), ("k", "ä")),
)
WHY = Properties(reason_string="because", user_properties=(("k", "v"),))
SEEDS = [
    (packet, version)
    for version in (3, 4, 5)
    for packet in (
        p.Connect(
            client_id="c1",
            version=version,
            keep_alive_s=30,
            will=p.Will(topic="w/t", payload=b"gone", qos=1, properties=MESSAGE),
            username="u",
            password=b"p",
            properties=Properties(
                session_expiry_s=5, receive_maximum=9, maximum_packet_size=99, topic_alias_maximum=3
            ),
        ),
        p.Connack(properties=Properties(assigned_client_id="x", maximum_qos=1)),
        p.Publish(topic="a/b", payload=b"hello", qos=1, packet_id=3, properties=MESSAGE),
        p.Publish(topic="a", payload=b"hello"),
        p.Puback(1, ReasonCode.NOT_AUTHORIZED, WHY),
        p.Pubrec(1, ReasonCode.SUCCESS, WHY),
        p.Pubrel(1),
        p.Pubcomp(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
        p.Subscribe(
            1,
            (p.Subscription("a/+/#", 1, True, True, 2), p.Subscription("$share/g/x")),
            Properties(subscription_ids=(300,)),
        ),
        p.Suback(1, (ReasonCode.SUCCESS, ReasonCode.UNSPECIFIED_ERROR), WHY),
        p.Unsubscribe(1, ("a/b", "#"), Properties(user_properties=(("a", "b"),))),
        p.Unsuback(1, (ReasonCode.SUCCESS,), WHY),
        p.Pingreq(),
        p.Disconnect(ReasonCode.DISCONNECT_WITH_WILL, WHY),
    )
]


def check(first_byte: int, body: bytes, version: int, sender: Side) -> bool:
    """Decode; what was accepted must encode, and decode to the same packet. Says if accepted."""
    answer_version(body)
    try:
        packet = decode_packet(first_byte, body, version, sender=sender)
    except MqttError as error:
        assert error.reason >= 0x80
        assert str(error)
        return False
    if isinstance(packet, p.Connack) and version != 5:
        assert RETURN_CODES[packet.reason] is not None
    wire = encode_packet(packet, version)
    head = decode_remaining_length(wire, 1)
    assert head is not None and sum(head) == len(wire)
    again = decode_packet(wire[0], wire[head[1] :], version, sender=sender)
    assert again == packet, (again, packet)
    return True


def one_input(data: bytes) -> None:
    """The target of a coverage-guided fuzzer: two bytes choose, the rest is the body."""
    if len(data) >= 2:
        version = 3 + data[0] % 3
        sender = Side.SERVER if data[0] & 0x80 else Side.CLIENT
        check(data[1], data[2:], version, sender)


def run(rounds: int, seed: int) -> tuple[int, int]:
    """Random bodies and mutated packets; returns how many were accepted and refused."""
    source = random.Random(seed)
    accepted = 0
    for number in range(rounds):
        sender = Side.SERVER if source.random() < 0.3 else Side.CLIENT
        if number % 4 == 0:
            first, version = source.randrange(256), source.choice((3, 4, 5))
            body = source.randbytes(source.choice((0, 1, 2, 5, 20, 100)))
        else:
            packet, version = source.choice(SEEDS)
            wire = encode_packet(packet, version)
            first, data = wire[0], bytearray(wire[2 if wire[1] < 0x80 else 3 :])
            mutate_bytes(source, data)
            if source.random() < 0.1:
                first ^= 1 << source.randrange(8)
            if source.random() < 0.05:
                version = source.choice((3, 4, 5))
            body = bytes(data)
        try:
            accepted += check(first, body, version, sender)
        except Exception:
            sys.stderr.write(f"seed {seed} version {version} {sender} {first:02x} {body.hex()}\n")
            raise
    return accepted, rounds - accepted


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    end = time.monotonic() + seconds
    accepted = refused = 0
    while time.monotonic() < end:
        yes, no = run(10_000, seed)
        accepted, refused, seed = accepted + yes, refused + no, seed + 1
    sys.stdout.write(f"{accepted} accepted, {refused} refused, none crashed\n")


if __name__ == "__main__":
    main()
