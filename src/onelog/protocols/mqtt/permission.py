"""Whether a client may have the messages of a topic: the hook's answers on delivery, remembered.

Rules: a hook that has no opinion on delivery is never asked, and costs nothing. One that has is
asked once per user and topic until it says that its answers changed; a hook that fails has said no.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.broker import Action, Authorizer, Principal
from onelog.observe import Troubles

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession

ANSWERS_MAX: Final = 100_000
"""Answers that are remembered."""

FAILED: Final = "authorizer"
"""Incidents: the authorizer raised over a delivery, which is refused."""


class Deliveries:
    """Who may have what."""

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
        """The same, as the fan-out asks."""
        return self.allows(session.principal, topic.decode(errors="replace"))

    def _ask(self, principal: Principal, topic: str) -> bool:
        try:
            return self._authorizer.allows(principal, Action.DELIVER, topic)
        except Exception as error:  # noqa: BLE001 - in the middle of a delivery to others
            self._troubles.note(FAILED, "mqtt", error, user=principal.name, topic=topic)
            return False

    def forget(self) -> None:
        """The answers may have changed."""
        self._known.clear()
