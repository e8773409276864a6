"""DescribeLogDirs: the data directory, the bytes of each partition, and the free space.

Rules: there is one directory. A view holds no records and is not named. Who may not see the cluster
does not learn where its data lies.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onelog.protocols.kafka.admin.broker_settings import log_dir
from onelog.protocols.kafka.admin.resources import check_cluster
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import may_see
from onelog.protocols.kafka.topics import KafkaTopic
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


async def describe_log_dirs(hub: Hub, request: Request) -> Body:
    """Bytes of partitions, and of the disk."""
    try:
        check_cluster(hub, request, to_see=True)
    except KafkaError as error:
        return {"error_code": error.code, "results": []}
    path = log_dir(hub.config)
    try:
        total, _used, free = await hub.broker.in_thread(lambda: shutil.disk_usage(path))
    except OSError:  # the disk itself is gone
        failed = {"error_code": ErrorCode.kafka_storage_error, "log_dir": path}
        return {"error_code": ErrorCode.none, "results": [failed]}
    turns = RequestTurns()
    return {
        "error_code": ErrorCode.none,
        "results": [
            {
                "error_code": ErrorCode.none,
                "log_dir": path,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [_size(topic, at) async for at in turns.timed(numbers)],
                    }
                    async for topic, numbers in turns.timed(list(_wanted(hub, request)))
                ],
                "total_bytes": total,
                "usable_bytes": free,
            }
        ],
    }


def _wanted(hub: Hub, request: Request) -> Iterable[tuple[KafkaTopic, Iterable[int]]]:
    """Topics with data that the client may see, and the partitions it asks for."""
    principal = request.connection.principal
    asked = request.body.topics
    numbers = None if asked is None else {row.topic: row.partitions for row in asked}
    for topic in hub.topics.listed():
        if topic.stream is None or not may_see(hub, principal, topic):
            continue
        if numbers is None:
            yield topic, range(topic.partition_count)
        elif topic.name in numbers:
            yield topic, _those_of(topic, numbers[topic.name])


def _those_of(topic: KafkaTopic, numbers: Iterable[int]) -> Iterable[int]:
    return (number for number in numbers if 0 <= number < topic.partition_count)


def _size(topic: KafkaTopic, number: int) -> Body:
    return {
        "partition_index": number,
        "partition_size": topic.partition(number).log.size_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }
