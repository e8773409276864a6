"""What clients may do, as the authorizer says: deliveries, sessions, share groups.

Rules:
- A hook that does not decide on deliveries is never asked, and costs nothing. One that does is
  asked once per user and topic until it reports that its answers changed; a hook that raises
  refuses.
- When answers changed, open sessions are checked again: a client that may no longer have its kept
  session is disconnected, and one that may no longer have a share group leaves it.
- A client id is part of the principal only while an answer depends on client ids: otherwise all
  clients of a user share their routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.base.errors import NotAuthorized
from onelog.broker import Action, Authorizer, Kind, Principal
from onelog.observe import Troubles
from onelog.protocols.mqtt.pacing import count_subscriptions
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.special import parse_address
from onelog.protocols.mqtt.state import State
from onelog.security.identity import Identity

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection
    from onelog.protocols.mqtt.hub import Hub
    from onelog.protocols.mqtt.session import MqttSession

ANSWERS_MAX: Final = 100_000
"""Answers that are remembered."""

FAILED: Final = "authorizer"
"""Incidents: the authorizer raised over a delivery, which is refused."""


class Deliveries:
    """Which user may have messages of which topics."""

    def __init__(self, authorizer: Authorizer, troubles: Troubles) -> None:
        self._authorizer = authorizer
        self._troubles = troubles
        self._known: dict[tuple[Principal, str], bool] = {}

    def allows(self, principal: Principal, topic: str) -> bool:
        """Whether messages of a topic may be delivered to a user."""
        key = (principal, topic)
        answer = self._known.get(key)
        if answer is None:
            if len(self._known) >= ANSWERS_MAX:
                self._known.clear()
            answer = self._known[key] = self._ask(principal, topic)
        return answer

    def allows_session(self, session: MqttSession, topic: bytes) -> bool:
        """The same, for the fan-out."""
        return self.allows(session.principal, topic.decode(errors="replace"))

    def _ask(self, principal: Principal, topic: str) -> bool:
        try:
            return self._authorizer.allows(principal, Action.DELIVER, topic)
        except Exception as error:  # noqa: BLE001 - in the middle of a delivery to others
            self._troubles.note(FAILED, "mqtt", error, user=principal.name, topic=topic)
            return False


# -- principals and their cursors


def principal_of(hub: Hub, identity: Identity, client_id: str) -> Principal:
    """The principal of a client."""
    apart = hub.broker.authorizer.tells_clients_apart
    return identity.principal("mqtt", client_id if apart else "")


def check_owner(hub: Hub, principal: Principal, cursor: str) -> None:
    """Raise NotAuthorized unless the principal may own a session or share group."""
    if not hub.broker.authorizer.allows(principal, Action.CONSUME, cursor, Kind.CURSOR):
        raise NotAuthorized(f"{principal.name} may not consume {cursor}")


def session_cursor(client_id: str) -> str:
    """The name of a client's kept session in access rules."""
    return f"session/{client_id}"


def share_cursor(group: str) -> str:
    """The name of a share group in access rules."""
    return f"share/{group}"


def look_anew(hub: Hub) -> None:
    """Answers changed: a client loses what it may no longer have."""
    for connection in list(hub.connections):
        if connection.state is State.CONNECTED and connection.session is not None:
            _act_as_known(connection, connection.session)
            _look_at(connection, connection.session)


def _act_as_known(connection: Connection, session: MqttSession) -> None:
    """Put the client id into the principal, or take it out, as answers now depend on it."""
    hub, identity = connection.hub, connection.identity
    assert identity is not None
    principal = principal_of(hub, identity, session.client_id)
    if principal != connection.principal:
        hub.routes.leave(connection.principal)
        connection.principal = session.principal = principal
        connection.join_routes()


def _look_at(connection: Connection, session: MqttSession) -> None:
    hub = connection.hub
    try:
        if session.is_kept:
            check_owner(hub, session.principal, session_cursor(session.client_id))
    except NotAuthorized as error:
        connection.end(ReasonCode.NOT_AUTHORIZED, Properties(reason_string=str(error)))
        return
    for key, special in list(session.specials.items()):
        address = parse_address(key)
        try:
            if address.kind == "share":
                check_owner(hub, session.principal, share_cursor(address.argument))
        except NotAuthorized:
            del session.specials[key]
            special.end()
            count_subscriptions(connection)
