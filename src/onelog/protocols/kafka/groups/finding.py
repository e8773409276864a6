"""FindCoordinator: this broker coordinates every group and every transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.request import Request

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
    if kind not in (_GROUP, _TRANSACTION):
        text = f"coordinators of type {kind} are not known here, groups are 0, transactions 1"
        if request.version < _BATCHED:
            raise KafkaError(ErrorCode.invalid_request, text)
        found = {"node_id": -1, "host": "", "port": -1}
        found |= {"error_code": ErrorCode.invalid_request, "error_message": text}
    if request.version < _BATCHED:
        return found
    return {"coordinators": [{"key": key, **found} for key in body.coordinator_keys]}
