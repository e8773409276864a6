"""Where replicas lie and who leads them: ElectLeaders, reassignments, AlterReplicaLogDirs.

Rules: there is one node, which leads every partition, and one directory. A request for exactly that
is done already; any other is refused with Kafka's error for it. A partition that is stopped has no
leader, and none can be elected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.protocols.kafka.admin.broker_settings import log_dir
from onelog.protocols.kafka.admin.resources import check_cluster
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.turns import Asked, RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


async def elect_leaders(hub: Hub, request: Request) -> Body:
    """Every partition has the leader that it can have."""
    check_cluster(hub, request)
    kind = given(request.body, "election_type", _PREFERRED)
    if kind not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(ErrorCode.invalid_request, f"there is no kind {kind} of election")
    asked = request.body.topic_partitions
    if asked is None:  # all of them: only those are named where something was to be done
        return {"error_code": ErrorCode.none, "replica_election_results": []}
    topics, turns = Asked(hub, request, Action.CONFIGURE), RequestTurns()
    results = []
    async for row in turns.over(asked):
        rows = [
            {"partition_id": number, **_told(_elect(hub, topics, row.topic, number, kind))}
            async for number in turns.over(row.partitions)
        ]
        results.append({"topic": row.topic, "partition_result": rows})
    return {"error_code": ErrorCode.none, "replica_election_results": results}


def _elect(hub: Hub, topics: Asked, name: str, number: int, kind: int) -> OnelogError:
    try:
        stopped = topics.get(name).partition(number).log.stopped
    except OnelogError as error:
        return error
    if stopped is None:
        return KafkaError(
            ErrorCode.election_not_needed, f"node {hub.node_id} leads {name}/{number} already"
        )
    code = (
        ErrorCode.preferred_leader_not_available
        if kind == _PREFERRED
        else ErrorCode.eligible_leaders_not_available
    )
    return KafkaError(code, f"{name}/{number} is stopped: {stopped}")


def _told(error: OnelogError | None) -> Body:
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": code_of(error), "error_message": str(error)}


# -- reassignments


async def alter_partition_reassignments(hub: Hub, request: Request) -> Body:
    """Refuse to move partitions from this node."""
    check_cluster(hub, request)
    topics, turns = Asked(hub, request, Action.CONFIGURE), RequestTurns()
    responses = []
    async for topic in turns.over(request.body.topics):
        rows = [
            {
                "partition_index": row.partition_index,
                **_told(_reassign(hub, topics, topic.name, row)),
            }
            async for row in turns.over(topic.partitions)
        ]
        responses.append({"name": topic.name, "partitions": rows})
    return {
        "error_code": ErrorCode.none,
        "allow_replication_factor_change": given(
            request.body, "allow_replication_factor_change", True
        ),
        "responses": responses,
    }


def _reassign(hub: Hub, topics: Asked, name: str, row: Any) -> OnelogError | None:
    try:
        topics.get(name).partition(row.partition_index)
    except OnelogError as error:
        return error
    if row.replicas is None:
        return KafkaError(
            ErrorCode.no_reassignment_in_progress, f"{name}/{row.partition_index} is not moved"
        )
    if tuple(row.replicas) != (hub.node_id,):
        return KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"a partition has one replica, on node {hub.node_id}, not {list(row.replicas)[:10]}",
        )
    return None


async def list_partition_reassignments(hub: Hub, request: Request) -> Body:
    """No reassignment is under way."""
    check_cluster(hub, request, to_see=True)
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}


# -- directories


async def alter_replica_log_dirs(hub: Hub, request: Request) -> Body:
    """Refuse to move replicas from the one directory."""
    topics, turns = Asked(hub, request, Action.CONFIGURE), RequestTurns()
    results = []
    for row in request.body.dirs:
        async for topic in turns.over(row.topics):
            rows = [
                {
                    "partition_index": number,
                    "error_code": _move(hub, request, topics, row.path, topic.name, number),
                }
                async for number in turns.over(topic.partitions)
            ]
            results.append({"topic_name": topic.name, "partitions": rows})
    return {"results": results}


def _move(
    hub: Hub, request: Request, topics: Asked, path: str, name: str, number: int
) -> ErrorCode:
    try:
        check_cluster(hub, request)
        if path != log_dir(hub.config):
            return ErrorCode.log_dir_not_found
        topics.get(name).partition(number)
    except OnelogError as error:
        return code_of(error)
    return ErrorCode.none
