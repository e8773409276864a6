"""Auto-subscribe: subscriptions that every client gets by configuration, as if it had asked.

Rules: they are made when the client is accepted, with `%c` and `%u` filled in, and go through the
same checks as a SUBSCRIBE; one that is refused is left out and logged. A client may unsubscribe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import OnelogError
from onelog.observe import get_logger
from onelog.protocols.mqtt.keeping import keep_subscriptions
from onelog.protocols.mqtt.pacing import count_subscriptions
from onelog.protocols.mqtt.packets import Subscription
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.subscribing import Subscribing
from onelog.protocols.mqtt.templates import expand

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection

_log = get_logger("mqtt")


async def subscribe_configured(connection: Connection) -> None:
    """Give a client that was just accepted its subscriptions."""
    wanted = connection.hub.features.auto_subscribe
    session = connection.session
    if not wanted or session is None:
        return
    rows = Subscribing(connection, 0)
    found = []
    for row in wanted:
        try:
            text = expand(row.filter, session.client_id, connection.principal.name)
        except OnelogError as error:
            _log.warning("an auto-subscription is left out", filter=row.filter, reason=str(error))
            continue
        found.append(
            Subscription(text, row.qos, row.no_local, row.retain_as_published, row.retain_handling)
        )
    await rows.bring(found)
    if connection.session is None:
        return
    for one in found:
        rows.add(one)
        if rows.reasons[-1] >= ReasonCode.UNSPECIFIED_ERROR:
            _log.warning(
                "an auto-subscription is refused", filter=one.filter, code=rows.reasons[-1]
            )
    await rows.open()
    count_subscriptions(connection)
    connection.tag_publishes()
    await keep_subscriptions(connection)
    rows.begin()
