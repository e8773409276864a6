"""FindCoordinator: this broker coordinates every group and every transaction.

If its state is not known, the coordinator is not found: clients ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_group, check_transaction
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED: Final = 4


async def find_coordinator(hub: Hub, request: Request) -> Body:
    """Where the coordinator is; from version 4 on of several keys at once."""
    body = request.body
    kind = given(body, "key_type", _GROUP)
    host, port = request.connection.advertised
    found: Body = {"node_id": hub.node_id, "host": host, "port": port}
    found |= {"error_code": ErrorCode.none, "error_message": None}
    try:
        _look_for(hub, kind)
    except OnelogError as error:
        if request.version < _BATCHED:
            raise
        found = {"node_id": -1, "host": "", "port": -1}
        found |= {"error_code": code_of(error), "error_message": str(error)}
    if request.version < _BATCHED:
        _check(hub, request, kind, body.key)
        return found
    return {
        "coordinators": [
            {"key": key, **_told(hub, request, kind, key, found)}
            async for key in RequestTurns().timed(body.coordinator_keys)
        ]
    }


def _told(hub: Hub, request: Request, kind: int, key: str, found: Body) -> Body:
    try:
        _check(hub, request, kind, key)
    except KafkaError as error:
        nowhere: Body = {"node_id": -1, "host": "", "port": -1}
        return nowhere | {"error_code": error.code, "error_message": str(error)}
    return found


def _check(hub: Hub, request: Request, kind: int, key: str) -> None:
    """Raise KafkaError unless the client may use a group or transactional id."""
    if kind == _GROUP:
        check_group(hub, request, key, None)
    elif kind == _TRANSACTION:
        check_transaction(hub, request, key, to_see=True)


def _look_for(hub: Hub, kind: int) -> object:
    """Raises OnelogError when the coordinator cannot be served, or its type is unknown."""
    if kind == _GROUP:
        return hub.groups
    if kind == _TRANSACTION:
        return hub.transactions
    raise KafkaError(
        ErrorCode.invalid_request,
        f"coordinators of type {kind} are not known here, groups are 0, transactions 1",
    )
