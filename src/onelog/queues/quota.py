"""How many queues a user may declare: counted where a queue is made, over all virtual hosts.

Rules: a queue counts for the user that declared it first, as its row says; a queue of older rows
counts for nobody. A declaration of a queue that exists already needs no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest
from onelog.security.quotas.entities import Limit

if TYPE_CHECKING:
    from onelog.queues.hub import QueueHub
    from onelog.queues.settings import QueueRecord


def check_queue_quota(hub: QueueHub, record: QueueRecord) -> None:
    """Refuse one queue too many of a user. Raises InvalidRequest."""
    if record.maker is None:
        return
    user, quotas = record.maker.name, hub.broker.client_quotas
    most = quotas.most(user, Limit.QUEUES)
    if most is None:
        return
    count = sum(
        queue.record.maker is not None and queue.record.maker.name == user
        for vhost in hub.vhosts.all()
        for queues in (vhost.queues, vhost.rows.prepared)
        for queue in queues.values()
    )
    if count >= most:
        quotas.refusals[Limit.QUEUES] += 1
        raise InvalidRequest(
            f"cannot declare queue '{record.name}': queue limit of user '{user}' ({most}) is"
            " reached"
        )
