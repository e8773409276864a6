"""What administrators ask of a Kafka cluster, as rows of the table of operations."""

from __future__ import annotations

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.cross.access_kafka import HIDDEN, ask, kafka
from tests.cross.access_table import numbers
from tests.support.kafka_wire import Wire

K, E = ApiKey, ErrorCode


@kafka(K.CREATE_TOPICS, E.topic_authorization_failed, "create prefix:new-")
def kafka_create_topic(wire: Wire) -> ErrorCode:
    row = {
        "name": f"new-{next(numbers)}",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    answer = ask(wire, K.CREATE_TOPICS, 4, topics=[row], timeout=30_000, validate_only=False)
    return answer.topics[0].error_code


@kafka(K.DELETE_TOPICS, E.topic_authorization_failed, "delete topic:gone/#")
def kafka_delete_topic(wire: Wire) -> ErrorCode:
    answer = ask(wire, K.DELETE_TOPICS, 4, topic_names=["gone.t"], timeout=30_000)
    return answer.responses[0].error_code


@kafka(K.DELETE_RECORDS, E.topic_authorization_failed, "delete topic:a/b")
def kafka_delete_records(wire: Wire) -> ErrorCode:
    part = {"partition_index": 0, "offset": 0}
    topics = [{"name": "a.b", "partitions": [part]}]
    answer = ask(wire, K.DELETE_RECORDS, 1, topics=topics, timeout=5000)
    return answer.topics[0].partitions[0].error_code


@kafka(K.CREATE_PARTITIONS, E.topic_authorization_failed, "configure topic:a/b")
def kafka_create_partitions(wire: Wire) -> ErrorCode:
    topics = [{"name": "a.b", "count": 1, "assignments": None}]
    body = {"topics": topics, "timeout": 5000, "validate_only": True}
    return ask(wire, K.CREATE_PARTITIONS, 1, **body).results[0].error_code


@kafka(K.INCREMENTAL_ALTER_CONFIGS, E.topic_authorization_failed, "configure topic:a/b")
def kafka_alter_configs(wire: Wire) -> ErrorCode:
    config = {"name": "retention.ms", "config_operation": 0, "value": "60000"}
    resources = [{"resource_type": 2, "resource_name": "a.b", "configs": [config]}]
    body = {"resources": resources, "validate_only": True}
    return ask(wire, K.INCREMENTAL_ALTER_CONFIGS, 0, **body).responses[0].error_code


@kafka(K.DESCRIBE_CONFIGS, E.topic_authorization_failed, "configure topic:a/b")
def kafka_describe_configs(wire: Wire) -> ErrorCode:
    row = {"resource_type": 2, "resource_name": "a.b", "configuration_keys": None}
    answer = ask(wire, K.DESCRIBE_CONFIGS, 1, resources=[row], include_synonyms=False)
    return answer.results[0].error_code


@kafka(K.DESCRIBE_CONFIGS, E.cluster_authorization_failed, "admin server:cluster")
def kafka_describe_broker_configs(wire: Wire) -> ErrorCode:
    row = {"resource_type": 4, "resource_name": "0", "configuration_keys": None}
    answer = ask(wire, K.DESCRIBE_CONFIGS, 1, resources=[row], include_synonyms=False)
    return answer.results[0].error_code


@kafka(K.DESCRIBE_LOG_DIRS, E.cluster_authorization_failed, "all server:cluster")
def kafka_describe_log_dirs(wire: Wire) -> ErrorCode:
    answer = ask(wire, K.DESCRIBE_LOG_DIRS, 4, topics=None)
    assert bool(answer.results) == (answer.error_code is E.none), "nor where the data lies"
    return answer.error_code


@kafka(K.ELECT_LEADERS, E.cluster_authorization_failed, "admin server:*")
def kafka_elect_leaders(wire: Wire) -> ErrorCode:
    answer = ask(wire, K.ELECT_LEADERS, 1, election_type=0, topic_partitions=None, timeout=1000)
    return answer.error_code


@kafka(K.ALTER_CONFIGS, E.topic_authorization_failed, "configure topic:a/b")
def kafka_alter_all_configs(wire: Wire) -> ErrorCode:
    config = {"name": "retention.ms", "value": "60000"}
    resources = [{"resource_type": 2, "resource_name": "a.b", "configs": [config]}]
    body = {"resources": resources, "validate_only": True}
    return ask(wire, K.ALTER_CONFIGS, 1, **body).responses[0].error_code


_MOVES = {
    "timeout": 1000,
    "topics": [{"name": "a.b", "partitions": [{"partition_index": 0, "replicas": None}]}],
}


@kafka(
    K.ALTER_PARTITION_REASSIGNMENTS,
    E.cluster_authorization_failed,
    "admin server:cluster",
    given=("configure topic:a/b",),
)
def kafka_move_partitions(wire: Wire) -> ErrorCode:
    return ask(wire, K.ALTER_PARTITION_REASSIGNMENTS, 0, **_MOVES).error_code


@kafka(
    K.ALTER_PARTITION_REASSIGNMENTS,
    E.topic_authorization_failed,
    "configure topic:a/b",
    given=("admin server:cluster",),
)
def kafka_move_partitions_of_a_topic(wire: Wire) -> ErrorCode:
    (topic,) = ask(wire, K.ALTER_PARTITION_REASSIGNMENTS, 0, **_MOVES).responses
    return topic.partitions[0].error_code


@kafka(K.LIST_PARTITION_REASSIGNMENTS, E.cluster_authorization_failed, "all server:cluster")
def kafka_list_partitions_that_are_moved(wire: Wire) -> ErrorCode:
    return ask(wire, K.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None).error_code


@kafka(
    K.ELECT_LEADERS,
    E.topic_authorization_failed,
    "configure topic:a/b",
    given=("admin server:cluster",),
)
def kafka_elect_leaders_of_a_topic(wire: Wire) -> ErrorCode:
    wanted = [{"topic": "a.b", "partitions": [0]}]
    body = {"election_type": 0, "topic_partitions": wanted, "timeout": 1000}
    (topic,) = ask(wire, K.ELECT_LEADERS, 1, **body).replica_election_results
    return topic.partition_result[0].error_code


@kafka(
    K.ALTER_REPLICA_LOG_DIRS,
    E.cluster_authorization_failed,
    "admin server:cluster",
    given=("configure topic:a/b",),
)
def kafka_move_replicas_to_another_folder(wire: Wire) -> ErrorCode:
    dirs = [{"path": "elsewhere", "topics": [{"name": "a.b", "partitions": [0]}]}]
    (topic,) = ask(wire, K.ALTER_REPLICA_LOG_DIRS, 2, dirs=dirs).results
    return topic.partitions[0].error_code


@kafka(K.DESCRIBE_QUORUM, E.cluster_authorization_failed, "all server:cluster")
def kafka_describe_quorum(wire: Wire) -> ErrorCode:
    return ask(wire, K.DESCRIBE_QUORUM, 1, topics=[]).error_code


@kafka(K.DESCRIBE_CLUSTER, HIDDEN, "admin server:cluster")
def kafka_describe_what_one_may_do_to_the_cluster(wire: Wire) -> bool:
    """Its nodes are no secret: clients have to find them."""
    found = ask(wire, K.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert found.error_code is E.none
    assert found.brokers
    return bool(found.cluster_authorized_operations)


# -- who may do what, and how much

_NO_ACL = {
    "resource_type_filter": 2,
    "resource_name_filter": "no.such.topic",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
"""A filter that no rule matches."""


@kafka(K.DESCRIBE_ACLS, E.cluster_authorization_failed, "all server:access")
def kafka_describe_acls(wire: Wire) -> ErrorCode:
    return ask(wire, K.DESCRIBE_ACLS, 2, **_NO_ACL).error_code


@kafka(K.CREATE_ACLS, E.cluster_authorization_failed, "admin server:access")
def kafka_create_acls(wire: Wire) -> ErrorCode:
    """One that cannot be: a client that may make others is told so."""
    row = {
        "resource_type": 1,
        "resource_name": "a",
        "resource_pattern_type": 3,
        "principal": "User:ann",
        "host": "*",
        "operation": 2,
        "permission_type": 3,
    }
    code = ask(wire, K.CREATE_ACLS, 2, creations=[row]).results[0].error_code
    assert code is not E.none
    return code


@kafka(K.DELETE_ACLS, E.cluster_authorization_failed, "admin server:access")
def kafka_delete_acls(wire: Wire) -> ErrorCode:
    return ask(wire, K.DELETE_ACLS, 2, filters=[_NO_ACL]).filter_results[0].error_code


@kafka(K.DESCRIBE_CLIENT_QUOTAS, E.cluster_authorization_failed, "all server:quotas")
def kafka_describe_quotas(wire: Wire) -> ErrorCode:
    return ask(wire, K.DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False).error_code


@kafka(K.ALTER_CLIENT_QUOTAS, E.cluster_authorization_failed, "admin server:quotas")
def kafka_alter_quotas(wire: Wire) -> ErrorCode:
    ops = [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]
    entries = [{"entity": [{"entity_type": "user", "entity_name": "ann"}], "ops": ops}]
    body = {"entries": entries, "validate_only": True}
    return ask(wire, K.ALTER_CLIENT_QUOTAS, 1, **body).entries[0].error_code
