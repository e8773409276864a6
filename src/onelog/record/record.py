"""A record as readers see it, and a message as writers hand it over."""

from __future__ import annotations

import msgspec

from onelog.base.ids import Offset, TimestampMs
from onelog.record.headers import Headers, application_headers


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a writer publishes. `key` None means: the topic is the key, as for MQTT and NATS.

    A writer that wants a record without a key in the log says so with `keyless`.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = -1
    keyless: bool = False


class Record(msgspec.Struct, frozen=True, gc=False):
    """What a reader gets: the record, its topic and where it lies."""

    stream: str
    partition: int
    offset: Offset
    topic: str
    timestamp_ms: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: Headers

    def application_headers(self) -> Headers:
        """The headers that the application wrote, without those that OneLog added."""
        return application_headers(self.headers)
