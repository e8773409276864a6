"""How a whole request is refused: its error, in the field that the API has for it.

Rules: an API without a row here ends the connection, so every API that needs a coordinator has one:
clients try again after the error of a group or transaction that cannot be served now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.groups.committing import fetch_code
from onelog.protocols.kafka.request import Request

Refuse = Callable[[Request, OnelogError], Body]

_FETCH_TOP_LEVEL: Final = 2
_FETCH_BATCHED: Final = 8


def _top_level(_request: Request, error: OnelogError) -> Body:
    return {"error_code": code_of(error)}


def _with_message(_request: Request, error: OnelogError) -> Body:
    return {"error_code": code_of(error), "error_message": str(error)}


def _each_group(request: Request, error: OnelogError) -> Body:
    code = code_of(error)
    return {
        "groups": [
            {"group_id": name, "error_code": code, "error_message": str(error)}
            for name in request.body.groups
        ]
    }


def _each_deleted_group(request: Request, error: OnelogError) -> Body:
    code = code_of(error)
    return {
        "results": [{"group_id": name, "error_code": code} for name in request.body.groups_names]
    }


def _each_transaction(request: Request, error: OnelogError) -> Body:
    code = code_of(error)
    return {
        "transaction_states": [
            {"transactional_id": name, "error_code": code}
            for name in request.body.transactional_ids
        ]
    }


def _offset_fetch(request: Request, error: OnelogError) -> Body:
    code, body = fetch_code(error), request.body
    if request.version >= _FETCH_BATCHED:
        return {
            "groups": [
                {"group_id": row.group_id, "topics": [], "error_code": code} for row in body.groups
            ]
        }
    if request.version >= _FETCH_TOP_LEVEL:
        return {"topics": [], "error_code": code}
    return {"topics": [_places_of(topic, code) for topic in body.topics]}


def _places_of(topic: Any, code: ErrorCode) -> Body:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": number,
                "committed_offset": -1,
                "metadata": "",
                "error_code": code,
            }
            for number in topic.partition_indexes
        ],
    }


REFUSALS: Final[dict[ApiKey, Refuse]] = {
    ApiKey.DESCRIBE_CLUSTER: _with_message,
    ApiKey.FIND_COORDINATOR: _with_message,
    ApiKey.JOIN_GROUP: _top_level,
    ApiKey.SYNC_GROUP: _top_level,
    ApiKey.HEARTBEAT: _top_level,
    ApiKey.LEAVE_GROUP: _top_level,
    ApiKey.LIST_GROUPS: _top_level,
    ApiKey.DESCRIBE_GROUPS: _each_group,
    ApiKey.DELETE_GROUPS: _each_deleted_group,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.OFFSET_DELETE: _top_level,
    ApiKey.INIT_PRODUCER_ID: _top_level,
    ApiKey.ADD_OFFSETS_TO_TXN: _top_level,
    ApiKey.END_TXN: _top_level,
    ApiKey.LIST_TRANSACTIONS: _top_level,
    ApiKey.DESCRIBE_TRANSACTIONS: _each_transaction,
    ApiKey.ELECT_LEADERS: _top_level,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _with_message,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _with_message,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _with_message,
    ApiKey.DESCRIBE_QUORUM: _with_message,
    ApiKey.SASL_HANDSHAKE: _top_level,
    ApiKey.SASL_AUTHENTICATE: _with_message,
}


def error_body(request: Request, error: OnelogError) -> Body | None:
    """The answer that refuses a whole request; None: the API has no field for an error."""
    refuse = REFUSALS.get(request.api.key)
    return None if refuse is None else refuse(request, error)
