"""The fields of a message: what each one means, its reserved header, how its value is written.

The mappings of the protocols and the command line use this table. A protocol that has no word for a
field neither writes nor shows it, and the record keeps it for protocols that have one.
`docs/reference/mapping.md` shows the table with the words of each protocol, and `tests/cross` tests
every cell of it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from onelog.record import headers

Form = Literal["text", "bytes", "number", "topic", "time_ms", "mark"]
"""How the value of a header is written: `number` and `time_ms` decimal, `mark` is `1`."""


class Field(NamedTuple):
    """One fact that is stored with a message."""

    name: str
    header: bytes
    form: Form
    most: int = 0
    """The greatest number that the header may hold."""


FIELDS: Final = (
    Field("qos", headers.QOS, "number", most=2),
    Field("retain", headers.RETAIN, "mark"),
    Field("content_type", headers.CONTENT_TYPE, "text"),
    Field("content_encoding", headers.CONTENT_ENCODING, "text"),
    Field("reply_to", headers.REPLY_TO, "topic"),
    Field("correlation", headers.CORRELATION, "bytes"),
    Field("expires_ms", headers.EXPIRY, "time_ms"),
    Field("payload_format", headers.PAYLOAD_FORMAT, "number", most=1),
    Field("message_id", headers.MESSAGE_ID, "text"),
    Field("type", headers.TYPE, "text"),
    Field("user_id", headers.USER_ID, "text"),
    Field("app_id", headers.APP_ID, "text"),
    Field("cluster_id", headers.CLUSTER_ID, "text"),
    Field("priority", headers.PRIORITY, "number", most=255),
    Field("timestamp", headers.TIMESTAMP, "number", most=2**64 - 1),
)
"""Every field that has a header, in the order of the reference page."""
