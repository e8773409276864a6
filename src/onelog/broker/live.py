"""The live feed: every record that becomes visible, once, to the protocols that follow the end.

Rules:
- A protocol gets whole batches as they were appended, in the same pass of the loop, without reading
  the log back. It answers how far it came. Batches that it leaves (compressed, transactional,
  control) are read from the log, and their records are handed over when they are decided.
- The log is read in pieces: after `PIECES_PER_PASS` of them, the rest waits for the next pass, so
  that a transaction of a million records holds nobody up. Decided batches are made plain and handed
  over as batches (`live_batches.py`); what a listener leaves of those comes record by record.
- `position` of a source is the next offset that the live feed hands out. A subscriber that stops
  following remembers it and reads the log from there; a subscriber that has read up to it may
  follow again. Between the position and batches that begin after it there is a gap, which is read
  from the log.
- A listener that raises is isolated. The rest is handed over from the log, record by record if need
  be. A record that raises even alone is left out and reported to `Troubles`, and the next one
  comes. No other listener, publisher or partition is affected.
- A stream that took over topics is held until the records of its old homes have been handed out,
  which may become visible later (`log/moves.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from onelog.base.clock import Clock
from onelog.base.errors import InvalidRequest, OnelogError
from onelog.base.ids import Offset
from onelog.broker.live_batches import read_plain
from onelog.broker.live_sources import NUMBERS_MAX, LiveSource, Numbers
from onelog.cursors.reader import read_records
from onelog.cursors.sources import Everything
from onelog.kernel import QueueFeed, Unconcerned, scan_batches
from onelog.log.catalog import Catalog
from onelog.log.handle import Cold, PartitionHandle
from onelog.log.moves import Move
from onelog.log.stream import Stream
from onelog.observe.troubles import Troubles
from onelog.record.record import Record

__all__ = ["Live", "LiveListener", "LiveSource"]

ROWS_PER_READ: Final = 1_000
PIECES_PER_PASS: Final = 2
"""Reads of the log for one source, before others have their turn."""
LISTENER: Final = "live-listener"
"""Incidents: a listener raised."""
READING: Final = "live-reading"
"""Incidents: a batch could not be read back from the log."""
TOO_MANY: Final = "live-sources"
"""Standing: there are more partitions than can be followed."""


class LiveListener(Protocol):
    """A protocol that follows the end.

    When `deliver` or `deliver_records` raises, everything below `source.position` is handed out and
    nothing from it on. A listener that stops between two records sets the position first.
    """

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Take batches from `source.position` on. Returns the offset that it reached."""
        ...

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Take committed records that `deliver` left."""
        ...

    def release(self, numbers: set[int]) -> set[int]:
        """Forget the numbers of partitions that are gone. Returns the numbers it still holds places
        of."""
        ...


class Live:
    """All partitions that are followed, and their listener."""

    def __init__(
        self,
        catalog: Catalog,
        troubles: Troubles,
        owner: str,
        clock: Clock,
        call_soon: Callable[..., asyncio.Handle],
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._call_soon = call_soon
        self._troubles = troubles
        self._owner = owner
        self.listener: LiveListener | None = None
        """Hears of every batch; None: nobody does (yet, or any more)."""
        self._fanout: Any = None
        self._unconcerned: Unconcerned | None = None
        self._queue_feed: QueueFeed | None = None
        self._sources: dict[tuple[str, int], LiveSource] = {}
        self._by_stream: dict[str, list[LiveSource]] = {}
        """The sources by the name of their stream, because a change names the streams that
        changed."""
        self._left_out: dict[str, int] = {}
        """Stream → how many of its partitions have no number."""
        self._numbers = Numbers(self._release_numbers)
        self._known: set[str] = set()
        """Ids of internal streams that have numbers, too."""
        self._held: list[LiveSource] = []
        """Sources that are held; always the same list."""
        self._stumbles = 0
        """Records that a listener could not take."""
        self._waits = False
        """Whether the listener is not ready yet: positions stay where they are."""

    @property
    def keys(self) -> list[tuple[str, int]]:
        """The key of a cursor's position, by the number of the source."""
        return self._numbers.keys

    def start(
        self,
        listener: LiveListener,
        *,
        fanout: Any = None,
        unconcerned: Unconcerned | None = None,
        queue_feed: QueueFeed | None = None,
        waits: bool = False,
    ) -> None:
        """Let a protocol follow every partition from now on, also those of later streams.

        The kernel may give batches to `fanout` instead of `deliver`; it tells `handed_out` what
        that left. `unconcerned` lets the kernel pass over partitions (`FeedSource`), and
        `queue_feed` stands in for `deliver` where the listener says so. With `waits`, batches are
        handed over from `go` on.
        """
        assert self.listener is None, "a second listener has a Live of its own"
        self.listener = listener
        self._fanout, self._unconcerned, self._queue_feed = fanout, unconcerned, queue_feed
        self._waits = waits
        self._catalog.on_change.append(self._streams_changed)
        self._look(self._catalog.streams())

    def go(self) -> None:
        """The listener is ready: hand out what became visible since it started, then follow."""
        self._waits = False
        for source in self.sources():
            if not source.is_anew and source.position < source.partition.high_watermark:
                self._read_on(source)

    def stop(self) -> None:
        """Hand out nothing more, and forget everything. Another listener may `start`."""
        if self.listener is None:
            return
        self.listener = None
        self._catalog.on_change.remove(self._streams_changed)
        for source in self._sources.values():
            source.leave()
        self._sources.clear()
        self._by_stream.clear()
        self._left_out.clear()
        self._numbers = Numbers(self._release_numbers)
        self._known.clear()
        self._held.clear()

    def know(self, stream: Stream) -> None:
        """Give an internal stream numbers, so that its records can be in flight. It is not
        followed."""
        self._known.add(stream.record.id)
        if self.listener is not None:
            self._look([stream])

    # -- which partitions

    def _streams_changed(self) -> None:
        names = self._catalog.changed | self._left_out.keys()
        found = [(name, self._catalog.find(name)) for name in names]
        for name, stream in found:
            self._drop_gone(name, stream)
        self._look([stream for _name, stream in found if stream is not None])

    def _drop_gone(self, name: str, stream: Stream | None) -> None:
        """Leave the partitions of a stream that is gone, or that another stream of its name
        replaced."""
        self._left_out.pop(name, None)
        for source in tuple(self._by_stream.get(name, ())):
            if stream is None or source.stream.record.id != stream.record.id:
                self._by_stream[name].remove(source)
                del self._sources[source.key]
                source.leave()
                self._numbers.remove(source)
        if not self._by_stream.get(name):
            self._by_stream.pop(name, None)

    def _look(self, streams: Sequence[Stream]) -> None:
        """Follow the partitions of new streams, and find which sources come before theirs."""
        for stream in streams:
            self._left_out.pop(stream.name, None)
            if stream.is_hidden and stream.record.id not in self._known:
                continue
            for partition in stream.partitions:
                self._take_up(stream, partition)
        near = [source for row in streams for source in self._by_stream.get(row.name, ())]
        looked = dict.fromkeys((*self._held, *near))
        self._held[:] = [row for row in looked if row.is_followed and self._hold(row)]
        self._tell_left_out()

    def _take_up(self, stream: Stream, partition: PartitionHandle) -> None:
        key = (stream.record.id, int(partition.id))
        source = self._sources.get(key)
        if source is not None:
            if source.partition is not partition:
                source.exchange(partition)
            return
        source = self._numbers.add(stream, partition)
        if source is None:
            self._left_out[stream.name] = self._left_out.get(stream.name, 0) + 1
            return
        source.live, source.held_back, source.clock = self, self._held, self._clock
        source.fanout, source.unconcerned = self._fanout, self._unconcerned
        source.queue_feed = self._queue_feed
        self._sources[key] = source
        self._by_stream.setdefault(stream.name, []).append(source)
        if not stream.is_hidden:
            source.is_followed = True
            partition.follow(source)

    def _tell_left_out(self) -> None:
        count = sum(self._left_out.values())
        if count:
            problem = f"{count} partitions are beyond the {NUMBERS_MAX} that can be followed"
            self._troubles.stand(TOO_MANY, self._owner, problem, blocks=False)
        else:
            self._troubles.clear(TOO_MANY, self._owner)

    def _release_numbers(self, numbers: set[int]) -> set[int]:
        if self.listener is None:
            return set()
        try:
            return self.listener.release(numbers)
        except Exception as error:  # noqa: BLE001  then it may hold all of them
            self._troubles.note(LISTENER, self._owner, error)
            return numbers

    def _hold(self, source: LiveSource) -> bool:
        """Find again which moves come before a source. Returns whether any does."""
        source.held = tuple(move for move in source.stream.record.moves if not self._is_out(move))
        return bool(source.held)

    def _is_out(self, move: Move) -> bool:
        """Whether everything that was written before a move has been handed out."""
        for key, end in move.after:
            old = self._sources.get(key)
            if old is None or old.partition.stopped is not None:
                continue
            if old.position < min(end, old.partition.end_offset):
                return False
        return True

    def _release(self) -> None:
        """Go on with held sources, as far as their old homes have been handed out."""
        for source in [row for row in self._held if not self._hold(row)]:
            if source in self._held:
                self._held.remove(source)
                self._read_on(source)

    def sources(self) -> list[LiveSource]:
        """Every partition that is followed now."""
        return [source for source in self._sources.values() if source.is_followed]

    def source(self, number: int) -> LiveSource:
        """A source by its number, also one that is gone while a listener holds places in it."""
        return self._numbers[number]

    def place_of(self, record: Record) -> tuple[int, int] | None:
        """The source number and offset of a record; None when its stream is gone."""
        stream = self._catalog.find(record.stream)
        source = None if stream is None else self.find((stream.record.id, record.partition))
        return None if source is None else (source.number, record.offset)

    def find(self, key: tuple[str, int]) -> LiveSource | None:
        """A source by stream id and partition; None when it is not followed (any more)."""
        return self._sources.get(key)

    # -- handing out

    def feed(self, source: LiveSource, data: bytes | bytearray) -> None:
        """Batches became visible."""
        listener = self.listener
        first = int.from_bytes(data[:8], "big")
        if source.is_anew:
            source.go_on(first)
        if self._waits:
            return
        if source.held:
            self._release()  # an old home that stopped holds nobody back
            self._read_on(source)
            return
        if listener is None:
            return
        if source.busy:
            source.missed = True
            return
        if source.position != first:
            if source.position < source.partition.high_watermark and source.waiter is None:
                self._read_on(source)
            return  # it waits for a transaction and reads these later, or has read them
        failure = None
        source.busy, source.missed = True, False
        try:
            source.position = listener.deliver(source, data)
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            failure = error
        finally:
            source.busy = False
        self.fed(source, data, failure)

    def fed(self, source: LiveSource, data: bytes | bytearray, failure: Exception | None) -> None:
        """The listener had batches, or raised over them: hand over what it left."""
        if failure is not None:
            self._recover(source, failure)
        # Mostly the position is at the end of the log: that is cheaper to ask first.
        elif source.position < source.partition.end_offset and (
            source.position < source.partition.high_watermark
        ):
            infos = scan_batches(data, 0, False)
            if source.missed or source.position <= infos[-1].last_offset:
                self._read_on(source)
        if self._held:
            self._release()

    def _recover(self, source: LiveSource, failure: Exception) -> None:
        """A listener raised over batches: hand it their records one by one, to find the bad one."""
        position, stumbles = source.position, self._stumbles
        source.singly_until = source.limit
        self._read_on(source)
        if stumbles == self._stumbles:
            self._stumbled(source, failure, position, None)

    def _read_on(self, source: LiveSource) -> None:
        """Hand over decided records from the log until the feed has caught up."""
        if source.busy:
            source.missed = True
            return
        source.busy = True
        pieces = 0
        try:
            while self.listener is not None and source.position < source.limit:
                if pieces == PIECES_PER_PASS:
                    self._read_on_soon(source)
                    return
                pieces += 1
                if not self._read_some(self.listener, source):
                    return
        finally:
            source.busy = False
        if self._held:
            self._release()
        if source.waiter is None and source.is_followed and not source.held:
            self._wait(source)

    def _read_on_soon(self, source: LiveSource) -> None:
        """Go on in the next pass. Until then the source waits, and batches that come do, too."""
        if source.is_followed:
            if source.waiter is not None:
                source.waiter.cancel()
            source.waiter = self._call_soon(self._decided, source, None)

    def _wait(self, source: LiveSource) -> None:
        """Go on when the transaction that holds a source back is decided, if there is one."""
        if source.position < source.partition.high_watermark:
            decided = partial(self._decided, source)
            source.waiter = source.partition.when_stable(Offset(source.position), decided)

    def _decided(self, source: LiveSource, error: OnelogError | None) -> None:
        source.waiter = None
        if error is None or source.may_pass(error):
            self._read_on(source)

    def _read_some(self, listener: LiveListener, source: LiveSource) -> bool:
        """Read and hand over a piece of the log. Returns False when it cannot be read (yet)."""
        try:
            if source.position >= source.singly_until and self._hand_over_plain(listener, source):
                return True
            records, following = self.read(source, source.position, source.limit)
        except Cold as cold:
            if source.waiter is not None:
                source.waiter.cancel()
            source.waiter = source.partition.when_here(cold, partial(self._decided, source))
            return False
        except Exception as error:  # noqa: BLE001  the next batch that comes tries again
            if source.partition.stopped is None:  # a partition that stopped has reported it
                self._note(READING, source, error, source.position, None)
            return False
        try:
            if records:
                listener.deliver_records(source, records)
        except Exception as error:  # noqa: BLE001
            self._hand_over_singly(listener, source, records, error)
        source.position = max(source.position, following)
        return True

    def _hand_over_plain(self, listener: LiveListener, source: LiveSource) -> bool:
        """Hand over decided batches as a listener takes those that just came. Returns False when
        their records have to be read."""
        try:
            found = read_plain(source, source.limit)
        except Cold:
            raise
        except Exception:  # noqa: BLE001  whoever reads the records reports it
            return False
        if found is None:
            return False
        if found.data:
            source.singly_until = found.end
            try:
                source.position = listener.deliver(source, found.data)
            except Exception:  # noqa: BLE001  record by record the one that raises is found
                return False
            if source.position < found.end:
                return False
        source.position = max(source.position, found.following)
        return True

    def _hand_over_singly(
        self, listener: LiveListener, source: LiveSource, records: list[Record], failure: Exception
    ) -> None:
        """Go on record by record, and leave out those that raise."""
        stumbles, position = self._stumbles, source.position
        for record in records:
            if record.offset < source.position:
                continue
            try:
                listener.deliver_records(source, [record])
            except Exception as error:  # noqa: BLE001
                self._stumbled(source, error, record.offset, record.topic)
            source.position = record.offset + 1
        if stumbles == self._stumbles:
            self._stumbled(source, failure, position, None)

    def read(self, source: LiveSource, position: int, upto: int) -> tuple[list[Record], int]:
        """Committed records of a source, and the position to go on from. May raise Cold.

        A batch that cannot be read is reported and left out; a stopped partition raises.
        """
        wanted = Everything(source.as_source)
        only, start = wanted.sources[0], Offset(position)
        try:
            return read_records(wanted, only, start, ROWS_PER_READ, upto=upto)
        except Cold:
            raise
        except Exception:
            if source.partition.stopped is not None:
                raise
        infos = scan_batches(source.partition.read_now(start, 1), 0, False)
        if not infos:
            raise InvalidRequest(f"there is no batch at offset {position}")
        end = min(infos[0].last_offset + 1, upto)
        try:
            return read_records(wanted, only, start, ROWS_PER_READ, upto=end)
        except Cold:
            raise
        except Exception as error:
            if source.partition.stopped is not None:
                raise
            self._note(READING, source, error, position, None)
            return [], end

    def _stumbled(
        self, source: LiveSource, error: Exception, offset: int, topic: str | None
    ) -> None:
        self._stumbles += 1
        self._note(LISTENER, source, error, offset, topic)

    def _note(
        self, kind: str, source: LiveSource, error: Exception, offset: int, topic: str | None
    ) -> None:
        place = f"{self._owner} {source.stream.name}/{source.partition.id}"
        self._troubles.note(kind, place, error, offset=offset, topic=topic)
