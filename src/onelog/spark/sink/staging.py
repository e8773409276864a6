"""Writes the rows of a task as record batches, in a transaction that stays open.

Rules:
- Rows are already at their final place in the log; no reader sees them before the driver links the
  transaction.
- A task without rows begins nothing. One that fails aborts what it wrote; if it dies instead, the
  next link of its query does, or the transaction's timeout.
- What is held is bounded: a batch of `batch_bytes` for a partition, `HELD_BYTES` for all of them,
  and the request that is on its way while the next one is built.
- A batch that is sent again after a broken connection is known by its sequence number.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from onelog.base import names
from onelog.base.errors import InvalidRequest, OnelogError, TopicNotFound
from onelog.base.topics import is_exact
from onelog.kafka_client import Client, NoTransactions, Part, Produced, Producer, refusal
from onelog.kafka_client.codes import topic_right
from onelog.kernel import ATTR_TRANSACTIONAL, BatchBuilder
from onelog.record.batch import compress_batch
from onelog.spark.sink.columns import Layout, Rows, rows_of
from onelog.spark.sink.linking import Member
from onelog.spark.sink.spreading import spread

if TYPE_CHECKING:
    from onelog.spark.sink.options import SinkOptions

HELD_BYTES: Final = 16 << 20
"""Bytes of all partitions that are held before they are sent."""
_SEQUENCES: Final = 2**31
_UNKNOWN_TOPIC: Final = 3
_TOO_MANY: Final = (
    "a task writes to more partitions than kafka.transactions.partitions of the broker allows;"
    " raise that, or give the rows fewer partitions"
)


class Staging:
    """The transaction of one task."""

    def __init__(self, options: SinkOptions, layout: Layout, transactional_id: str, turn: int):
        self._options = options
        self._layout = layout
        self._id = transactional_id
        self._turn = turn
        """Which partition the next rows without a key go to."""
        self._client = Client(options.access)
        self._producer: Producer | None = None
        self._partitions: dict[str, tuple[str, int]] = {}
        """Per topic as the rows name it: its Kafka name, and how many partitions it has."""
        self._builders: dict[Part, BatchBuilder] = {}
        self._sealed: dict[Part, bytes] = {}
        self._held_bytes = 0
        self._sender = ThreadPoolExecutor(1, "onelog-sink")
        self._sending: Future[dict[Part, Produced]] | None = None
        """The request that is under way: until its answer comes, nothing else uses the client."""
        self._sequences: dict[Part, int] = {}
        self._added: set[Part] = set()

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and self._producer is not None:
            with contextlib.suppress(OnelogError):  # its timeout does it otherwise
                self._settle()
                self._client.end(self._id, self._producer, commit=False)
        self._sender.shutdown()
        self._client.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Stage the rows of an Arrow batch."""
        rows = rows_of(batch, self._layout)
        at = self._layout.partition
        wanted = None if at is None else batch.column(at)
        for topic, places in self._by_topic(batch):
            name, partitions = self._topic(topic)
            some = rows if places is None else rows.take(places)
            asked = wanted if wanted is None or places is None else wanted.take(places)
            chosen = spread(some.keys, asked, partitions, self._turn, topic)
            self._turn += 1
            if isinstance(chosen, int):
                self._append((name, chosen), some)
                continue
            order = np.argsort(chosen, kind="stable")
            ends = np.cumsum(np.bincount(chosen, minlength=partitions)).tolist()
            sorted_rows = some.take(pa.array(order))
            for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if end > first:
                    self._append((name, number), sorted_rows.slice(first, end))

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Any | None]]:
        """Each topic with the places of its rows; None where all rows are its own."""
        if not batch.num_rows:
            return
        if self._layout.topic is None:
            assert self._options.topic is not None, "the columns were checked"
            yield self._options.topic, None
            return
        column = batch.column(self._layout.topic)
        if column.null_count:
            raise InvalidRequest(
                "a row has no topic: its column topic is null; drop such rows, or give the option"
                " topic"
            )
        encoded = column.dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        if len(topics) == 1:
            yield topics[0], None
            return
        codes = encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes)).tolist()
        for topic, first, end in zip(topics, [0, *ends], ends, strict=False):
            yield topic, pa.array(order[first:end])

    def _topic(self, topic: str) -> tuple[str, int]:
        known = self._partitions.get(topic)
        if known is None:
            name = names.to_dotted(topic) if "/" in topic else topic
            (found,) = self._client.topics([name], create=True)
            if found.code == _UNKNOWN_TOPIC:
                raise TopicNotFound(
                    f"there is no topic {topic}, and the broker does not create topics by itself"
                    " (kafka.topics.auto_create); create it first"
                )
            if found.code:
                raise self._client.refusal(
                    found.code, f"topic {topic}", topic_right("publish", name)
                )
            known = self._partitions[topic] = (name, len(found.partitions))
        return known

    # -- batches

    def _append(self, part: Part, rows: Rows) -> None:
        """Hold rows for a partition; what is enough for a batch is sent."""
        ends = np.cumsum(rows.sizes())
        first, now_ms = 0, time.time_ns() // 1_000_000
        builder = self._builders.setdefault(part, BatchBuilder(False))
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            room = self._options.batch_bytes - builder.size_bytes
            end = int(np.searchsorted(ends, before + room, side="right"))
            if end == first and builder.count:
                self._seal(part, builder)
                continue
            end = max(end, first + 1)  # a row that is larger than a batch is one of its own
            rows.stage(builder, first, end, now_ms)
            self._held_bytes += int(ends[end - 1]) - before
            first = end
        if self._held_bytes >= HELD_BYTES:
            self._seal_all()

    def _seal(self, part: Part, builder: BatchBuilder) -> None:
        """Finish the batch of a partition; a request has one for each."""
        if part in self._sealed:
            self._send()
        if self._producer is None:
            self._producer = self._client.init_producer(self._id, self._options.timeout_ms)
        sequence, count, codec = self._sequences.get(part, 0), builder.count, self._options.codec
        batch = builder.seal(0, 0, ATTR_TRANSACTIONAL, *self._producer, sequence)
        self._sealed[part] = compress_batch(batch, codec) if codec else batch
        self._sequences[part] = (sequence + count) % _SEQUENCES

    def _seal_all(self) -> None:
        for part, builder in self._builders.items():
            if builder.count:
                self._seal(part, builder)
        self._send()

    def _send(self) -> None:
        """Let the sealed batches go; the next ones may be built meanwhile."""
        if not self._sealed:
            return
        assert self._producer is not None, "there are batches of it"
        self._settle()
        self._take_part(self._producer)
        self._sending = self._sender.submit(self._client.produce, self._sealed, self._id)
        self._sealed = {}
        self._held_bytes = sum(row.size_bytes for row in self._builders.values() if row.count)

    def _take_part(self, producer: Producer) -> None:
        """Say which partitions the transaction is going to write to."""
        new = self._sealed.keys() - self._added
        if not new:
            return
        try:
            self._client.add_partitions(self._id, producer, new)
        except NoTransactions as error:
            raise InvalidRequest(self._barred(error.parts, new)) from error
        self._added |= new

    def _barred(self, parts: Sequence[Part], asked: Collection[Part]) -> str:
        """Why there can be no transaction in partitions, and what to do."""
        kafka_name = parts[0][0]
        topic = next(row for row, (name, _) in self._partitions.items() if name == kafka_name)
        address = names.from_dotted(kafka_name)
        if not is_exact(address):
            return f"topic {topic}: it is a filter, and rows are written to topics: name one"
        if any(name == kafka_name for name, _ in self._added):
            return f"topic {topic}: {_TOO_MANY}"
        # All of a request are refused when they are too many, too.
        many = f" If it has one: {_TOO_MANY}" if 1 < len(asked) == len(parts) else ""
        return (
            f"topic {topic} shares its stream with other topics, as every topic that MQTT made"
            " does, and a transaction would hold back their readers: write to a topic that has a"
            " stream of its own. The sink makes one of any topic that nobody has written to yet;"
            f" so does `onelog stream create NAME --capture TOPIC`.{many}"
        )

    def _settle(self) -> None:
        """Wait until what is on its way is durable. Raises OnelogError when it is refused."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        for (topic, number), produced in sending.result().items():
            if produced.code:
                raise refusal(produced.code, f"{topic}-{number}", produced.said)

    def finish(self) -> Member | None:
        """Everything is durable; what the driver links, None when there were no rows."""
        self._seal_all()
        self._settle()
        return None if self._producer is None else Member(self._id, *self._producer)
