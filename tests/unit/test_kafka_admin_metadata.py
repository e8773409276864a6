"""The bytes of Metadata answers: the same as the general codec writes, at every version."""

from __future__ import annotations

import uuid

import pytest

from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.codec import encode_response
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.metadata_wire import (
    MetadataWriter,
    PartitionRow,
    PlacedRow,
    TopicRow,
)
from onelog.protocols.kafka.nodes import NodeRow

API = APIS[ApiKey.METADATA]
ID = uuid.UUID(int=0x0123456789ABCDEF)
NODE = NodeRow(7, "h\u00e4st.example", 9092)
Topic = tuple[TopicRow, list[PartitionRow]]
TOPICS: list[Topic] = [
    (TopicRow(0, "orders", ID, 1 << 3), [(0, 0, 3), (5, 1, 4), (0, 2, 0)]),
    (TopicRow(3, "missing", None, -(2**31)), []),
    (TopicRow(0, "t" * 249, ID, -(2**31)), [(0, number, 1) for number in range(300)]),
]


def by_us(version: int, topics: list[Topic]) -> bytes:
    writer = MetadataWriter(version, [NODE], NODE.id)
    rows = [
        topic._replace(partition_count=len(parts), partitions=writer.partitions(parts))
        for topic, parts in topics
    ]
    body = writer.answer("cluster", [writer.topic(row) for row in rows], 1 << 4)
    return encode_response(API, version, 1, body)


def by_kio(version: int, topics: list[Topic]) -> bytes:
    return encode_response(
        API,
        version,
        1,
        {
            "brokers": [{"node_id": 7, "host": NODE.host, "port": NODE.port, "rack": None}],
            "cluster_id": "cluster",
            "controller_id": 7,
            "topics": [
                {
                    "error_code": ErrorCode(topic.error_code),
                    "name": topic.name,
                    "topic_id": topic.topic_id,
                    "is_internal": False,
                    "partitions": [
                        {
                            "error_code": ErrorCode(error),
                            "partition_index": number,
                            "leader_id": 7,
                            "leader_epoch": epoch,
                            "replica_nodes": (7,),
                            "isr_nodes": (7,),
                            "offline_replicas": (),
                        }
                        for error, number, epoch in parts
                    ],
                    "topic_authorized_operations": topic.operations,
                }
                for topic, parts in topics
            ],
            "cluster_authorized_operations": 1 << 4,
        },
    )


@pytest.mark.parametrize("version", range(API.first, API.last + 1))
def test_metadata_is_written_as_the_general_codec_would(version: int) -> None:
    assert by_us(version, TOPICS) == by_kio(version, TOPICS)


def test_a_topic_that_was_asked_for_by_an_unknown_id_has_no_name() -> None:
    topics: list[Topic] = [(TopicRow(100, None, ID, -(2**31)), [])]
    assert by_us(API.last, topics) == by_kio(API.last, topics)


NODES = [NODE, NodeRow(3, "b", 1, "east"), NodeRow(12, "c", 65_535, "west")]
PLACED: list[PlacedRow] = [
    (0, 0, 3, 5, (3, 7, 12), (7, 3), ()),
    (5, 1, -1, 6, (12,), (), (12,)),
    (0, 2, 12, 0, (7, 12), (7, 12), (7,)),
]


@pytest.mark.parametrize("version", range(API.first, API.last + 1))
def test_partitions_of_several_nodes_are_written_as_the_general_codec_would(version: int) -> None:
    writer = MetadataWriter(version, NODES, 3)
    topic = TopicRow(0, "t", ID, 8, len(PLACED), writer.placed(PLACED))
    written = encode_response(API, version, 1, writer.answer("c", [writer.topic(topic)], 4))
    assert written == encode_response(
        API,
        version,
        1,
        {
            "brokers": [
                {"node_id": row.id, "host": row.host, "port": row.port, "rack": row.rack}
                for row in NODES
            ],
            "cluster_id": "c",
            "controller_id": 3,
            "topics": [
                {
                    "error_code": ErrorCode.none,
                    "name": "t",
                    "topic_id": ID,
                    "is_internal": False,
                    "partitions": [
                        {
                            "error_code": ErrorCode(error),
                            "partition_index": number,
                            "leader_id": leader,
                            "leader_epoch": epoch,
                            "replica_nodes": tuple(replicas),
                            "isr_nodes": tuple(isr),
                            "offline_replicas": tuple(offline),
                        }
                        for error, number, leader, epoch, replicas, isr, offline in PLACED
                    ],
                    "topic_authorized_operations": 8,
                }
            ],
            "cluster_authorized_operations": 4,
        },
    )
