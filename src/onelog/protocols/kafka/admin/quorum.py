"""DescribeQuorum: the nodes that keep the metadata. One node does, and has all of it.

Rules: `__cluster_metadata` is the only topic that has a quorum. The end of its log is the revision
of the metadata store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onelog.protocols.kafka.admin.resources import check_cluster
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

TOPIC: Final = "__cluster_metadata"
_EPOCH: Final = 0
_LISTENER: Final = "KAFKA"


async def describe_quorum(hub: Hub, request: Request) -> Body:
    """This node leads, and is the only voter."""
    check_cluster(hub, request, to_see=True)
    revision = (await hub.broker.store.range("kafka/", 1)).revision
    host, port = request.connection.advertised
    turns = RequestTurns()
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    _partition(hub, topic, row, revision)
                    async for row in turns.timed(topic.partitions)
                ],
            }
            async for topic in turns.timed(request.body.topics)
        ],
        "nodes": [
            {
                "node_id": hub.node_id,
                "listeners": [{"name": _LISTENER, "host": host, "port": port}],
            }
        ],
    }


def _partition(hub: Hub, topic: Any, row: Any, revision: int) -> Body:
    if (topic.topic_name, row.partition_index) != (TOPIC, 0):
        return {
            "partition_index": row.partition_index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": f"only {TOPIC}/0 has a quorum",
        }
    now_ms = hub.clock.now_ms()
    return {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "error_message": None,
        "leader_id": hub.node_id,
        "leader_epoch": _EPOCH,
        "high_watermark": revision,
        "current_voters": [
            {
                "replica_id": hub.node_id,
                "log_end_offset": revision,
                "last_fetch_timestamp": now_ms,
                "last_caught_up_timestamp": now_ms,
            }
        ],
        "observers": [],
    }
