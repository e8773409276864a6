"""TxnOffsetCommit: offsets of a group that count when their transaction commits.

Rules: the group must be in the ongoing transaction of exactly this producer id and epoch. If the
request names a member, it must be a member of the group. Nothing is awaited between that check and
the append, so the offsets are in this transaction and in no later one. When another node
coordinates the transaction, it is asked first, under a guard (`verifying.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.groups.committing import place_answers, wanted_offsets
from onelog.protocols.kafka.groups.offset_store import Wanted
from onelog.protocols.kafka.groups.offsets import Place
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_group, check_transaction
from onelog.protocols.kafka.transactions.coordinator import OUTSIDE
from onelog.protocols.kafka.transactions.state import Producer
from onelog.protocols.kafka.transactions.verifying import AGAIN, check_unbroken

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_ABORTABLE_FROM: Final = 4
"""The version from which clients know that they may abort and go on."""


async def txn_offset_commit(hub: Hub, request: Request) -> Body:
    """Keep offsets until their transaction ends; answered when durable."""
    body = request.body
    producer = Producer(body.producer_id, body.producer_epoch)
    wanted, errors = await wanted_offsets(hub, request)
    try:
        check_transaction(hub, request, body.transactional_id)
        check_group(hub, request, body.group_id)
        abortable = request.version >= _ABORTABLE_FROM
        _ = hub.transactions  # without their rows nothing is known of pending offsets
        hub.groups.check(body.group_id)
        if hub.verifier.is_coordinated_here(body.transactional_id):
            hub.transactions.verify_group(
                body.transactional_id, producer, body.group_id, abortable=abortable
            )
            epoch = hub.transactions.decider(body.transactional_id).epoch
            error, staged = _stage(hub, body, producer, wanted, epoch)
        else:
            error, staged = await _stage_granted(hub, body, producer, wanted, abortable=abortable)
        if staged is not None:
            await staged
    except OnelogError as refused:
        error = code_of(refused)
    return {"topics": await place_answers(body.topics, errors, error)}


def _stage(
    hub: Hub, body: Any, producer: Producer, wanted: dict[Place, Wanted], coordinator_epoch: int
) -> tuple[ErrorCode, asyncio.Future[None] | None]:
    error = hub.groups.check_commit(
        body.group_id,
        given(body, "member_id", ""),
        given(body, "group_instance_id", None),
        given(body, "generation_id", -1),
        is_transactional=True,
    )
    if error is not ErrorCode.none or not wanted:
        return error, None
    staged = hub.groups.offsets.stage(body.group_id, *producer, wanted, coordinator_epoch)
    return error, staged


async def _stage_granted(
    hub: Hub,
    body: Any,
    producer: Producer,
    wanted: dict[Place, Wanted],
    *,
    abortable: bool,
) -> tuple[ErrorCode, asyncio.Future[None] | None]:
    grant = await hub.verifier.ask_for_group(
        body.transactional_id, producer, body.group_id, abortable=abortable
    )
    try:
        if grant.refusal is not None:
            if grant.refusal.code is AGAIN:  # which is no answer of this API
                raise KafkaError(ErrorCode.coordinator_load_in_progress, str(grant.refusal))
            raise grant.refusal
        check_unbroken(grant, hub.groups.epoch(body.group_id), OUTSIDE[abortable])
        return _stage(hub, body, producer, wanted, grant.epoch)
    finally:
        hub.verifier.give_back([grant])
