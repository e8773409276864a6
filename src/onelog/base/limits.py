"""Every bound that no configuration key sets.

The string behind each constant says what it bounds; docs/reference/limits.md lists them.
"""

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one record batch, on disk and on the wire."""

INFLATED_BYTES_MAX = 128 * 1024 * 1024
"""Bytes that one compressed batch may inflate to."""

INFLATED_KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of inflated records that are kept for readers of large compressed batches, up to 5 s. The
newest four batches stay, however large they are."""

RECORDS_PER_BATCH_MAX = 1_000_000
"""Records that one batch may declare."""

HEADERS_PER_RECORD_MAX = 1_000
"""Headers of one record."""

TOPIC_BYTES_MAX = 1_024
"""UTF-8 bytes of a topic or filter."""

TOPIC_LEVELS_MAX = 64
"""Levels of a topic or filter."""

STREAM_NAME_CHARS_MAX = 249
"""Characters of a stream name (Kafka's own limit for a topic name)."""

PARTITIONS_PER_STREAM_MAX = 10_000
"""Partitions of one stream."""

CAPTURES_PER_STREAM_MAX = 10_000
"""Filters that one stream captures."""

MOVES_PER_STREAM_MAX = 100
"""Moves of topics to one stream from streams that still hold records of these topics."""

PARTITIONS_PER_REQUEST_MAX = 100_000
"""Topics and partitions that one Kafka request may name, together."""

ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of a Kafka answer about many topics, groups or transactions, each of which a request may
name many times; further names get POLICY_VIOLATION."""

UNSEEN_BYTES_MAX = 128 * 1024 * 1024
"""Bytes that partitions hold for live readers until they are visible, half of it each at most;
readers get more from the log."""

VIEWS_MAX = 10_000
"""Filters with a friendly name (Kafka views)."""

LIVE_PARTITIONS_MAX = 65_536
"""Partitions that exist at one time and that MQTT and AMQP follow; /health reports any beyond."""

RESERVED_NAMES_BYTES_MAX = 1024 * 1024
"""Bytes of a list of names in a reserved header; a longer list counts as absent."""

CLAIMS_PER_BATCH_MAX = 1_000
"""Different keys, queues, users and clients that the reserved headers of a Kafka producer's batch
name, while there are access rules; a batch with more is refused."""

WITHHELD_MESSAGES_MAX = 1_000
"""Messages of a share group that wait for a member with the right to have them; of more, the oldest
is given up."""

ACCESS_RULES_MAX = 10_000
"""Rules of the access list."""

METRIC_STREAMS_MAX = 1_000
"""Streams that have rows of their own in `/metrics`; all others together are the row `~rest`."""

SPANS_PER_SECOND_MAX = 1_000
"""Spans that the broker makes of messages with a trace, while `tracing.endpoint` is set; further
messages get none."""

WRITTEN_TOPICS_MAX = 64
"""Topics that are remembered of what one connection wrote to, to show who writes a topic; the
oldest makes room."""

QUOTAS_MAX = 10_000
"""Quotas of users, clients, listeners and addresses."""

LINK_WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of batches that a node takes from another node, on each of their two connections, before it
has dealt with earlier ones; one frame more at most."""

FORWARD_WINDOW_BYTES = 16 * 1024 * 1024
"""Bytes of batches that a node forwards to the leaders on one other node before they are answered;
one batch more at most. Beyond that, publishers to those partitions are not read."""

FORWARDS_MAX = 65_536
"""Forwarded batches to one node that are not answered yet."""

LINK_CALLS_MAX = 1_000
"""Calls between two nodes that are under way, in each direction."""

LINK_CALL_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a call between two nodes, and of its answer."""
