"""QoS 2 from a client: published exactly once, also when the broker crashes in between.

Rules (MQTT5 4.3.3):
- A packet id that was received and not released is answered again and not published again.
- It is released after its PUBREC was sent: a PUBREL that comes sooner waits for that.
- Before it appends, a kept session saves what a packet id stands for: partition, producer id and
  sequence. After a crash the partition says whether that was appended. If it was not, the id is
  forgotten, so that the client's next try is published; if it was, the next try is only answered.
- A session that ends with its connection saves nothing.
- Where other nodes lead partitions, nobody here knows what they hold. A packet id whose message may
  have been appended is *in doubt*: when the client sends it again, the message is written again
  with the same sequence, and the leader writes it once. So the client is not told that it failed:
  its connection ends. New messages get a producer id of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base import faults
from onelog.base.errors import OnelogError, OutOfOrderSequence, Timeout
from onelog.base.late_event import LateEvent
from onelog.broker import Home, Message, Notice, PartitionHandle, Stream

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession

Done = Callable[[OnelogError | None], None]

SEQUENCE_MODULUS: Final = 2**31


class Received(msgspec.Struct, array_like=True, frozen=True):
    """A packet id that waits for its release, and the place of its message."""

    packet_id: int
    stream_id: str = ""
    partition: int = 0
    producer_id: int = -1
    sequence: int = 0


class Inbound:
    """The QoS 2 publishes of one session."""

    __slots__ = (
        "_doubtful", "_hub", "_idle", "_is_shared", "_open", "_received", "_saver", "_sequences",
        "_session", "producer_id",
    )  # fmt: skip

    def __init__(self, session: MqttSession) -> None:
        self._session = weakref.ref(session)  # it holds us
        self._hub = session.hub
        self._saver = session.saver
        self._is_shared = session.hub.broker.nodes is not None
        self._received: dict[int, Received] = {}
        self._doubtful: dict[int, Received] = {}
        """Packet ids whose message may have been appended."""
        self._sequences: dict[tuple[str, int], int] = {}
        self._open: set[int] = set()
        """Packet ids whose message is not durable yet."""
        self._idle = LateEvent(is_set=True)
        self.producer_id = -1

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._received

    def __len__(self) -> int:
        return len(self._received) + len(self._doubtful)

    def is_open(self, packet_id: int) -> bool:
        """Whether its message is being written and the answer will come."""
        return packet_id in self._open

    def rows(self) -> list[Received]:
        """The rows to keep."""
        return [*self._received.values(), *self._doubtful.values()]

    def restore(self, rows: Iterable[Received], producer_id: int) -> None:
        """Take over the packet ids of an earlier connection, as far as the log has their
        messages."""
        self.producer_id = -1 if self._is_shared else producer_id
        streams = {s.record.id: s for s in self._hub.broker.streams.streams()}
        for row in rows:
            stream = streams.get(row.stream_id)
            # If the stream was deleted, nobody can tell: the message was deleted with it.
            if row.producer_id < 0 or stream is None:
                self._received[row.packet_id] = row
            elif self._is_shared:
                self._doubtful[row.packet_id] = row
            elif _is_appended(stream, row):
                self._received[row.packet_id] = row

    # -- publishing

    def publish(
        self,
        packet_id: int,
        message: Message,
        home: Home,
        done: Done,
    ) -> None:
        """Append to `home` once. `done` is called when it is durable, or with the error."""
        session = self._session()
        assert session is not None, "only the session itself publishes"
        publisher = self._hub.broker.publisher
        doubtful = self._doubtful.pop(packet_id, None)
        if doubtful is None:
            row = self._row(packet_id, home, is_kept=session.is_kept)
        else:
            row, home = doubtful, self._home_of(doubtful, home)
        self._received[packet_id] = row
        self._open.add(packet_id)
        self._idle.clear()

        def finished(error: OnelogError | None) -> None:
            if doubtful is not None and error is not None:
                error = _still_open(error)
            self._finished(packet_id, error, done)

        def append() -> None:
            faults.hit("mqtt.received_saved")
            try:
                if row.producer_id >= 0:
                    producer = (row.producer_id, 0, row.sequence)
                    publisher.put_once(home, message, producer, finished)
                else:
                    publisher.put(home, message, Notice(finished))
            except OnelogError as error:
                finished(error)

        if session.is_kept:
            # If it cannot be saved, it is not appended: the connection ends, and the client tries
            # again.
            self._saver.then(append, undone=lambda: self._close(packet_id, appended=False))
        else:
            append()

    def _row(self, packet_id: int, home: Home, *, is_kept: bool) -> Received:
        """The place of a new message. It has one if it may have to be written again."""
        stream, partition, _topic = home
        if not is_kept and not self._hub.broker.publisher.is_elsewhere(stream, partition):
            return Received(packet_id)
        key = (stream.record.id, int(partition.id))
        sequence = self._next_sequence(key, partition)
        return Received(packet_id, *key, self.producer_id, sequence)

    def _home_of(self, row: Received, home: Home) -> Home:
        """Where a message was to be written that may be there: its topic may have moved since."""
        streams = self._hub.broker.streams.streams()
        stream = next((one for one in streams if one.record.id == row.stream_id), None)
        if stream is None:  # it was deleted, and the message with it, wherever it was
            return home
        return stream, stream.partition(row.partition), home[2]

    def _finished(self, packet_id: int, error: OnelogError | None, done: Done) -> None:
        faults.hit("mqtt.received_appended")
        row = self._received.get(packet_id)
        self._close(packet_id, appended=error is None)
        if isinstance(error, Timeout) and row is not None and row.producer_id >= 0:
            self._doubtful[packet_id] = row
        done(error)

    def _close(self, packet_id: int, *, appended: bool) -> None:
        self._open.discard(packet_id)
        if not self._open:
            self._idle.set()
        if not appended:
            self._received.pop(packet_id, None)
            self._sequences.clear()  # messages that were not appended are not counted
            if self._is_shared:
                self.producer_id = -1

    def _next_sequence(self, key: tuple[str, int], partition: PartitionHandle) -> int:
        if self.producer_id < 0:
            self.producer_id = self._hub.producer_ids.take()
        sequence = self._sequences.get(key)
        if sequence is None and self._is_shared:
            sequence = 0  # the producer id is new
        elif sequence is None:
            last = partition.last_sequence(self.producer_id)
            sequence = 0 if last is None else last + 1
        if sequence >= SEQUENCE_MODULUS:  # after a wrap, a sequence says nothing of earlier ones
            self.producer_id = self._hub.producer_ids.take()
            self._sequences.clear()
            sequence = 0
        self._sequences[key] = sequence + 1
        return sequence

    def release(self, packet_id: int) -> bool:
        """The client releases the message: its id may be used again. Returns False for an unknown
        id."""
        in_doubt = self._doubtful.pop(packet_id, None)  # the client knows: it has the PUBREC
        return (self._received.pop(packet_id, None) or in_doubt) is not None

    async def finish(self) -> None:
        """Wait until every message that has begun is durable or has failed."""
        await self._saver.finish()
        await self._idle.wait()


def _still_open(error: OnelogError) -> OnelogError:
    """The error for a message that an earlier try may have written."""
    if isinstance(error, OutOfOrderSequence | Timeout):
        return error  # its sequence was never reached
    return Timeout(f"an earlier try may have written the message; this one did not: {error}")


def _is_appended(stream: Stream, row: Received) -> bool:
    last = stream.partition(row.partition).last_sequence(row.producer_id)
    return last is not None and row.sequence <= last
