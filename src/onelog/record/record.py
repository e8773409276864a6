"""A record as readers see it, and a message as writers hand it over."""

from __future__ import annotations

import msgspec

from onelog.base.ids import Offset, TimestampMs
from onelog.record.headers import Headers, application_headers


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as a writer publishes it. `key` None means: the topic is the key, as for MQTT.

    A writer that wants a record without a key in the log says so with `keyless`.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = -1
    keyless: bool = False


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as a reader gets it: with its topic, partition and offset."""

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
