"""The check that a payload is what its Payload Format Indicator says (MQTT5 3.3.2.3.2).

Rules: the codec checks a will, because a bad one refuses the CONNECT. It does not check a PUBLISH:
the session does, so that a publisher of QoS 1 or 2 gets PUBACK or PUBREC 0x99 and stays connected.
"""

from __future__ import annotations

from onelog.protocols.mqtt.errors import MqttError
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import ReasonCode


def check_payload(payload: bytes, properties: Properties) -> None:
    """Raise 0x99 when the payload says that it is text and is not UTF-8. U+0000 is text here."""
    if properties.payload_format != 1:
        return
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise MqttError(
            ReasonCode.PAYLOAD_FORMAT_INVALID,
            f"the payload is marked as UTF-8 and is not, at byte {error.start}",
        ) from None
