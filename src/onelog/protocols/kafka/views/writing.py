"""Writing through a view: a Kafka producer's batch goes to where its topic lives.

Rules:
- Only a view of one exact topic takes records, and only in the partition where the topic lives
  now: a filter names no topic, and an old home takes no more of it (I5).
- Records carry their topic then, as all records of a stream with many topics do. The batch is
  stored inflated.
- A retry is not appended twice. One producer counts its batches per topic, but several topics
  share a log, so there it is known as another producer for each topic: the id follows from both
  and lies above those that clients are given.
- A transaction cannot write here: its markers would name the producer by the client's id.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from onelog.base.names import to_kafka
from onelog.broker import Broker, Principal
from onelog.kernel import ATTR_TRANSACTIONAL, BatchInfo, scan_batches, tag_batch
from onelog.log.partition import Appended
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.views.places import Place

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

ID_SPACE: Final = 1 << 62
"""Producer ids from here on belong to producers that write through views."""


def producer_of(producer_id: int, topic: bytes) -> int:
    """Who a client's producer is in the log, when it writes this topic."""
    if producer_id < 0:
        return producer_id
    text = producer_id.to_bytes(8, "big") + topic
    return ID_SPACE | (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2)


def refuse_filter(text: str) -> KafkaError:
    """The error for records that are sent to a filter."""
    return KafkaError(
        ErrorCode.policy_violation,
        f"the view of {text!r} is read only: send to a topic that it shows",
    )


class Writer:
    """The way into the home of one exact topic."""

    __slots__ = ("_broker", "_place", "_topic")

    def __init__(self, broker: Broker, place: Place, topic: str) -> None:
        self._broker = broker
        self._place = place
        self._topic = topic

    def unpack(
        self, data: Buffer, info: BatchInfo, records: bytes | None
    ) -> tuple[Buffer, BatchInfo]:
        """In a thread: a compressed batch, inflated."""
        plain = tag_batch(data, self._topic.encode(), info.producer_id, records)
        return plain, scan_batches(plain, 0, False)[0]

    def append(self, data: Buffer, info: BatchInfo, principal: Principal) -> Appended:
        """Append one batch that was checked, and is not compressed, now. Raises OnelogError."""
        stream, log = self._place
        topic = self._topic.encode()
        if not stream.tags_topics:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"{self._topic!r} has a topic of its own: send to {to_kafka(self._topic)}",
            )
        home = self._broker.streams.home(self._topic)
        if home is not stream or stream.partition_of(topic) is not log:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"the topic {self._topic!r} lives in another partition by now: send to the last"
                " one of its view",
            )
        if info.attributes & ATTR_TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"a transaction cannot write to {self._topic!r}, which shares the stream"
                f" {stream.name} with other topics; create the topic with a stream of its own",
            )
        tagged = bytearray(tag_batch(data, topic, producer_of(info.producer_id, topic)))
        infos = scan_batches(tagged, 0, False)
        return self._broker.publisher.append_batches(
            stream, log, tagged, infos, principal=principal, topic=self._topic
        )
