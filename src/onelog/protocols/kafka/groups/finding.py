"""FindCoordinator: the node that owns a group or a transactional id.

Rules:
- The leader of a name's shard owns the name. While nobody leads the shard, the coordinator is not
  available: clients ask again.
- If this node owns the name and what is kept of it is not known, the coordinator is not found,
  either.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from onelog.base.errors import NotOwner, OnelogError, StateLoading
from onelog.broker import NO_NODE
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.nodes import Nodes
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_group, check_transaction
from onelog.protocols.kafka.transactions.links import name_of
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED: Final = 4
_NOWHERE: Final[Body] = {"node_id": -1, "host": "", "port": -1}


async def find_coordinator(hub: Hub, request: Request) -> Body:
    """Where the coordinator is; from version 4 on of several keys at once."""
    body, nodes = request.body, Nodes(hub, request.connection)
    kind = given(body, "key_type", _GROUP)
    if request.version < _BATCHED:
        return _find(hub, request, nodes, kind, body.key)
    return {
        "coordinators": [
            {"key": key, **_told(hub, request, nodes, kind, key)}
            async for key in RequestTurns().timed(body.coordinator_keys)
        ]
    }


def _told(hub: Hub, request: Request, nodes: Nodes, kind: int, key: str) -> Body:
    try:
        return _find(hub, request, nodes, kind, key)
    except OnelogError as error:
        return _NOWHERE | {"error_code": code_of(error), "error_message": str(error)}


def _find(hub: Hub, request: Request, nodes: Nodes, kind: int, key: str) -> Body:
    """The node of one key. Raises OnelogError."""
    name = _checked(hub, request, kind, key)
    owner = hub.broker.cluster.owner(name)
    if owner == hub.node_id:
        _look_for(hub, kind, key)
        shards = hub.broker.shards
        if shards.leads(name) and not shards.holds(name):
            raise KafkaError(
                ErrorCode.coordinator_not_available,
                f"another node may coordinate {key[:100]!r} by now: this one is cut off from it",
            )
    row = nodes.by_id.get(owner)
    if row is None:
        why = "nobody owns it now" if owner == NO_NODE else f"node {owner} is not reached this way"
        raise KafkaError(
            ErrorCode.coordinator_not_available, f"{key[:100]!r} has no coordinator: {why}"
        )
    return {
        "node_id": row.id,
        "host": row.host,
        "port": row.port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }


def _checked(hub: Hub, request: Request, kind: int, key: str) -> bytes:
    """The name whose owner coordinates, if the client may use it. Raises KafkaError."""
    if kind == _GROUP:
        check_group(hub, request, key, None)
        return key.encode()
    if kind == _TRANSACTION:
        check_transaction(hub, request, key, to_see=True)
        return name_of(key.encode())
    raise KafkaError(
        ErrorCode.invalid_request,
        f"coordinators of type {kind} are not known here, groups are 0, transactions 1",
    )


def _look_for(hub: Hub, kind: int, key: str) -> None:
    """Raises OnelogError when what this node keeps of such names is not known. A client that comes
    while it is being read hears so then."""
    with contextlib.suppress(NotOwner, StateLoading):
        if kind == _TRANSACTION:
            hub.transactions.check(key)
        else:
            hub.groups.check(key)
