"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: from requests to the group, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.protocols.kafka.codec import Body, given, millis
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.answers import Joining, Leaving, Syncing
from onelog.protocols.kafka.groups.coordinator import check_group_id
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_group
from onelog.protocols.kafka.turns import ROWS, RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

INSTANCE_ID_CHARS_MAX: Final = 249
"""What Kafka's own clients allow."""

_JOIN_KNOWN_ID: Final = 4
_JOIN_NULL_PROTOCOL: Final = 7
_JOIN_SKIP: Final = 9
_LEAVE_BATCHED: Final = 3


async def join_group(hub: Hub, request: Request) -> Body:
    """A member joins; the answer comes when its generation begins."""
    body = request.body
    check_group(hub, request, body.group_id)
    session_timeout_ms = millis(body.session_timeout)
    rebalance_timeout_ms = millis(given(body, "rebalance_timeout", None))
    answer = await hub.groups.join(
        body.group_id,
        Joining(
            member_id=body.member_id,
            instance_id=_instance_id(given(body, "group_instance_id", None)),
            client_id=request.client_id,
            client_host=f"/{request.connection.peer.host}",
            session_timeout_ms=session_timeout_ms,
            # Version 0 has one timeout for both.
            rebalance_timeout_ms=(
                rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms
            ),
            protocol_type=body.protocol_type,
            protocols=tuple((row.name, bytes(row.metadata)) for row in body.protocols),
            needs_known_id=request.version >= _JOIN_KNOWN_ID,
            can_skip_assignment=request.version >= _JOIN_SKIP,
        ),
    )
    protocol = answer.protocol
    if protocol is None and request.version < _JOIN_NULL_PROTOCOL:
        protocol = ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": protocol,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {
                "member_id": row.member_id,
                "group_instance_id": row.instance_id,
                "metadata": row.metadata,
            }
            for row in answer.members
        ],
    }


async def sync_group(hub: Hub, request: Request) -> Body:
    """A member asks for its assignment; the answer comes when the leader has brought it."""
    body = request.body
    check_group_id(body.group_id)
    check_group(hub, request, body.group_id)
    answer = await hub.groups.sync(
        body.group_id,
        Syncing(
            member_id=body.member_id,
            instance_id=_instance_id(given(body, "group_instance_id", None)),
            generation=body.generation_id,
            protocol_type=given(body, "protocol_type", None),
            protocol=given(body, "protocol_name", None),
            assignments={row.member_id: bytes(row.assignment) for row in body.assignments},
        ),
    )
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


async def heartbeat(hub: Hub, request: Request) -> Body:
    """A heartbeat of a member."""
    body = request.body
    check_group_id(body.group_id)
    check_group(hub, request, body.group_id)
    error = hub.groups.heartbeat(
        body.group_id,
        body.member_id,
        _instance_id(given(body, "group_instance_id", None)),
        body.generation_id,
    )
    return {"error_code": error}


async def leave_group(hub: Hub, request: Request) -> Body:
    """Members leave; from version 3 on several at once, each with its own answer."""
    body = request.body
    check_group_id(body.group_id)
    check_group(hub, request, body.group_id)
    if request.version < _LEAVE_BATCHED:
        (error,) = hub.groups.leave(
            body.group_id, [Leaving(member_id=body.member_id, instance_id=None)]
        )
        return {"error_code": error}
    rows = [
        Leaving(
            member_id=row.member_id,
            instance_id=_instance_id(row.group_instance_id),
            reason=given(row, "reason", None),
        )
        for row in body.members
    ]
    errors: list[ErrorCode] = []
    async for at in RequestTurns().timed(range(0, len(rows), ROWS)):
        errors += hub.groups.leave(body.group_id, rows[at : at + ROWS])
    return {
        "error_code": ErrorCode.none,
        "members": [
            {
                "member_id": row.member_id,
                "group_instance_id": row.instance_id,
                "error_code": error,
            }
            for row, error in zip(rows, errors, strict=True)
        ],
    }


def _instance_id(name: str | None) -> str | None:
    if name is not None and not 0 < len(name) <= INSTANCE_ID_CHARS_MAX:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"an instance id has 1 to {INSTANCE_ID_CHARS_MAX} characters",
        )
    return name
