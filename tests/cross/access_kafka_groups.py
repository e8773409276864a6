"""What Kafka clients ask of groups and transactions, as rows of the table of operations."""

from __future__ import annotations

from typing import Any

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.cross.access_kafka import HIDDEN, ask, ask_privately, kafka
from tests.support.kafka_wire import Wire

K, E = ApiKey, ErrorCode


@kafka(K.FIND_COORDINATOR, E.group_authorization_failed, "consume cursor:group/g*")
def kafka_find_coordinator(wire: Wire) -> ErrorCode:
    return ask(wire, K.FIND_COORDINATOR, 3, key="g1", key_type=0).error_code


@kafka(K.JOIN_GROUP, E.group_authorization_failed, "consume cursor:group/g*")
def kafka_join_group(wire: Wire) -> ErrorCode:
    """A new member is given an id first, and has not joined yet."""
    body = {
        "group_id": "g1",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    return ask(wire, K.JOIN_GROUP, 5, **body).error_code


@kafka(K.HEARTBEAT, E.group_authorization_failed, "consume cursor:group/g1")
def kafka_heartbeat(wire: Wire) -> ErrorCode:
    body = {"group_id": "g1", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    return ask(wire, K.HEARTBEAT, 3, **body).error_code


@kafka(K.OFFSET_FETCH, E.group_authorization_failed, "consume cursor:group/g1")
def kafka_offset_fetch(wire: Wire) -> ErrorCode:
    topics = [{"name": "a.b", "partition_indexes": [0]}]
    body = {"group_id": "g1", "topics": topics, "require_stable": False}
    return ask(wire, K.OFFSET_FETCH, 7, **body).error_code


def commit(wire: Wire, topic: str = "a.b") -> ErrorCode:
    part = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return (
        ask(
            wire,
            K.OFFSET_COMMIT,
            7,
            group_id="g1",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [part]}],
        )
        .topics[0]
        .partitions[0]
        .error_code
    )


@kafka(
    K.OFFSET_COMMIT,
    E.group_authorization_failed,
    "consume cursor:group/g1",
    given=("subscribe topic:a/b",),
)
def kafka_offset_commit_for_a_group(wire: Wire) -> ErrorCode:
    return commit(wire)


@kafka(
    K.OFFSET_COMMIT,
    E.topic_authorization_failed,
    "subscribe topic:a/b",
    given=("consume cursor:group/g1",),
)
def kafka_offset_commit_in_a_topic(wire: Wire) -> ErrorCode:
    return commit(wire)


@kafka(K.DESCRIBE_GROUPS, E.group_authorization_failed, "consume cursor:group/g1")
def kafka_describe_group(wire: Wire) -> ErrorCode:
    body = {"groups": ["g1"], "include_authorized_operations": False}
    return ask(wire, K.DESCRIBE_GROUPS, 4, **body).groups[0].error_code


@kafka(K.DELETE_GROUPS, E.group_authorization_failed, "delete cursor:group/g1")
def kafka_delete_group(wire: Wire) -> ErrorCode:
    return ask(wire, K.DELETE_GROUPS, 1, groups_names=["g1"]).results[0].error_code


def _begin(wire: Wire) -> ErrorCode:
    body = {"transactional_id": "tx-1", "transaction_timeout": 60_000}
    return ask(wire, K.INIT_PRODUCER_ID, 1, **body).error_code


@kafka(
    K.INIT_PRODUCER_ID, E.transactional_id_authorization_failed, "consume cursor:transaction/tx-*"
)
def kafka_begin_transactions(wire: Wire) -> ErrorCode:
    return _begin(wire)


def add_partitions(
    wire: Wire, transactional_id: str = "tx-1", producer_id: int = 7, epoch: int = 0
) -> ErrorCode:
    """Let a transaction write to the topic."""
    answer = ask(
        wire,
        K.ADD_PARTITIONS_TO_TXN,
        1,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[{"name": "a.b", "partitions": [0]}],
    )
    (topic,) = answer.results_by_topic_v3_and_below
    return topic.results_by_partition[0].partition_error_code


@kafka(
    K.ADD_PARTITIONS_TO_TXN,
    E.topic_authorization_failed,
    "publish topic:a/b",
    given=("consume cursor:transaction/*",),
)
def kafka_add_partitions_of_a_topic(wire: Wire) -> ErrorCode:
    return add_partitions(wire)


@kafka(
    K.ADD_PARTITIONS_TO_TXN,
    E.transactional_id_authorization_failed,
    "consume cursor:transaction/*",
    given=("publish topic:a/b",),
)
def kafka_add_partitions_to_a_transaction(wire: Wire) -> ErrorCode:
    return add_partitions(wire)


@kafka(K.END_TXN, E.transactional_id_authorization_failed, "consume cursor:transaction/tx-1")
def kafka_end_transaction(wire: Wire) -> ErrorCode:
    body = {"transactional_id": "tx-1", "producer_id": 7, "producer_epoch": 0, "committed": True}
    return ask(wire, K.END_TXN, 1, **body).error_code


@kafka(
    K.DESCRIBE_TRANSACTIONS,
    E.transactional_id_authorization_failed,
    "consume cursor:transaction/tx-1",
)
def kafka_describe_transaction(wire: Wire) -> ErrorCode:
    answer = ask(wire, K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx-1"])
    return answer.transaction_states[0].error_code


def kept_offsets(wire: Wire) -> None:
    """A group that has offsets, without a member."""
    assert commit(wire) is E.none
    assert commit(wire, "c.d") is E.none


@kafka(K.SYNC_GROUP, E.group_authorization_failed, "consume cursor:group/g1")
def kafka_sync_group(wire: Wire) -> ErrorCode:
    body = {
        "group_id": "g1",
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    }
    return ask(wire, K.SYNC_GROUP, 5, **body).error_code


@kafka(K.LEAVE_GROUP, E.group_authorization_failed, "consume cursor:group/g1")
def kafka_leave_group(wire: Wire) -> ErrorCode:
    members = [{"member_id": "m", "group_instance_id": None}]
    return ask(wire, K.LEAVE_GROUP, 4, group_id="g1", members=members).error_code


@kafka(K.LIST_GROUPS, HIDDEN, "consume cursor:group/g1", topics=("a/b", "c/d"), before=kept_offsets)
def kafka_list_groups(wire: Wire) -> bool:
    return "g1" in {row.group_id for row in ask(wire, K.LIST_GROUPS, 3).groups}


def _delete_offsets(wire: Wire) -> Any:
    topics = [{"name": "a.b", "partitions": [{"partition_index": 0}]}]
    return ask(wire, K.OFFSET_DELETE, 0, group_id="g1", topics=topics)


@kafka(
    K.OFFSET_DELETE,
    E.group_authorization_failed,
    "delete cursor:group/g1",
    given=("subscribe topic:a/b", "consume cursor:group/g1"),
    topics=("a/b", "c/d"),
    before=kept_offsets,
)
def kafka_delete_offsets_of_a_group(wire: Wire) -> ErrorCode:
    return _delete_offsets(wire).error_code


@kafka(
    K.OFFSET_DELETE,
    E.topic_authorization_failed,
    "subscribe topic:a/b",
    given=("delete cursor:group/g1",),
    topics=("a/b", "c/d"),
    before=kept_offsets,
)
def kafka_delete_offsets_in_a_topic(wire: Wire) -> ErrorCode:
    (topic,) = _delete_offsets(wire).topics
    return topic.partitions[0].error_code


@kafka(K.LIST_TRANSACTIONS, HIDDEN, "consume cursor:transaction/tx-1", before=_begin)
def kafka_list_transactions(wire: Wire) -> bool:
    rows = ask(wire, K.LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])
    return "tx-1" in {row.transactional_id for row in rows.transaction_states}


def _add_offsets(wire: Wire) -> ErrorCode:
    body = {"transactional_id": "tx-1", "producer_id": 7, "producer_epoch": 0, "group_id": "g1"}
    return ask(wire, K.ADD_OFFSETS_TO_TXN, 3, **body).error_code


@kafka(
    K.ADD_OFFSETS_TO_TXN,
    E.transactional_id_authorization_failed,
    "consume cursor:transaction/tx-1",
    given=("consume cursor:group/g1",),
)
def kafka_add_offsets_to_a_transaction(wire: Wire) -> ErrorCode:
    return _add_offsets(wire)


@kafka(
    K.ADD_OFFSETS_TO_TXN,
    E.group_authorization_failed,
    "consume cursor:group/g1",
    given=("consume cursor:transaction/tx-1",),
)
def kafka_add_offsets_of_a_group(wire: Wire) -> ErrorCode:
    return _add_offsets(wire)


def _commit_in_transaction(wire: Wire) -> ErrorCode:
    part = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    answer = ask(
        wire,
        K.TXN_OFFSET_COMMIT,
        3,
        transactional_id="tx-1",
        group_id="g1",
        producer_id=7,
        producer_epoch=0,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": "a.b", "partitions": [part]}],
    )
    return answer.topics[0].partitions[0].error_code


@kafka(
    K.TXN_OFFSET_COMMIT,
    E.transactional_id_authorization_failed,
    "consume cursor:transaction/tx-1",
    given=("consume cursor:group/g1", "subscribe topic:a/b"),
)
def kafka_commit_offsets_in_a_transaction(wire: Wire) -> ErrorCode:
    return _commit_in_transaction(wire)


@kafka(
    K.TXN_OFFSET_COMMIT,
    E.group_authorization_failed,
    "consume cursor:group/g1",
    given=("consume cursor:transaction/tx-1", "subscribe topic:a/b"),
)
def kafka_commit_offsets_of_a_group_in_a_transaction(wire: Wire) -> ErrorCode:
    return _commit_in_transaction(wire)


@kafka(
    K.TXN_OFFSET_COMMIT,
    E.topic_authorization_failed,
    "subscribe topic:a/b",
    given=("consume cursor:transaction/tx-1", "consume cursor:group/g1"),
)
def kafka_commit_offsets_of_a_topic_in_a_transaction(wire: Wire) -> ErrorCode:
    return _commit_in_transaction(wire)


# -- batches of a query

BATCHES = 20
"""More than a row asks for; each is linked once."""


class _Batches:
    """The batches of a query, each with an open transaction."""

    def __init__(self) -> None:
        self.members: dict[int, list[tuple[str, int, int]]] = {}
        self.next = 0

    def open(self, wire: Wire) -> None:
        """Begin the transactions."""
        self.next = 0
        for batch in range(BATCHES):
            name = f"~link/query/{batch}/task"
            body = {"transactional_id": name, "transaction_timeout": 60_000}
            made = ask(wire, K.INIT_PRODUCER_ID, 1, **body)
            member = (name, int(made.producer_id), int(made.producer_epoch))
            assert add_partitions(wire, *member) is E.none
            self.members[batch] = [member]

    def link(self, wire: Wire) -> ErrorCode:
        """Link the next one."""
        batch, self.next = self.next, self.next + 1
        body = {"query": "query", "batch": batch, "members": self.members.get(batch, [])}
        return ask_privately(wire, K.LINK, commit=True, **body)

    def abort(self, wire: Wire) -> ErrorCode:
        """Abort what the next one and those before it left open, as a driver does that knows none
        of their transactions."""
        batch, self.next = self.next, self.next + 1
        return ask_privately(wire, K.LINK, commit=False, query="query", batch=batch, members=[])


_written, _empty, _left = _Batches(), _Batches(), _Batches()


@kafka(
    K.LINK,
    E.topic_authorization_failed,
    "publish topic:a/b",
    given=("consume cursor:transaction/~link/*",),
    before=_written.open,
)
def kafka_link_what_was_written_to_a_topic(wire: Wire) -> ErrorCode:
    return _written.link(wire)


@kafka(
    K.LINK,
    E.transactional_id_authorization_failed,
    "consume cursor:transaction/~link/query/*",
    given=("publish topic:a/b",),
)
def kafka_link_a_batch_without_members(wire: Wire) -> ErrorCode:
    """It has a mark, which keeps other users from the query."""
    return _empty.link(wire)


@kafka(
    K.LINK,
    E.transactional_id_authorization_failed,
    "consume cursor:transaction/~link/query/*",
    given=("publish topic:a/b",),
    before=_left.open,
)
def kafka_abort_what_a_query_left_open(wire: Wire) -> ErrorCode:
    return _left.abort(wire)
