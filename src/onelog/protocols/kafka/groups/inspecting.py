"""DescribeGroups, ListGroups and DeleteGroups: what administrators ask of groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.groups.group import Group
from onelog.protocols.kafka.groups.states import State
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import (
    check_group,
    group_cursor,
    group_operations,
    may_own,
    may_see_cursor,
)
from onelog.protocols.kafka.room import AnswerRoom
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

TYPE: Final = "classic"
"""The type of all groups here."""

_OPERATIONS_NOT_ASKED: Final = -(2**31)


async def describe_groups(hub: Hub, request: Request) -> Body:
    """Groups with their members; an unknown one is Dead, as in Kafka."""
    body = request.body
    asked = given(body, "include_authorized_operations", False)
    room = AnswerRoom()
    return {
        "groups": [
            _told(hub, request, name, room)
            | {
                "authorized_operations": group_operations(hub, request, name)
                if asked
                else _OPERATIONS_NOT_ASKED
            }
            async for name in RequestTurns().timed(body.groups)
        ]
    }


def _told(hub: Hub, request: Request, name: str, room: AnswerRoom) -> Body:
    try:
        check_group(hub, request, name, None)
        hub.groups.check(name)
        return _describe(name, hub.groups.find(name), room)
    except OnelogError as error:
        return {"group_id": name, "error_code": code_of(error), "error_message": str(error)}


def _describe(name: str, group: Group | None, room: AnswerRoom) -> Body:
    if group is None:
        return {"group_id": name, "group_state": State.DEAD.value}
    room.take(group.members.size_bytes)
    # Between generations, metadata and assignments are not valid.
    protocol = group.protocol if group.state is State.STABLE else None
    return {
        "group_id": name,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol or "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(protocol),
                "member_assignment": member.assignment if protocol is not None else b"",
            }
            for member in group.members
        ],
    }


async def list_groups(hub: Hub, request: Request) -> Body:
    """All groups that this node coordinates, or those in some states or of some types."""
    states = {name.lower() for name in given(request.body, "states_filter", ())}
    types = {name.lower() for name in given(request.body, "types_filter", ())}
    wanted = not types or TYPE in types
    refusal = hub.groups.unlisted
    return {
        "error_code": ErrorCode.none if refusal is None else code_of(refusal),
        "groups": [
            {
                "group_id": group.name,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
                "group_type": TYPE,
            }
            async for group in RequestTurns().timed(list(hub.groups.listed()))
            if wanted
            and (not states or group.state.lower() in states)
            and may_see_cursor(hub, request, group_cursor(group.name))
        ],
    }


async def delete_groups(hub: Hub, request: Request) -> Body:
    """Delete groups without members, with their offsets."""
    names = RequestTurns().timed(dict.fromkeys(request.body.groups_names))
    answers = [(name, _delete(hub, request, name)) async for name in names]
    turns = RequestTurns()
    return {
        "results": [
            {
                "group_id": name,
                "error_code": answer if isinstance(answer, ErrorCode) else await answer,
            }
            async for name, answer in turns.timed(answers)
        ]
    }


def _delete(hub: Hub, request: Request, name: str) -> ErrorCode | asyncio.Future[ErrorCode]:
    if not may_own(hub, request, group_cursor(name), Action.DELETE):
        return ErrorCode.group_authorization_failed
    try:
        return hub.groups.delete(name)
    except OnelogError as error:
        return code_of(error)
