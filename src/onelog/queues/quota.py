"""How many queues may be declared: counted where a queue is made, over all virtual hosts.

Rules: a queue counts for the user, the client and the listener that declared it first, as its row
says; a queue of older rows counts for nobody, or for its user only. Who has no name as a client is
bounded by no quota of clients: many such would share one. A declaration of a queue that exists
already needs no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest
from onelog.security.quotas.entities import Limit, QuotaEntity

if TYPE_CHECKING:
    from onelog.queues.hub import QueueHub
    from onelog.queues.settings import QueueRecord


def check_queue_quota(hub: QueueHub, record: QueueRecord) -> None:
    """Refuse one queue too many. Raises InvalidRequest."""
    if record.maker is None:
        return
    quotas = hub.broker.client_quotas
    bounds = quotas.counted(Limit.QUEUES, record.maker.name, record.client, record.listener)
    for sharers, most in bounds:
        count = sum(
            _is_of(queue.record, sharers)
            for vhost in hub.vhosts.all()
            for queues in (vhost.queues, vhost.rows.prepared)
            for queue in queues.values()
        )
        if count >= most:
            quotas.refusals[Limit.QUEUES] += 1
            whose = " and ".join(f"{part} '{name}'" for part, name in sharers.parts)
            raise InvalidRequest(
                f"cannot declare queue '{record.name}': queue limit of {whose} ({most}) is reached"
            )


def _is_of(record: QueueRecord, sharers: QuotaEntity) -> bool:
    if record.maker is None:
        return False
    found = {"user": record.maker.name, "client": record.client, "listener": record.listener}
    return all(found[part] == name for part, name in sharers.parts)
