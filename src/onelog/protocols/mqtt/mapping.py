"""A PUBLISH as a record and a record as a PUBLISH (I6).

Rules, into the log: the key is the topic; the payload is the value; QoS, retain and the message
properties become reserved headers where they are not the default, in a fixed order; then come the
user properties in their order, duplicates kept. Topic aliases and subscription identifiers belong
to a connection and are not stored. A message expiry is stored as the absolute time of its end.

Rules, out of the log, also for records that other protocols wrote:
- a null value is an empty payload, a null header value an empty string;
- a header value that is not an MQTT string (not UTF-8, or with U+0000) comes as base64 under its
  name with `;base64` behind it;
- a header name that is not an MQTT string has its bad bytes written as `\\xHH`;
- a header longer than MQTT's 65 535 bytes is left out, and so is a content type, reply-to or
  correlation that MQTT cannot express (a reply-to with a wildcard, a content type that is not
  text);
- a reserved header that cannot be read counts as absent.
"""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from typing import Final

from onelog.kernel import check_topic, check_utf8
from onelog.protocols.mqtt.packets import Publish, Will
from onelog.protocols.mqtt.properties import NO_PROPERTIES, USER_PROPERTIES_MAX, Properties
from onelog.protocols.mqtt.wire import FIELD_BYTES_MAX
from onelog.record.headers import (
    CONTENT_TYPE,
    CORRELATION,
    EXPIRY,
    PAYLOAD_FORMAT,
    PUBLISHER,
    QOS,
    REPLY_TO,
    RETAIN,
    TOPIC,
    Headers,
    application_name,
    find_header,
    is_reserved,
    stored_name,
)
from onelog.record.record import Message, Record
from onelog.record.reserved import read_expiry_ms

BASE64_SUFFIX: Final = ";base64"
_EXPIRY_S_MAX: Final = 0xFFFF_FFFF
_FIXED: Final = frozenset((TOPIC, QOS, RETAIN, PUBLISHER))
_STORED_QOS: Final = {b"1": 1, b"2": 2}
_PAYLOAD_FORMATS: Final[dict[bytes | None, int]] = {b"0": 0, b"1": 1}


def to_message(publish: Publish | Will, *, topic: str, now_ms: int) -> Message:
    """The message of a PUBLISH or a will; `topic` is the topic after alias and rewrite."""
    return Message(
        topic=topic,
        value=publish.payload,
        headers=to_headers(publish, now_ms=now_ms),
        timestamp_ms=now_ms,
    )


def to_headers(publish: Publish | Will, *, now_ms: int) -> Headers:
    """The record headers of a PUBLISH or a will."""
    headers: list[tuple[bytes, bytes | None]] = []
    if publish.qos:
        headers.append((QOS, b"%d" % publish.qos))
    if publish.retain:
        headers.append((RETAIN, b"1"))
    properties = publish.properties
    if properties is NO_PROPERTIES:
        return tuple(headers)
    if properties.content_type is not None:
        headers.append((CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append((REPLY_TO, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append((CORRELATION, properties.correlation_data))
    if properties.message_expiry_s is not None:
        headers.append((EXPIRY, b"%d" % (now_ms + properties.message_expiry_s * 1000)))
    if properties.payload_format is not None:  # 0 is stored, too (3.3.2-4)
        headers.append((PAYLOAD_FORMAT, b"%d" % properties.payload_format))
    headers += (
        (stored_name(name.encode()), value.encode()) for name, value in properties.user_properties
    )
    return tuple(headers)


def from_record(
    record: Record,
    *,
    now_ms: int,
    qos_max: int = 2,
    retain: bool | None = None,
    packet_id: int = 0,
    dup: bool = False,
    subscription_ids: tuple[int, ...] = (),
) -> Publish | None:
    """The PUBLISH that delivers a record; None: it has expired, or MQTT cannot express its topic.

    The QoS is the smaller of the publisher's and the subscription's (`qos_max`). `retain` None
    leaves the flag as it was published. The packet id and DUP are dropped at QoS 0.
    """
    headers = record.headers
    properties = NO_PROPERTIES
    if not _can_say(record.topic):
        return None
    if subscription_ids or not _has_no_properties(headers):
        remaining_s = remaining_expiry_s(headers, now_ms=now_ms)
        if remaining_s == 0:
            return None
        properties = to_properties(headers, remaining_s, subscription_ids)
    qos = min(stored_qos(headers), qos_max) if headers else 0
    return Publish(
        topic=record.topic,
        payload=record.value or b"",
        qos=qos,
        retain=is_retained(headers) if retain is None else retain,
        dup=dup and qos > 0,
        packet_id=packet_id if qos else 0,
        properties=properties,
    )


@lru_cache(maxsize=4096)
def _can_say(topic: str) -> bool:
    return _fits(topic) and check_topic(topic.encode())


def to_properties(
    headers: Headers, remaining_s: int | None = None, subscription_ids: tuple[int, ...] = ()
) -> Properties:
    """The properties of a PUBLISH that delivers a record with these headers."""
    if remaining_s is None and not subscription_ids and _has_no_properties(headers):
        return NO_PROPERTIES
    correlation = find_header(headers, CORRELATION)
    if correlation is not None and len(correlation) > FIELD_BYTES_MAX:
        correlation = None
    reply_to = _text(find_header(headers, REPLY_TO))
    if reply_to is not None and not check_topic(reply_to.encode()):
        reply_to = None
    properties = Properties(
        payload_format=_PAYLOAD_FORMATS.get(find_header(headers, PAYLOAD_FORMAT)),
        message_expiry_s=remaining_s,
        content_type=_text(find_header(headers, CONTENT_TYPE)),
        response_topic=reply_to,
        correlation_data=correlation,
        subscription_ids=subscription_ids,
        user_properties=user_properties(headers),
    )
    return NO_PROPERTIES if properties == NO_PROPERTIES else properties


def _has_no_properties(headers: Headers) -> bool:
    """Whether a record needs no properties beside the fixed header of a PUBLISH: most do not."""
    for name, _value in headers:  # noqa: SIM110 - twice as fast as `all`, and asked per message
        if name not in _FIXED:
            return False
    return True


def user_properties(headers: Headers) -> tuple[tuple[str, str], ...]:
    """The application's headers as user properties, in order, duplicates kept."""
    pairs: list[tuple[str, str]] = []
    for stored, value in headers:
        if is_reserved(stored) or (value is not None and len(value) > FIELD_BYTES_MAX):
            continue
        name = _printable(application_name(stored))
        text = "" if value is None else _text(value)
        if text is None and value is not None:
            name += BASE64_SUFFIX
            text = b64encode(value).decode()
        if text is not None and _fits(name) and _fits(text):
            pairs.append((name, text))
    return tuple(pairs[:USER_PROPERTIES_MAX])


def stored_qos(headers: Headers) -> int:
    """The QoS of the publish; 0 when the record has none."""
    return _STORED_QOS.get(find_header(headers, QOS) or b"", 0)


def is_retained(headers: Headers) -> bool:
    """Whether the publish asked to be retained."""
    return find_header(headers, RETAIN) == b"1"


def expiry_ms(headers: Headers) -> int | None:
    """When the message expires, in milliseconds since the Unix epoch; None: never."""
    return read_expiry_ms(headers)


def remaining_expiry_s(headers: Headers, *, now_ms: int) -> int | None:
    """The seconds left, at least 1 until it expires; 0: expired, None: it never does."""
    end_ms = expiry_ms(headers)
    if end_ms is None:
        return None
    return min(_EXPIRY_S_MAX, max(0, -((now_ms - end_ms) // 1000)))


def _text(raw: bytes | None) -> str | None:
    """`raw` as an MQTT string; None: MQTT cannot express it."""
    if raw is None or len(raw) > FIELD_BYTES_MAX or not check_utf8(raw):
        return None
    return raw.decode()


def _printable(name: bytes) -> str:
    return name.decode(errors="backslashreplace").replace("\0", "\\x00")


def _fits(text: str) -> bool:
    return len(text) <= FIELD_BYTES_MAX and len(text.encode()) <= FIELD_BYTES_MAX
