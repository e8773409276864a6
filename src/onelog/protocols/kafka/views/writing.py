"""Writing through a view: a Kafka producer's batch goes to where its topic lives.

Rules:
- Only a view of one exact topic accepts records: a filter names no topic. They go to the current
  home of the topic, even when they were sent to a partition of an earlier home (I5): a client that
  does not know yet that the topic moved loses nothing.
- The records carry their topic, as all records of a stream with many topics do. The batch is stored
  inflated.
- A retry is not appended twice. A producer counts its batches per topic, but several topics share a
  log. So the log knows it as another producer for each topic, for each partition that it sends to,
  and after each move: its id derives from these, and lies above the ids that clients get. A batch
  that was written before the topic moved counts as a repeat after it, too.
- A transaction cannot write here: its markers would name the producer by the client's id.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from onelog.base.names import to_dotted
from onelog.broker import Appended, Broker, PartitionHandle, Principal, Stream
from onelog.kernel import ATTR_TRANSACTIONAL, BatchInfo, scan_batches, tag_batch
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.views.places import ShownPartition, shown_partitions

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

ID_SPACE: Final = 1 << 62
"""Producer ids from here on belong to producers that write through views."""


def producer_of(producer_id: int, topic: bytes) -> int:
    """The id in the log of a client's producer that writes this topic."""
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


class _Home(NamedTuple):
    """The home of a topic, and the ids of a producer there and in earlier homes."""

    generation: int
    stream: Stream
    log: PartitionHandle
    alias: bytes
    """What a producer's id derives from, beside the client's own id."""
    earlier: tuple[tuple[PartitionHandle, bytes], ...]
    """Where else a batch may have been written already, and under which id."""


class Writer:
    """Writes to the home of one exact topic."""

    __slots__ = ("_broker", "_home", "_place", "_topic")

    def __init__(self, broker: Broker, place: ShownPartition, topic: str) -> None:
        self._broker = broker
        self._place = place
        self._topic = topic
        self._home: _Home | None = None

    def unpack(
        self, data: Buffer, info: BatchInfo, records: bytes | None
    ) -> tuple[Buffer, BatchInfo]:
        """In a thread: a compressed batch, inflated."""
        plain = tag_batch(data, self._topic.encode(), info.producer_id, records)
        return plain, scan_batches(plain, 0, False)[0]

    def append(
        self, data: Buffer, info: BatchInfo, principal: Principal
    ) -> tuple[Appended, PartitionHandle]:
        """Append one checked and uncompressed batch, now. Returns where it lies.

        Raises OnelogError.
        """
        home = self._home
        if home is None or home.generation != self._broker.streams.resolver.generation:
            home = self._home = self._find_home()
        stream = home.stream
        if not stream.tags_topics:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"{self._topic!r} has a topic of its own: send to {to_dotted(self._topic)}",
            )
        if info.attributes & ATTR_TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"a transaction cannot write to {self._topic!r}, which shares the stream"
                f" {stream.name} with other topics; create the topic with a stream of its own",
            )
        if info.producer_id >= 0:
            for log, alias in home.earlier:
                repeated = log.find_repeated(info, producer_of(info.producer_id, alias))
                if repeated is not None:
                    return repeated, log
        topic = self._topic.encode()
        tagged = bytearray(tag_batch(data, topic, producer_of(info.producer_id, home.alias)))
        made = scan_batches(tagged, 0, False)[0]
        appended = self._broker.publisher.publish_batch(
            stream, home.log, tagged, made, principal=principal, topic=self._topic
        )
        return appended, home.log

    def _find_home(self) -> _Home:
        streams, topic = self._broker.streams, self._topic.encode()
        stream = streams.home(self._topic)
        log = stream.partition_of(topic)
        here = self._aliases(stream, log)
        earlier = [(log, alias) for alias in here[:-1]]
        for place in shown_partitions(self._broker, self._topic):
            if place.log is not log:
                earlier += ((place.log, alias) for alias in self._aliases(*place))
        generation = streams.resolver.generation
        return _Home(generation, stream, log, here[-1], tuple(reversed(earlier)))

    def _aliases(self, stream: Stream, log: PartitionHandle) -> list[bytes]:
        """The aliases of producers that sent to this partition of the view, in order.

        If a topic comes back to an earlier home, the producers there have counted on since: so
        every move makes another producer.
        """
        own = b"" if log is self._place.log else b" %s %d" % _encoded(self._place.key)
        base = self._topic.encode() + own
        ends = (move.end_of(log.id) for move in stream.record.moves)
        return [base, *(base + b" %d" % end for end in dict.fromkeys(ends))]


def _encoded(key: tuple[str, int]) -> tuple[bytes, int]:
    return key[0].encode(), key[1]
