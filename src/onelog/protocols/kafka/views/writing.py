"""Writing through a view: a Kafka producer's batch goes to where its topic lives.

Rules:
- Only a view of one exact topic takes records: a filter names no topic. They go to where the topic
  lives now, also when they were sent to a partition where it lived before (I5): a client that does
  not know yet that the topic moved loses nothing.
- Records carry their topic then, as all records of a stream with many topics do. The batch is
  stored inflated.
- A retry is not appended twice. One producer counts its batches per topic, but several topics
  share a log, so there it is known as another producer for each topic, and for each partition that
  it sends to: the id follows from these and lies above those that clients are given. What was
  written before the topic moved is a repeat also after it.
- A transaction cannot write here: its markers would name the producer by the client's id.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from onelog.base.ids import Offset
from onelog.base.names import to_kafka
from onelog.broker import Broker, Partition, Principal
from onelog.kernel import ATTR_TRANSACTIONAL, BatchInfo, scan_batches, tag_batch
from onelog.log.partition import Appended
from onelog.log.producers import next_sequence
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

    def append(
        self, data: Buffer, info: BatchInfo, principal: Principal
    ) -> tuple[Appended, Partition]:
        """Append one batch that was checked, and is not compressed, now; where it lies.

        Raises OnelogError.
        """
        topic = self._topic.encode()
        stream = self._broker.streams.home(self._topic)
        if not stream.tags_topics:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"{self._topic!r} has a topic of its own: send to {to_kafka(self._topic)}",
            )
        if info.attributes & ATTR_TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"a transaction cannot write to {self._topic!r}, which shares the stream"
                f" {stream.name} with other topics; create the topic with a stream of its own",
            )
        log, old = stream.partition_of(topic), self._place.log
        producer_id = producer_of(info.producer_id, topic)
        if log is not old:
            repeated = _repeated(old, info._replace(producer_id=producer_id))
            if repeated is not None:
                return repeated, old
            stream_id, number = self._place.key
            producer_id = producer_of(
                info.producer_id, b"%s %s %d" % (topic, stream_id.encode(), number)
            )
        tagged = bytearray(tag_batch(data, topic, producer_id))
        infos = scan_batches(tagged, 0, False)
        appended = self._broker.publisher.append_batches(
            stream, log, tagged, infos, principal=principal, topic=self._topic
        )
        return appended, log


def _repeated(log: Partition, info: BatchInfo) -> Appended | None:
    """The append to an old home that a batch repeats."""
    entry = log.producers.entry(info.producer_id)
    if entry is None or entry.epoch != info.producer_epoch:
        return None
    last = next_sequence(info.base_sequence, info.last_offset - info.base_offset)
    for known in entry.batches:
        if (known.base_sequence, known.last_sequence) == (info.base_sequence, last):
            return Appended(Offset(known.base_offset), Offset(known.last_offset + 1), True)
    return None
