"""Fields of RabbitMQ 3.10's management API that ours has not, and the other way round.

Rules: docs/reference/amqp-management.md names each of them to users; a test holds that.
"""

from __future__ import annotations

ERLANG = frozenset({"garbage_collection", "reductions", "reductions_details"})
"""What only Erlang has, wherever it stands."""

BODIES = frozenset(
    {
        "message_bytes",
        "message_bytes_dlx",
        "message_bytes_paged_out",
        "message_bytes_persistent",
        "message_bytes_ram",
        "message_bytes_ready",
        "message_bytes_unacknowledged",
        "messages_dlx",
        "head_message_timestamp",
        "idle_since",
        "backing_queue_status",
        "open_files",
        "single_active_consumer_ctag",
    }
)
CHANNEL_STATS = frozenset(
    f"message_stats.{name}{suffix}"
    for name in (
        "ack",
        "deliver",
        "deliver_no_ack",
        "drop_unroutable",
        "get",
        "get_empty",
        "get_no_ack",
        "redeliver",
        "return_unroutable",
    )
    for suffix in ("", "_details")
)
PUBLISHERS = frozenset(
    f"message_stats.{name}{suffix}"
    for name in ("confirm", "drop_unroutable", "return_unroutable")
    for suffix in ("", "_details")
)
OUT = frozenset({"message_stats.publish_out", "message_stats.publish_out_details"})
NODE_PREFIXES = (
    "context_switches",
    "gc_",
    "io_",
    "metrics_gc_queue_length",
    "mnesia_",
    "msg_store_",
    "net_ticktime",
    "proc_",
    "queue_index_",
    "ra_open_file_metrics",
)
"""What Erlang, its store and its disk counters say of themselves, by how the names begin."""

LEFT_OUT: dict[str, frozenset[str]] = {
    "overview": frozenset(
        {
            "contexts.cowboy_opts",
            "contexts.ssl_opts",
            "erlang_full_version",
            "erlang_version",
            "release_series_support_status",
            "message_stats.disk_reads",
            "message_stats.disk_reads_details",
            "message_stats.disk_writes",
            "message_stats.disk_writes_details",
        }
    ),
    "nodes": frozenset(
        {
            "contexts.cowboy_opts",
            "disk_free_details",
            "fd_used_details",
            "mem_used_details",
            "sockets_used_details",
        }
    ),
    "vhosts": PUBLISHERS,
    "queues": BODIES,
    "exchanges": OUT,
    "connections": frozenset({"recv_cnt", "send_cnt"}),
    "channels": CHANNEL_STATS | {"idle_since", "pending_raft_commands"},
    "definitions": frozenset({"global_parameters.name", "global_parameters.value"}),
}
"""By the first word of the path."""

ONLY_OURS: dict[str, frozenset[str]] = {
    "nodes": frozenset({"contexts.node"}),
    "queues": frozenset(
        {
            # RabbitMQ has them for classic queues only.
            "exclusive_consumer_tag",
            "messages_paged_out",
            "messages_ready_ram",
            "messages_unacknowledged_ram",
            "recoverable_slaves",
            "single_active_consumer_tag",
        }
    ),
    "definitions": frozenset({"vhosts.description", "vhosts.tags"}),
}
