"""Where replicas lie and who leads them: ElectLeaders, reassignments, AlterReplicaLogDirs.

Rules: a node on its own leads every partition, and has one directory. A request for exactly that is
done already; any other is refused with Kafka's error for it. A partition that is stopped has no
leader, and none can be elected. In a cluster of several nodes, `moving.py` asks the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.protocols.kafka.admin.broker_settings import log_dir
from onelog.protocols.kafka.admin.moving import (
    elect_on,
    move_row,
    partitions_shown,
    reassign_on,
    wants_election,
)
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
    is_alone = not hub.broker.cluster.nodes()
    if asked is None:  # all of them: only those are named where something was to be done
        results = [] if is_alone else await _elect_all(hub, kind)
        return {"error_code": ErrorCode.none, "replica_election_results": results}
    topics, turns = Asked(hub, request, Action.CONFIGURE), RequestTurns()
    results = []
    async for row in turns.over(asked):
        rows = [
            {
                "partition_id": number,
                **_told(
                    _elect(hub, topics, row.topic, number, kind)
                    if is_alone
                    else await _elect_there(hub, topics, row.topic, number, kind)
                ),
            }
            async for number in turns.over(row.partitions)
        ]
        results.append({"topic": row.topic, "partition_result": rows})
    return {"error_code": ErrorCode.none, "replica_election_results": results}


async def _elect_all(hub: Hub, kind: int) -> list[Body]:
    unclean, found = kind == _UNCLEAN, dict[str, list[Body]]()
    async for shown in RequestTurns().timed(list(partitions_shown(hub))):
        if not wants_election(shown.places, unclean=unclean):
            continue
        number, error = int(shown.number), None
        try:
            await elect_on(hub, hub.topics.get(shown.topic), number, unclean=unclean)
        except OnelogError as refused:
            error = refused
        found.setdefault(shown.topic, []).append({"partition_id": number, **_told(error)})
    return [{"topic": name, "partition_result": rows} for name, rows in found.items()]


async def _elect_there(
    hub: Hub, topics: Asked, name: str, number: int, kind: int
) -> OnelogError | None:
    try:
        await elect_on(hub, topics.get(name), number, unclean=kind == _UNCLEAN)
    except OnelogError as error:
        return error
    return None


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
    """Move partitions to other nodes, or stop that; a node on its own refuses to."""
    check_cluster(hub, request)
    keeps = not given(request.body, "allow_replication_factor_change", True)
    is_alone = not hub.broker.cluster.nodes()
    topics, turns = Asked(hub, request, Action.CONFIGURE), RequestTurns()
    responses = []
    async for topic in turns.over(request.body.topics):
        rows = [
            {
                "partition_index": row.partition_index,
                **_told(
                    _reassign(hub, topics, topic.name, row)
                    if is_alone
                    else await _reassign_there(hub, topics, topic.name, row, keeps_factor=keeps)
                ),
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


async def _reassign_there(
    hub: Hub, topics: Asked, name: str, row: Any, *, keeps_factor: bool
) -> OnelogError | None:
    try:
        topic = topics.get(name)
        await reassign_on(hub, topic, row.partition_index, row.replicas, keeps_factor=keeps_factor)
    except OnelogError as error:
        return error
    return None


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
    """The partitions that are being moved; on a node on its own, none is."""
    check_cluster(hub, request, to_see=True)
    found: dict[str, list[Body]] = {}
    if hub.broker.cluster.nodes():
        asked = request.body.topics
        wanted = None if asked is None else {row.name: set(row.partition_indexes) for row in asked}
        async for shown in RequestTurns().timed(list(partitions_shown(hub))):
            row = move_row(shown)
            if row is not None and (wanted is None or shown.number in wanted.get(shown.topic, ())):
                found.setdefault(shown.topic, []).append(row)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "topics": [{"name": name, "partitions": rows} for name, rows in found.items()],
    }


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
