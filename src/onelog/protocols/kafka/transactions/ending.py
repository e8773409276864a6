"""EndTxn: commit or abort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import OnelogError
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_transaction
from onelog.protocols.kafka.transactions.adding import FENCED_FROM
from onelog.protocols.kafka.transactions.fencing import code_as_known_to
from onelog.protocols.kafka.transactions.state import Producer

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


async def end_txn(hub: Hub, request: Request) -> Body:
    """Decide a transaction. From then on the outcome is carried out in any case."""
    body = request.body
    try:
        check_transaction(hub, request, body.transactional_id)
        await hub.transactions.end(
            body.transactional_id,
            Producer(body.producer_id, body.producer_epoch),
            commit=body.committed,
            connection=request.connection.number,
        )
    except OnelogError as error:
        return {"error_code": code_as_known_to(request, error, FENCED_FROM)}
    return {"error_code": ErrorCode.none}
