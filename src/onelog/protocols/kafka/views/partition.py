"""One partition of a view: what Fetch, ListOffsets and waiters see of the partition behind it.

Rules (V1 to V9 of the reference page):
- Offsets are the source's. It begins where the source begins. It ends behind the last match when
  that is cheap to know (one exact topic), otherwise at the source's last stable offset.
- Readers of all records and of committed records see the same: committed records.
- A look that takes long goes on in a thread (`Fetched.rest`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from onelog.base.errors import OffsetOutOfRange, OnelogError, PartitionStopped, again
from onelog.base.ids import Offset, TimestampMs
from onelog.broker import Appended, Broker, Callback, Ends, PartitionHandle, Principal, Waiter
from onelog.kernel import BatchInfo, TopicFilter
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.nodes import is_led_here
from onelog.protocols.kafka.opening import TimeBounds
from onelog.protocols.kafka.readers import check_not_ahead
from onelog.protocols.kafka.topics import NO_ABORTED, NOTHING, Fetched
from onelog.protocols.kafka.views.cache import FindingCache
from onelog.protocols.kafka.views.ends import TopicEnd
from onelog.protocols.kafka.views.filler import build_filler
from onelog.protocols.kafka.views.looking import RUN_BYTES, Damaged, Glass, Look
from onelog.protocols.kafka.views.news import News
from onelog.protocols.kafka.views.places import ShownPartition
from onelog.protocols.kafka.views.writing import Writer, refuse_filter

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer


class ViewPartition:
    """What one partition shows of a topic or filter."""

    __slots__ = ("_end", "_glass", "_news", "_writer", "log", "number", "place")

    def __init__(
        self,
        broker: Broker,
        number: int,
        place: ShownPartition,
        wanted: TopicFilter,
        cache: FindingCache,
        news: News,
    ) -> None:
        self.number = number
        self.place = place
        self.log = place.log
        self._glass = Glass(place, wanted, cache)
        self._news = news
        self._end = TopicEnd(self._glass) if wanted.exact else None
        self._writer = Writer(broker, place, wanted.filter.decode()) if wanted.exact else None

    # -- writing

    @property
    def needs_keys(self) -> bool:
        """Whether every record must have a key, because the stream is compacted."""
        return self.place.stream.config.cleanup.compacts

    @property
    def opens(self) -> bool:
        """Whether every batch has to be opened; batches to a view are inflated anyway."""
        return False

    @property
    def time_bounds(self) -> TimeBounds | None:
        """The allowed times of records: a stream with many topics has no such bounds."""
        return None

    def append(
        self, data: Buffer, info: BatchInfo, principal: Principal
    ) -> tuple[Appended, PartitionHandle]:
        """Append one checked batch, now. Returns where it lies. Raises OnelogError."""
        if self._writer is None:
            raise refuse_filter(self._glass.wanted.filter.decode())
        return self._writer.append(data, info, principal)

    def unpack(
        self, data: Buffer, info: BatchInfo, records: bytes | None
    ) -> tuple[Buffer, BatchInfo]:
        """In a thread: a compressed batch with these records, in the form to append."""
        if self._writer is None:
            raise refuse_filter(self._glass.wanted.filter.decode())
        return self._writer.unpack(data, info, records)

    # -- where it begins and ends

    def ends(self) -> Ends:
        """Where it begins and ends; all readers see the same."""
        ends = self.log.ends()
        end = ends.stable if self._end is None else Offset(self._end.get())
        return Ends(ends.start, end, end)

    async def settle(self) -> None:
        """Wait for what is cold of what `ends` needs."""
        if self._end is not None:
            await self._end.settle()

    def end(self, *, committed: bool = True) -> int:
        """The end for all readers."""
        del committed
        return self.log.last_stable_offset if self._end is None else self._end.get()

    async def offset_for_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """Where the source reaches this time; None: no record of the view follows."""
        found = await self.log.find_time(timestamp_ms)
        return found if found is not None and found[0] < self.end() else None

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """Refused: only a look at everything could find it."""
        raise KafkaError(
            ErrorCode.unsupported_for_message_format,
            "a view does not know its greatest timestamp; ask for the end, or for a time",
        )

    # -- reading

    def fetch(self, offset: int, max_bytes: int, committed: bool) -> Fetched:
        """Batches that show the view from `offset` on; with a `rest` when the look is not over."""
        del committed  # all readers see committed records
        if self.log.stopped is not None:
            raise again(self.log.stopped)
        if self.log.high_watermark < offset <= self.log.end_offset and is_led_here(self.log):
            return NOTHING  # a leader of a moment: it will be seen again
        look = Look(self._glass, self._check_range(offset), max_bytes)
        try:
            look.go_on(RUN_BYTES, on_loop=True)
        except (Damaged, PartitionStopped) as error:
            raise self._stop(error) from error
        found = self._fetched(look)
        if not look.is_over:
            found.rest = _Rest(self, look)
        return found

    def _check_range(self, offset: int) -> int:
        """The offset to look from."""
        start, end, _visible = self.log.ends()
        if start <= offset <= end:
            return offset
        if self._end is not None and offset < start and self._end.has_none_between(offset, start):
            return start  # the removed records were of other topics
        if offset > end:
            check_not_ahead(self.log, offset)
        raise OffsetOutOfRange(
            f"offset {offset} of {self.log.stream}/{self.log.id} is not in {start} to {end}"
        )

    def _stop(self, error: Damaged | PartitionStopped) -> OnelogError:
        """Damage, or a failed storage, stops the partition for everybody."""
        if isinstance(error, Damaged):
            return self.log.stop_damaged(error.offset, error.error)
        self.log.stop(error)
        return error

    def _fetched(self, look: Look) -> Fetched:
        found = Fetched(look.pieces, look.size_bytes, NO_ABORTED, look.reached)
        if not look.pieces:
            found.filler = partial(self._fill, min(look.reached, self.end()))
        return found

    def _fill(self, end: int, start: int) -> bytes:
        """The batch that leads from `start` to `end`; empty when that is no step forward."""
        if end <= start:
            return b""
        return build_filler(start, end, self.log.epoch_at(start))

    def when_news(self, offset: int, *, committed: bool, callback: Callback) -> Waiter | None:
        """Call back once there may be something at `offset` or behind it."""
        del committed
        return self._news.wait(self.place, self._glass.wanted.filter, offset, callback)


class _Rest:
    """A look that goes on in a thread."""

    __slots__ = ("_failure", "_look", "_view")

    def __init__(self, view: ViewPartition, look: Look) -> None:
        self._view = view
        self._look = look
        self._failure: Damaged | OnelogError | None = None

    def go_on(self, scan_bytes: int, max_bytes: int) -> int:
        """In a thread: look at up to `scan_bytes` more. Returns how many bytes it has found by
        now."""
        look = self._look
        look.narrow(max_bytes)
        try:
            look.go_on(scan_bytes)
        except (Damaged, OnelogError) as error:
            self._failure = error
        return look.size_bytes

    def fetched(self) -> Fetched:
        """On the loop: the records that it found. Raises OnelogError."""
        failure = self._failure
        if isinstance(failure, Damaged | PartitionStopped):
            raise self._view._stop(failure) from failure
        if failure is not None:
            raise failure
        return self._view._fetched(self._look)
