"""TxnOffsetCommit: offsets of a group that count when their transaction commits.

Rules: the group must be in the ongoing transaction of exactly this producer id and epoch. If the
request names a member, it must be a member of the group. Nothing is awaited between that check and
the append, so the offsets are in this transaction and in no later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.groups.committing import place_answers, wanted_offsets
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_group, check_transaction
from onelog.protocols.kafka.transactions.state import Producer

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
        hub.transactions.verify_group(
            body.transactional_id,
            producer,
            body.group_id,
            abortable=request.version >= _ABORTABLE_FROM,
        )
        error = hub.groups.check_commit(
            body.group_id,
            given(body, "member_id", ""),
            given(body, "group_instance_id", None),
            given(body, "generation_id", -1),
            is_transactional=True,
        )
        if error is ErrorCode.none and wanted:
            await hub.groups.offsets.stage(body.group_id, *producer, wanted)
    except OnelogError as refused:
        error = code_of(refused)
    return {"topics": await place_answers(body.topics, errors, error)}
