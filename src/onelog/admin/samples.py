"""The numbers of every stream for a scrape, taken from the same view as the API.

Rule: labels are stream names, which an operator or a topic creation chose and limits bound; never
cursor or client names, which any peer may choose.
"""

from __future__ import annotations

from collections.abc import Iterator

from onelog.admin.contract import PAGE_MAX, StreamInfo
from onelog.admin.view import AdminView
from onelog.broker import Broker
from onelog.observe import Sample


def stream_samples(broker: AdminView | None) -> Iterator[Sample]:
    """Streams, their partitions, records and bytes; nothing while the broker is not open."""
    if broker is None:
        return
    count = 0
    for stream in _every_stream(broker):
        count += 1
        labels = (("stream", stream.name),)
        yield Sample(
            "onelog_stream_partitions",
            "Partitions of a stream.",
            "gauge",
            stream.partitions,
            labels,
        )
        yield Sample(
            "onelog_stream_size_bytes",
            "Bytes that a stream holds.",
            "gauge",
            stream.size_bytes,
            labels,
        )
        yield Sample(
            "onelog_stream_records",
            "Offsets between start and end of a stream.",
            "gauge",
            stream.records,
            labels,
        )
    yield Sample("onelog_streams", "Streams that exist.", "gauge", count)


def _every_stream(broker: AdminView) -> Iterator[StreamInfo]:
    after = ""
    while page := broker.streams(after, PAGE_MAX):
        yield from page
        after = page[-1].name


def broker_samples(broker: Broker) -> Iterator[Sample]:
    """What the broker did since it started, and what it holds now."""
    counters, shared = broker.maintenance.counters, broker.streams.shared
    letters = broker.cursors.dead_letters
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
    )
    for name, text, value in totals:
        yield Sample(name, text, "counter", value)
    now = (
        ("onelog_cursors_open", "Cursors open.", len(broker.cursors.open_cursors())),
        ("onelog_sessions_attached", "Sessions attached.", len(broker.sessions)),
        ("onelog_disk_full", "1 while writes find no room.", int(shared.room.is_full)),
        ("onelog_feed_held_bytes", "Bytes that wait for a sync.", shared.unseen.held),
        ("onelog_partitions_stopped", "Stopped partitions.", len(broker.stopped_partitions())),
    )
    for name, text, value in now:
        yield Sample(name, text, "gauge", value)
