"""A body for each API that needs one: what clients and administrators ask about topic `t`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onelog.protocols.kafka.apis import ApiKey
from onelog.record.batch import build_batch
from tests.support.kafka_admin import TOPIC, new_topic

K = ApiKey
Body = dict[str, Any]
TOPIC_NAME: Final = "t"
TIMEOUT_MS: Final = 3_000
LATEST: Final = -1


def _of_topic(partition: Mapping[str, Any], named: str = "name") -> list[Body]:
    return [{named: TOPIC_NAME, "partitions": [partition]}]


def _setting(**more: Any) -> Body:
    configs = [{"name": "retention.ms", "value": "60000", **more}]
    rows = [{"resource_type": TOPIC, "resource_name": TOPIC_NAME, "configs": configs}]
    return {"resources": rows, "validate_only": False}


_RULE: Final[Body] = {
    "resource_type": TOPIC, "resource_name": TOPIC_NAME, "resource_pattern_type": 3,
    "principal": "User:u", "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
RULES: Final[Body] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
"""A filter that every rule matches."""

READS: Final[dict[ApiKey, Body]] = {
    K.METADATA: {"topics": [{"topic_id": None, "name": TOPIC_NAME}]},
    K.DESCRIBE_CLUSTER: {},
    K.API_VERSIONS: {},
    K.DESCRIBE_CONFIGS: {"resources": [
        {"resource_type": TOPIC, "resource_name": TOPIC_NAME, "configuration_keys": None}
    ]},
    K.DESCRIBE_ACLS: RULES,
    K.LIST_PARTITION_REASSIGNMENTS: {"timeout": TIMEOUT_MS, "topics": None},
    K.DESCRIBE_CLIENT_QUOTAS: {"components": [], "strict": False},
    K.DESCRIBE_TOPIC_PARTITIONS: {
        "topics": [{"name": TOPIC_NAME}], "response_partition_limit": 10, "cursor": None,
    },
    K.DESCRIBE_LOG_DIRS: {"topics": None},
}  # fmt: skip
"""What a node tells from what it knows."""
OF_LEADERS: Final[dict[ApiKey, Body]] = {
    K.FETCH: {
        "replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [],
        "topics": [{"topic": TOPIC_NAME, "partitions": [{
            "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0,
            "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20,
        }]}],
    },
    K.LIST_OFFSETS: {
        "replica_id": -1, "isolation_level": 0,
        "topics": _of_topic(
            {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
        ),
    },
    K.OFFSET_FOR_LEADER_EPOCH: {
        "replica_id": -1,
        "topics": _of_topic(
            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}, "topic"
        ),
    },
    K.DELETE_RECORDS: {
        "topics": _of_topic({"partition_index": 0, "offset": 1}), "timeout": TIMEOUT_MS,
    },
    K.DESCRIBE_PRODUCERS: {"topics": [{"name": TOPIC_NAME, "partition_indexes": [0]}]},
}  # fmt: skip
"""What only the leader of a partition knows."""
PRODUCE: Final[Body] = {
    "transactional_id": None, "acks": -1, "timeout": TIMEOUT_MS,
    "topic_data": [{"name": TOPIC_NAME, "partition_data": [
        {"index": 0, "records": build_batch([(None, b"k", b"v", (), 1)])}
    ]}],
}  # fmt: skip
CHANGES: Final[dict[ApiKey, Body]] = {
    K.CREATE_TOPICS: {
        "topics": [new_topic("made", 1, -1)], "timeout": TIMEOUT_MS, "validate_only": False,
    },
    K.DELETE_TOPICS: {
        "topics": [{"name": TOPIC_NAME, "topic_id": None}], "topic_names": [TOPIC_NAME],
        "timeout": TIMEOUT_MS,
    },
    K.CREATE_PARTITIONS: {
        "topics": [{"name": TOPIC_NAME, "count": 5, "assignments": None}], "timeout": TIMEOUT_MS,
        "validate_only": False,
    },
    K.ALTER_CONFIGS: _setting(),
    K.INCREMENTAL_ALTER_CONFIGS: _setting(config_operation=0),
    K.CREATE_ACLS: {"creations": [_RULE]},
    K.DELETE_ACLS: {"filters": [RULES]},
    K.ELECT_LEADERS: {
        "election_type": 0, "timeout": TIMEOUT_MS,
        "topic_partitions": [{"topic": TOPIC_NAME, "partitions": [0]}],
    },
    K.ALTER_PARTITION_REASSIGNMENTS: {
        "timeout": TIMEOUT_MS,
        "topics": _of_topic({"partition_index": 0, "replicas": [1, 2, 3]}),
    },
    K.ALTER_CLIENT_QUOTAS: {
        "validate_only": False,
        "entries": [{
            "entity": [{"entity_type": "user", "entity_name": "u"}],
            "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}],
        }],
    },
    K.DESCRIBE_QUORUM: {"topics": [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    ]},
}  # fmt: skip
"""What needs the metadata store."""
