"""The fields of a message: what each one means, its reserved header, its name in each protocol.

`docs/reference/mapping.md` shows this table. The mappings of the protocols and the command line use
it, and `tests/cross` tests every cell of it. An empty name means that the protocol does not have
the field: it neither writes nor shows it, and the record keeps it for protocols that have it. Kafka
has every field: the header itself.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from onelog.record import headers

Form = Literal["text", "bytes", "number", "topic", "time_ms", "mark"]
"""How the value of a header is written: `number` and `time_ms` decimal, `mark` is `1`."""


class Field(NamedTuple):
    """One fact that rides along with a message."""

    name: str
    header: bytes
    form: Form
    mqtt: str = ""
    """Its name in MQTT 5."""
    amqp: str = ""
    """Its name among AMQP's basic properties."""
    most: int = 0
    """The greatest number that the header may hold."""
    mqtt3: str = ""
    """Its name in MQTT 3.1.1."""


FIELDS: Final = (
    Field(
        "qos", headers.QOS, "number",
        mqtt="qos", amqp="delivery_mode", most=2, mqtt3="qos",
    ),
    Field("retain", headers.RETAIN, "mark", mqtt="retain", mqtt3="retain"),
    Field(
        "content_type", headers.CONTENT_TYPE, "text", mqtt="content_type", amqp="content_type"
    ),
    Field("content_encoding", headers.CONTENT_ENCODING, "text", amqp="content_encoding"),
    Field("reply_to", headers.REPLY_TO, "topic", mqtt="response_topic", amqp="reply_to"),
    Field(
        "correlation", headers.CORRELATION, "bytes",
        mqtt="correlation_data", amqp="correlation_id",
    ),
    Field("expires_ms", headers.EXPIRY, "time_ms", mqtt="message_expiry", amqp="expiration"),
    Field("payload_format", headers.PAYLOAD_FORMAT, "number", mqtt="payload_format", most=1),
    Field("message_id", headers.MESSAGE_ID, "text", amqp="message_id"),
    Field("type", headers.TYPE, "text", amqp="type"),
    Field("user_id", headers.USER_ID, "text", amqp="user_id"),
    Field("app_id", headers.APP_ID, "text", amqp="app_id"),
    Field("cluster_id", headers.CLUSTER_ID, "text", amqp="cluster_id"),
    Field("priority", headers.PRIORITY, "number", amqp="priority", most=255),
    Field("timestamp", headers.TIMESTAMP, "number", amqp="timestamp", most=2**64 - 1),
)  # fmt: skip
"""Every field that has a header, in the order of the reference page."""
