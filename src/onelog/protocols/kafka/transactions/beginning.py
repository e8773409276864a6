"""InitProducerId: the id and epoch of a producer, with or without a transactional id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.codec import Body, given, millis
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_transaction
from onelog.protocols.kafka.transactions.fencing import code_as_known_to
from onelog.protocols.kafka.transactions.state import NO_EPOCH, NO_PRODUCER_ID, Producer

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_FENCED_FROM: Final = 4
"""The version from which clients know the error of a fenced producer."""


async def init_producer_id(hub: Hub, request: Request) -> Body:
    """A new producer id, or the next epoch of a transactional id."""
    body = request.body
    try:
        if body.transactional_id is not None:
            check_transaction(hub, request, body.transactional_id)
        producer = await _init(hub, body)
        code = ErrorCode.none
    except OnelogError as error:
        producer = Producer(NO_PRODUCER_ID, NO_EPOCH)
        code = code_as_known_to(request, error, _FENCED_FROM)
    return {"error_code": code, "producer_id": producer.id, "producer_epoch": producer.epoch}


async def _init(hub: Hub, body: Any) -> Producer:
    expected = _expected(body)
    if body.transactional_id is None:  # it needs no coordinator
        return Producer(hub.producer_ids.take(), 0)
    return await hub.transactions.init_producer(
        body.transactional_id, millis(body.transaction_timeout), expected
    )


def _expected(body: Any) -> Producer | None:
    producer_id = given(body, "producer_id", NO_PRODUCER_ID)
    epoch = given(body, "producer_epoch", NO_EPOCH)
    if (producer_id == NO_PRODUCER_ID) != (epoch == NO_EPOCH):
        raise KafkaError(
            ErrorCode.invalid_request,
            "a producer that wants a new epoch names its id and its epoch",
        )
    return None if producer_id == NO_PRODUCER_ID else Producer(producer_id, epoch)
