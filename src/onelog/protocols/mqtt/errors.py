"""MQTT's own error, and the complete table from the errors of `base` to MQTT reason codes.

Rules: every class of the error tree has a row; a class without one fails a test. Each code is legal
in the packet of its column. PUBACK and UNSUBACK have no codes in version 3: there a failed publish
closes the connection (an error must not look like success).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from onelog.base import errors
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.reasons import LEGAL, ReasonCode


class MqttError(errors.ProtocolViolation):
    """A peer broke a rule of MQTT; `reason` is the code that the specification names for it.

    Where it names none, MQTT5 1.2 decides: bytes that cannot be parsed are malformed (0x81); a
    packet that was parsed and is not allowed is a protocol error (0x82).
    """

    def __init__(self, reason: ReasonCode, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def malformed(text: str) -> MqttError:
    """The error for bytes that cannot be parsed (0x81)."""
    return MqttError(ReasonCode.MALFORMED_PACKET, text)


def protocol_error(text: str) -> MqttError:
    """The error for a packet that is well formed and not allowed (0x82)."""
    return MqttError(ReasonCode.PROTOCOL_ERROR, text)


class ErrorReasons(NamedTuple):
    """The reason codes of one error, by the packet that answers; `received` is PUBACK/PUBREC."""

    received: ReasonCode
    suback: ReasonCode
    unsuback: ReasonCode
    connack: ReasonCode
    disconnect: ReasonCode


_R = ReasonCode

_UNSPECIFIED: Final = ErrorReasons(*[_R.UNSPECIFIED_ERROR] * 5)
_REFUSED: Final = ErrorReasons(*[_R.IMPLEMENTATION_SPECIFIC_ERROR] * 5)
_DENIED: Final = ErrorReasons(*[_R.NOT_AUTHORIZED] * 5)
_LIMIT: Final = ErrorReasons(
    _R.QUOTA_EXCEEDED,
    _R.QUOTA_EXCEEDED,
    _R.IMPLEMENTATION_SPECIFIC_ERROR,
    _R.QUOTA_EXCEEDED,
    _R.QUOTA_EXCEEDED,
)
_LATER: Final = ErrorReasons(
    _R.IMPLEMENTATION_SPECIFIC_ERROR,
    _R.IMPLEMENTATION_SPECIFIC_ERROR,
    _R.IMPLEMENTATION_SPECIFIC_ERROR,
    _R.SERVER_UNAVAILABLE,
    _R.SERVER_BUSY,
)
_CLOSING: Final = _LATER._replace(disconnect=_R.SERVER_SHUTTING_DOWN)
_ELSEWHERE: Final = _LATER._replace(connack=_R.USE_ANOTHER_SERVER, disconnect=_R.USE_ANOTHER_SERVER)

ANSWERS: Final[dict[type[errors.OnelogError], ErrorReasons]] = {
    errors.OnelogError: _UNSPECIFIED,
    errors.InvalidRequest: _REFUSED,
    errors.InvalidName: ErrorReasons(
        _R.TOPIC_NAME_INVALID,
        _R.TOPIC_FILTER_INVALID,
        _R.TOPIC_FILTER_INVALID,
        _R.TOPIC_NAME_INVALID,
        _R.TOPIC_NAME_INVALID,
    ),
    errors.ConfigError: _REFUSED,
    errors.NotFound: _REFUSED,
    errors.StreamNotFound: _REFUSED,
    errors.TopicNotFound: _REFUSED,
    errors.CursorNotFound: _REFUSED,
    errors.AlreadyExists: _REFUSED,
    errors.Conflict: _LATER,
    errors.NotAuthenticated: _DENIED._replace(connack=_R.BAD_USER_NAME_OR_PASSWORD),
    errors.NotAuthorized: _DENIED,
    errors.QuotaExceeded: _LIMIT,
    errors.LimitExceeded: _LIMIT,
    errors.MessageTooLarge: _LIMIT._replace(
        connack=_R.PACKET_TOO_LARGE, disconnect=_R.PACKET_TOO_LARGE
    ),
    errors.CorruptBatch: _UNSPECIFIED,
    errors.UnsupportedMagic: _UNSPECIFIED,
    errors.InvalidRecords: _UNSPECIFIED,
    errors.UnsupportedCodec: _UNSPECIFIED,
    errors.OffsetOutOfRange: _REFUSED,
    errors.OutOfOrderSequence: _UNSPECIFIED,
    errors.DuplicateSequence: _UNSPECIFIED,
    errors.ProducerFenced: _UNSPECIFIED,
    errors.UnknownProducer: _UNSPECIFIED,
    errors.InvalidTxnState: _UNSPECIFIED,
    errors.StorageError: _UNSPECIFIED,
    errors.StorageFull: _LIMIT,
    errors.PartitionStopped: _LATER,
    errors.PartitionCorrupt: _LATER,
    errors.ColdUnavailable: _LATER,
    errors.ColdDamaged: _UNSPECIFIED,
    errors.NotLeader: _LATER,
    errors.NotOwner: _ELSEWHERE,
    errors.Fenced: _LATER,
    errors.StoreFenced: _LATER,
    errors.Unavailable: _LATER,
    errors.StateUnknown: _LATER,
    errors.StateLoading: _LATER,
    errors.Closed: _CLOSING,
    errors.Timeout: _LATER,
    errors.OutcomeUnknown: _LATER,
    errors.ProtocolViolation: _REFUSED._replace(
        connack=_R.PROTOCOL_ERROR, disconnect=_R.PROTOCOL_ERROR
    ),
    errors.DataDirLocked: _UNSPECIFIED,
}

_COLUMNS: Final[dict[PacketType, int]] = {
    PacketType.PUBACK: 0,
    PacketType.PUBREC: 0,
    PacketType.SUBACK: 1,
    PacketType.UNSUBACK: 2,
    PacketType.CONNACK: 3,
    PacketType.DISCONNECT: 4,
}


def reason_for(error: errors.OnelogError, packet: PacketType) -> ReasonCode:
    """The code for `error` in an answering packet (PUBACK, SUBACK, CONNACK, …)."""
    if isinstance(error, MqttError) and packet in LEGAL[error.reason]:
        return error.reason
    for kind in type(error).__mro__:
        answer = ANSWERS.get(kind)
        if answer is not None:
            return answer[_COLUMNS[packet]]
    raise AssertionError("OnelogError itself has a row")
