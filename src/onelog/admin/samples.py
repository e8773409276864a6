"""The numbers of streams and of the broker for a scrape.

Rules: labels are stream names, never cursor or client names. A client that may create topics
chooses names of streams, too: so at most `METRIC_STREAMS_MAX` of them are labels. A stream that the
caller may not see is no label.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

from onelog.base.clock import SystemClock
from onelog.base.limits import METRIC_STREAMS_MAX
from onelog.broker import Broker, Stream
from onelog.observe import Sample
from onelog.observe.metrics import Pause, next_pass

REST: Final = "~rest"
"""The label of all other streams together. No stream can have this name: `~` is the broker's."""
_CLOCK: Final = SystemClock()
_AT_ONCE: Final = 10
"""Streams that a scrape looks at before it asks whether others are to have a turn."""


class StreamNumbers(NamedTuple):
    """What a scrape says of a stream."""

    size_bytes: int
    records: int
    partitions: int
    tiers: int = 0
    """1: it has a tier."""
    cold_bytes: int = 0
    lag_bytes: int = 0
    lag_age_ms: int = 0
    hits: int = 0
    """Cold reads that the cache answered."""
    misses: int = 0
    """Cold reads that waited for the store."""


class StreamSamples:
    """Partitions, bytes and records of streams, each time it is called.

    With more than `METRIC_STREAMS_MAX` streams the largest have lines of their own. A stream keeps
    its lines until it is deleted, so that time series do not come and go with the sizes.
    """

    def __init__(
        self,
        streams: Callable[[], list[Stream]],
        pause: Pause = next_pass,
        now_ms: Callable[[], int] = _CLOCK.now_ms,
    ) -> None:
        self._streams = streams
        self._now_ms = now_ms
        self._pause = pause
        self._own: set[str] = set()
        """Streams that have lines of their own."""

    async def __call__(self, sees: Callable[[Stream], bool] | None = None) -> AsyncIterator[Sample]:
        """Samples of every stream, or of the largest and of the rest together.

        Streams that a caller does not see count to the rest; None: it sees all.
        """
        rows: list[tuple[StreamNumbers, str]] = []
        hidden: set[str] = set()
        for stream in self._streams():
            rows.append((_numbers(stream, self._now_ms()), stream.name))
            if sees is not None and not sees(stream):
                hidden.add(stream.name)
            if len(rows) % _AT_ONCE == 0:
                await self._pause()
        if not rows:
            return  # the broker is not open
        yield Sample("onelog_streams", "Streams that exist.", "gauge", len(rows))
        for place, (found, name) in enumerate(_without(self._shown(rows), hidden)):
            for sample in _samples_of(name, found):
                yield sample
            if place % _AT_ONCE == 0:
                await self._pause()

    def _shown(self, rows: list[tuple[StreamNumbers, str]]) -> list[tuple[StreamNumbers, str]]:
        """The rows of a scrape. A stream that has lines keeps them; the largest of the others get
        the room that is left; the last row is the sum of the rest."""
        self._own &= {name for _found, name in rows}
        fresh = [row for row in rows if row[1] not in self._own]
        room = METRIC_STREAMS_MAX - len(self._own)
        rest: list[StreamNumbers] = []
        if len(fresh) > room:
            fresh.sort(reverse=True)
            rest = [found for found, _name in fresh[room:]]
        self._own.update(name for _found, name in fresh[:room])
        shown = [row for row in rows if row[1] in self._own]
        if rest:
            shown.append((_sum(rest), REST))
        return shown


def _without(
    rows: list[tuple[StreamNumbers, str]], hidden: set[str]
) -> list[tuple[StreamNumbers, str]]:
    """The rows of a scrape for a caller who does not see all: hidden streams are in the rest."""
    if not hidden:
        return rows
    rest = [found for found, name in rows if name in hidden or name == REST]
    shown = [row for row in rows if row[1] not in hidden and row[1] != REST]
    return [*shown, (_sum(rest), REST)] if rest else shown


def _sum(rows: list[StreamNumbers]) -> StreamNumbers:
    sums = StreamNumbers(*map(sum, zip(*rows, strict=True)))
    return sums._replace(lag_age_ms=max(row.lag_age_ms for row in rows))


def _numbers(stream: Stream, now_ms: int) -> StreamNumbers:
    found = StreamNumbers(stream.size_bytes, stream.record_count, len(stream.partitions))
    statuses = [one for row in stream.partitions if (one := row.tier_status()) is not None]
    cold_bytes = sum(status.cold_bytes for status in statuses)
    if not stream.config.tier.is_on and not cold_bytes:
        return found
    lags = [lag for row in stream.partitions if (lag := row.tier_lag()).bytes]
    oldest_ms = min((lag.oldest_ms for lag in lags), default=now_ms)
    return found._replace(
        tiers=1,
        cold_bytes=cold_bytes,
        lag_bytes=sum(lag.bytes for lag in lags),
        lag_age_ms=max(0, now_ms - oldest_ms),
        hits=sum(status.hits for status in statuses),
        misses=sum(status.misses for status in statuses),
    )


def _samples_of(name: str, found: StreamNumbers) -> Iterator[Sample]:
    labels = (("stream", name),)
    rows: list[tuple[str, str, float]] = [
        ("stream_partitions", "Partitions of a stream.", found.partitions),
        ("stream_size_bytes", "Bytes that a stream holds.", found.size_bytes),
        ("stream_records", "Offsets between start and end of a stream.", found.records),
    ]
    if found.tiers:
        rows += [
            ("tier_cold_bytes", "Bytes of a stream in the object store.", found.cold_bytes),
            ("tier_lag_bytes", "Sealed bytes that are not in the store.", found.lag_bytes),
            (
                "tier_lag_seconds",
                "Age of the oldest sealed byte that is not in the store.",
                found.lag_age_ms / 1000,
            ),
        ]
    for short, about, value in rows:
        yield Sample(f"onelog_{short}", about, "gauge", value, labels)
    if found.tiers:
        for short, about, value in (
            ("hits", "Cold reads that the cache answered.", found.hits),
            ("misses", "Cold reads that waited for the store.", found.misses),
        ):
            yield Sample(f"onelog_tier_cold_{short}_total", about, "counter", value, labels)


def broker_samples(broker: Broker) -> Iterator[Sample]:
    """What the broker did since it started, and what it holds now."""
    counters, shared = broker.maintenance.counters, broker.streams.shared
    letters, tiers = broker.cursors.dead_letters, broker.maintenance.tiering.counters
    totals = (
        ("onelog_messages_published_total", "Messages published.", broker.publisher.messages),
        ("onelog_publish_ticks_total", "Loop passes that wrote.", broker.publisher.ticks),
        ("onelog_syncs_total", "Group commits.", broker.syncs()),
        ("onelog_dead_letters_total", "Records given up by queues.", letters.written),
        ("onelog_session_takeovers_total", "Sessions taken over.", broker.sessions.takeovers),
        ("onelog_segments_deleted_total", "Segments deleted.", counters.segments_deleted),
        ("onelog_bytes_deleted_total", "Bytes deleted by retention.", counters.bytes_deleted),
        ("onelog_compactions_total", "Partitions compacted.", counters.compactions),
        (
            "onelog_bytes_thinned_total",
            "Bytes freed beside what is needed.",
            counters.bytes_thinned,
        ),
        ("onelog_maintenance_errors_total", "Maintenance that failed.", counters.errors),
        (
            "onelog_appends_refused_total",
            "Writes refused because the disk was full.",
            shared.room.refusals,
        ),
        (
            "onelog_torn_tails_total",
            "Partitions whose end was cut when they were opened.",
            shared.torn_tails,
        ),
        ("onelog_torn_bytes_total", "Bytes of torn tails that were cut.", shared.torn_bytes),
        (
            "onelog_feed_overflows_total",
            "Times that batches waiting for the disk were dropped from memory, to be read back.",
            shared.unseen.overflows,
        ),
        ("onelog_pin_alarms_total", "Times that cursors lost pinned records.", counters.alarms),
        ("onelog_tier_pieces_total", "Pieces copied to the object store.", tiers.pieces),
        ("onelog_tier_bytes_total", "Bytes of the log copied to the store.", tiers.bytes),
        ("onelog_tier_objects_deleted_total", "Objects of tiers deleted.", tiers.objects_deleted),
        ("onelog_tier_errors_total", "Work of tiers that failed.", tiers.errors),
    )
    for name, text, value in totals:
        yield Sample(name, text, "counter", value)
    now = (
        ("onelog_cursors_open", "Cursors open.", len(broker.cursors.open_cursors())),
        ("onelog_sessions_attached", "Sessions attached.", len(broker.sessions)),
        ("onelog_disk_full", "1 while writes find no room.", int(shared.room.is_full)),
        ("onelog_feed_held_bytes", "Bytes that wait for a sync.", shared.unseen.held),
        ("onelog_partitions_stopped", "Stopped partitions.", len(broker.stopped_partitions())),
        ("onelog_backup_running", "1 while a backup is made.", int(broker.backups.is_running)),
        (
            "onelog_backup_last_success_seconds",
            "When the last backup since the start was done, as a Unix time; 0: none was.",
            broker.backups.last_success_ms // 1000,
        ),
        (
            "onelog_tier_last_success_seconds",
            "When the store last answered a tier, as a Unix time; 0: none was moved.",
            tiers.last_success_ms // 1000,
        ),
    )
    for name, text, value in now:
        yield Sample(name, text, "gauge", value)
