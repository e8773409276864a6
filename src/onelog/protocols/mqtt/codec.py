"""Bytes to packets and back, for MQTT 3.1, 3.1.1 and 5.0, without any input or output.

Rules: whatever the bytes are, decoding returns a packet or raises MqttError with the reason code
that the specification names. The caller cuts the stream into packets (first byte and body) and
bounds their size. The codec does not know the connection's history (packet ids in use, topic
aliases, receive maximum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onelog.protocols.mqtt.codec_connect import (
    answer_version,
    decode_connack,
    decode_connect,
    encode_connack,
    encode_connect,
)
from onelog.protocols.mqtt.codec_connection import (
    decode_auth,
    decode_disconnect,
    decode_pingreq,
    decode_pingresp,
    encode_auth,
    encode_disconnect,
    encode_ping,
)
from onelog.protocols.mqtt.codec_publish import (
    decode_ack,
    decode_publish,
    encode_ack,
    encode_publish,
)
from onelog.protocols.mqtt.codec_subscribe import (
    decode_suback,
    decode_subscribe,
    decode_unsuback,
    decode_unsubscribe,
    encode_suback,
    encode_subscribe,
    encode_unsuback,
    encode_unsubscribe,
)
from onelog.protocols.mqtt.errors import MqttError, malformed, protocol_error
from onelog.protocols.mqtt.packet_types import (
    FIXED_FLAGS,
    SENDERS,
    SENDERS_V3,
    V5,
    V31,
    PacketType,
    Side,
)
from onelog.protocols.mqtt.packets import Packet
from onelog.protocols.mqtt.wire import PacketReader, write_varint

__all__ = ["answer_version", "decode_packet", "encode_packet"]

_P = PacketType

_CONNECT: Final = _P.CONNECT
Decoder = Callable[[PacketReader, int, int, Side], Packet]
Encoder = Callable[[Any, int], tuple[int, bytes]]


def _ack_decoder(kind: PacketType) -> Decoder:
    return lambda reader, _flags, version, sender: decode_ack(kind, reader, version, sender)


_DECODERS: Final[dict[PacketType, Decoder]] = {
    _P.CONNECT: decode_connect,
    _P.CONNACK: decode_connack,
    _P.PUBLISH: decode_publish,
    _P.PUBACK: _ack_decoder(_P.PUBACK),
    _P.PUBREC: _ack_decoder(_P.PUBREC),
    _P.PUBREL: _ack_decoder(_P.PUBREL),
    _P.PUBCOMP: _ack_decoder(_P.PUBCOMP),
    _P.SUBSCRIBE: decode_subscribe,
    _P.SUBACK: decode_suback,
    _P.UNSUBSCRIBE: decode_unsubscribe,
    _P.UNSUBACK: decode_unsuback,
    _P.PINGREQ: decode_pingreq,
    _P.PINGRESP: decode_pingresp,
    _P.DISCONNECT: decode_disconnect,
    _P.AUTH: decode_auth,
}

_Legal = tuple[tuple[PacketType, str, int, Decoder] | None, ...]


def _legal(senders: Mapping[PacketType, frozenset[Side]], sender: Side) -> _Legal:
    """What a side may send, by number: packet type, name, its only legal flags (-1: it has real
    ones), decoder. Python 3.11 looks up a member of an enumeration by calls of functions."""
    return (
        None,
        *(
            (kind, kind.name, FIXED_FLAGS.get(kind, -1), _DECODERS[kind])
            if sender in senders[kind]
            else None
            for kind in PacketType
        ),
    )


_SERVER: Final = Side.SERVER
_LEGAL_V5: Final = (_legal(SENDERS, Side.CLIENT), _legal(SENDERS, Side.SERVER))
_LEGAL_V3: Final = (_legal(SENDERS_V3, Side.CLIENT), _legal(SENDERS_V3, Side.SERVER))

_ENCODERS: Final[dict[PacketType, Encoder]] = {
    _P.CONNECT: encode_connect,
    _P.CONNACK: encode_connack,
    _P.PUBLISH: encode_publish,
    _P.PUBACK: encode_ack,
    _P.PUBREC: encode_ack,
    _P.PUBREL: encode_ack,
    _P.PUBCOMP: encode_ack,
    _P.SUBSCRIBE: encode_subscribe,
    _P.SUBACK: encode_suback,
    _P.UNSUBSCRIBE: encode_unsubscribe,
    _P.UNSUBACK: encode_unsuback,
    _P.PINGREQ: encode_ping,
    _P.PINGRESP: encode_ping,
    _P.DISCONNECT: encode_disconnect,
    _P.AUTH: encode_auth,
}


def decode_packet(
    first_byte: int, body: bytes | memoryview, version: int, *, sender: Side = Side.CLIENT
) -> Packet:
    """The packet of a first byte and a whole body, as `sender` may send it in `version`.

    CONNECT has its own version in its body; `version` is ignored then.
    """
    number, flags = first_byte >> 4, first_byte & 0x0F
    rows = _LEGAL_V5 if version == V5 else _LEGAL_V3
    row = rows[sender is _SERVER][number]
    if row is None:
        raise _not_legal(number, version, sender)
    kind, name, fixed, decode = row
    # MQTT 3.1 has no rule on unused flag bits, and its clients set DUP in SUBSCRIBE and PUBREL.
    if flags != fixed and fixed >= 0 and (version != V31 or kind is _CONNECT):
        raise malformed(f"the first byte of {name} has flags 0x{flags:X}")  # 2.1.3-1
    return decode(PacketReader(bytes(body), name), flags, version, sender)


def _not_legal(number: int, version: int, sender: Side) -> MqttError:
    kind = PacketType(number) if number else None
    if kind is None or (kind is PacketType.AUTH and version != V5):
        return malformed(f"packet type {number} is reserved in this version")  # 2.1.2
    return protocol_error(f"a {sender.value} may not send {kind.name}")


def encode_packet(packet: Packet, version: int) -> bytes:
    """The whole packet in `version`. Fields that the version does not have are left out.

    Raises InvalidRequest, LimitExceeded or MessageTooLarge for values that MQTT cannot write.
    """
    flags, body = _ENCODERS[packet.type](packet, version)
    return bytes((packet.type << 4 | flags,)) + write_varint(len(body)) + body
