"""Appends of one pass of the loop: the batches of all clients for one partition are one write.

Rules:
- A batch is checked when it comes, and written with all others of its partition at the end of the
  pass: no timer, no added latency. Batches of one connection keep their order.
- A write holds at most one batch of an idempotent producer: the next batch can be checked only
  after the first is written. A batch of a transaction is written at once: the end of its
  transaction may come in this same pass.
- An answer goes out when all batches of its request are durable (I4); answers of a pass to one
  client are one write, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError, StorageError, Timeout, Unavailable
from onelog.base.ids import Offset
from onelog.broker import Appended, Callback, PartitionHandle
from onelog.kernel import ATTR_TRANSACTIONAL, BatchInfo
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.nodes import is_led_here
from onelog.protocols.kafka.topics import StreamPartition, TopicPartition
from onelog.record.batch import append_time_of

if TYPE_CHECKING:
    from onelog.broker import Principal
    from onelog.kernel.types import Buffer
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.hub import Hub
    from onelog.protocols.kafka.producing import Produce, Row

    Part = tuple[Produce, list[Row], int]
    """A partition of a request: the slot for its row of the answer."""

RUN_BYTES_MAX: Final = 1024 * 1024
"""Bytes for a partition after which they are written before the pass ends."""

IN_PLACE_BYTES: Final = 32 * 1024
"""A batch of so many bytes in a buffer that nobody else uses is not copied."""

_NO_OFFSET: Final = Offset(-1)


class _PartitionWrite:
    """Batches for one partition that were checked and are not written yet."""

    __slots__ = ("data", "parts", "senders", "target")

    def __init__(self, target: StreamPartition) -> None:
        self.target = target
        self.data: bytearray | memoryview = bytearray()
        self.parts: list[Part] = []
        self.senders: set[int] = set()

    def put(self, data: Buffer) -> None:
        """Add a checked batch. A large one that is alone is written from where it lies."""
        if isinstance(self.data, bytearray):
            if (
                self.data
                or not isinstance(data, memoryview)
                or data.readonly
                or len(data) < IN_PLACE_BYTES
            ):
                self.data += data
            else:
                self.data = data
        else:
            self.data = bytearray().join((self.data, data))


class AnswerLimit:
    """Answers what was appended when its replicas have it, or when the client's time is over.

    A node on its own needs no limit: what it waits for is its own disk.
    """

    __slots__ = ("_done", "_log", "_timer", "_waiter")

    def __init__(
        self, hub: Hub, log: PartitionHandle, parts: list[Part], done: Callback, end: int
    ) -> None:
        self._log = log
        self._done = done
        longest_ms = max(max(produce.timeout_ms, 0) for produce, _rows, _at in parts)
        self._timer = hub.loop.call_later(longest_ms / 1000, self._time_is_over)
        self._waiter = log.when_visible(Offset(end - 1), self._visible)

    def _visible(self, error: OnelogError | None) -> None:
        self._timer.cancel()
        if isinstance(error, Timeout) and not is_led_here(self._log):
            # The client looks for the new leader, which knows whether the batch stayed.
            error = KafkaError(ErrorCode.not_leader_or_follower, str(error))
        self._done(error)

    def _time_is_over(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        log = self._log
        is_short = isinstance(log.refusal, Unavailable)
        why = "too few of its replicas are in sync" if is_short else "its replicas do not have it"
        after = ErrorCode.not_enough_replicas_after_append
        self._done(
            KafkaError(
                after if is_short else ErrorCode.request_timed_out,
                f"a batch was appended to {log.stream}/{log.id}, and {why} within the time that the"
                " producer gives: whether it stays is open",
            )
        )


class Appends:
    """The batches that the connections of a hub bring in a pass."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._runs: dict[PartitionHandle, _PartitionWrite] = {}
        self._ready: dict[Connection, None] = {}
        self._flushing = False
        hub.broker.streams.before_change.append(self._write_all)

    def close(self) -> None:
        """Stop listening for changes."""
        self._hub.broker.streams.before_change.remove(self._write_all)

    def add(
        self,
        part: Part,
        target: TopicPartition,
        data: Buffer,
        info: BatchInfo,
        principal: Principal,
    ) -> None:
        """Take a checked batch. Raises OnelogError when it is refused."""
        if not isinstance(target, StreamPartition) or info.attributes & ATTR_TRANSACTIONAL:
            self._append_alone(part, target, data, info, principal)
            return
        log = target.log
        run = self._runs.get(log)
        if run is not None and info.producer_id in run.senders:
            self._write(self._runs.pop(log))
            run = None
        repeated = target.judge(info, principal)
        if repeated is not None:
            self._place(part, target, repeated)
            self._wait(target.number, log, repeated.end_offset, [part])
            return
        if run is None:
            run = self._runs[log] = _PartitionWrite(target)
            self._flush_soon()
        run.put(data)
        run.parts.append(part)
        if info.producer_id >= 0:
            run.senders.add(info.producer_id)
        if len(run.data) >= RUN_BYTES_MAX:
            self._write(self._runs.pop(log))

    def _append_alone(
        self,
        part: Part,
        target: TopicPartition,
        data: Buffer,
        info: BatchInfo,
        principal: Principal,
    ) -> None:
        run = self._runs.pop(target.log, None)
        if run is not None:
            self._write(run)
        appended, log = target.append(bytearray(data), info._replace(position=0), principal)
        if log is not target.log:  # an offset in another partition would mean nothing here
            appended = appended._replace(base_offset=_NO_OFFSET)
        self._place(part, target, appended)
        self._wait(target.number, log, appended.end_offset, [part])

    # -- the end of a pass

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._hub.loop.call_soon(self._flush)

    def _write_all(self) -> None:
        runs, self._runs = self._runs, {}
        for run in runs.values():
            self._write(run)

    def _flush(self) -> None:
        self._write_all()
        self._flushing = False
        if self._runs:
            self._flush_soon()  # batches that came while this was written
        ready, self._ready = self._ready, {}
        for connection in ready:
            connection.answers_ready()

    def _write(self, run: _PartitionWrite) -> None:
        target, parts = run.target, run.parts
        try:
            placed = target.write(run.data)
        except Exception as error:  # noqa: BLE001 - only their senders get it
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            for produce, rows, at in parts:
                produce.refuse(rows, at, target.number, failure)
                self._settle(produce)
            return
        number, start = target.number, int(target.log.start_offset)
        for index, (_produce, rows, at) in enumerate(parts):
            info = placed[index]
            rows[at] = (number, 0, info.base_offset, append_time_of(info), start, None, ())
        self._wait(number, target.log, placed[-1].last_offset + 1, parts)

    def _place(self, part: Part, target: TopicPartition, appended: Appended) -> None:
        _produce, rows, at = part
        base, time_ms = appended.base_offset, appended.append_time_ms
        rows[at] = (target.number, 0, base, time_ms, int(target.log.start_offset), None, ())

    # -- answers

    def _wait(self, number: int, log: PartitionHandle, end: int, parts: list[Part]) -> None:
        """Settle parts once everything below `end` is durable; those with acks=0 are settled
        now."""
        if end <= log.high_watermark:
            for produce, _rows, _at in parts:
                self._settle(produce)
            return
        waiting = []
        for part in parts:
            if part[0].acks:
                waiting.append(part)
            else:
                self._settle(part[0])
        if waiting:
            if len(self._hub.broker.cluster.nodes()) > 1:
                AnswerLimit(self._hub, log, waiting, self._visible(number, waiting), end)
            else:
                log.when_visible(Offset(end - 1), self._visible(number, waiting))

    def _visible(self, number: int, parts: list[Part]) -> Callback:
        def done(error: OnelogError | None) -> None:
            for produce, rows, at in parts:
                if error is not None:
                    produce.refuse(rows, at, number, error)
                self._settle(produce)

        return done

    def _settle(self, produce: Produce) -> None:
        if produce.settle():
            self._ready[produce.connection] = None
            self._flush_soon()
