"""AddPartitionsToTxn and AddOffsetsToTxn: the partitions and groups that a transaction may write
to.

Rules: the partitions of one request are added together or not at all. Only a topic with a stream of
its own can take part: in a view several topics share a log, and with it a producer's sequence
numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.groups.coordinator import GROUP_ID_CHARS_MAX
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_group, check_transaction
from onelog.protocols.kafka.transactions.fencing import code_as_known_to
from onelog.protocols.kafka.transactions.state import Producer
from onelog.protocols.kafka.turns import Asked, RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

FENCED_FROM: Final = 2
"""The version from which clients know the error of a fenced producer."""


async def add_partitions_to_txn(hub: Hub, request: Request) -> Body:
    """Let a transaction write to partitions."""
    body = request.body
    named = [
        (topic.name, number) for topic in body.v3_and_below_topics for number in topic.partitions
    ]
    asked = Asked(hub, request, Action.PUBLISH)
    refused = {
        row: code
        async for row in RequestTurns().over(named)
        if (code := _check(asked, *row)) is not None
    }
    if refused:
        codes = {row: refused.get(row, ErrorCode.operation_not_attempted) for row in named}
    else:
        codes = dict.fromkeys(named, await _add(hub, request, frozenset(named)))
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {
                        "partition_index": number,
                        "partition_error_code": codes[topic.name, number],
                    }
                    for number in topic.partitions
                ],
            }
            for topic in body.v3_and_below_topics
        ]
    }


def _check(asked: Asked, name: str, number: int) -> ErrorCode | None:
    try:
        topic = asked.get(name)
        topic.partition(number)
    except OnelogError as error:
        return code_of(error)
    return None if topic.stream is not None else ErrorCode.policy_violation


async def _add(hub: Hub, request: Request, partitions: frozenset[tuple[str, int]]) -> ErrorCode:
    body = request.body
    try:
        check_transaction(hub, request, body.v3_and_below_transactional_id)
        await hub.transactions.add(
            body.v3_and_below_transactional_id,
            Producer(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
            partitions,
            connection=request.connection.number,
        )
    except OnelogError as error:
        return code_as_known_to(request, error, FENCED_FROM)
    return ErrorCode.none


async def add_offsets_to_txn(hub: Hub, request: Request) -> Body:
    """Let a transaction commit offsets of a group."""
    body = request.body
    if len(body.group_id) > GROUP_ID_CHARS_MAX:
        return {"error_code": ErrorCode.invalid_group_id}
    try:
        check_transaction(hub, request, body.transactional_id)
        check_group(hub, request, body.group_id)
        await hub.transactions.add(
            body.transactional_id,
            Producer(body.producer_id, body.producer_epoch),
            groups=frozenset({body.group_id}),
            connection=request.connection.number,
        )
    except OnelogError as error:
        return {"error_code": code_as_known_to(request, error, FENCED_FROM)}
    return {"error_code": ErrorCode.none}
