"""Wills: published when a client goes without a goodbye, after their delay.

Rules: a client that comes back before the delay is over takes its will back (MQTT5 3.1.2-8,
3.1.3.2.2). The delay is never longer than the session lives.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from onelog.base.errors import NotAuthorized, OnelogError
from onelog.broker import Principal
from onelog.broker.sessions import NEVER_MS
from onelog.observe import get_logger
from onelog.protocols.mqtt import delayed
from onelog.protocols.mqtt.mapping import to_message
from onelog.protocols.mqtt.packets import Will

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub

_log = get_logger("mqtt")


def ignore_done(_error: OnelogError | None) -> None:
    """A will has nobody who waits for the answer."""


class Wills:
    """Wills that wait for their delay."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: dict[str, tuple[asyncio.TimerHandle, Principal, Will]] = {}

    def leave(self, client_id: str, principal: Principal, will: Will, expiry_ms: int) -> None:
        """A client went without a goodbye."""
        delay_ms = (will.properties.will_delay_s or 0) * 1000
        if expiry_ms != NEVER_MS:
            delay_ms = min(delay_ms, expiry_ms)
        if delay_ms == 0:
            self._publish(client_id, principal, will)
            return
        timer = self._hub.loop.call_later(
            delay_ms / 1000, self._publish, client_id, principal, will
        )
        self._waiting[client_id] = (timer, principal, will)

    def back(self, client_id: str, *, clean: bool) -> None:
        """The client is back: its will is void, unless the session that it belongs to ends now."""
        found = self._waiting.pop(client_id, None)
        if found is None:
            return
        timer, principal, will = found
        timer.cancel()
        if clean:  # MQTT5 3.1.2.5: the delay is over when the session is
            self._publish(client_id, principal, will)

    def _publish(self, client_id: str, principal: Principal, will: Will) -> None:
        self._waiting.pop(client_id, None)
        hub = self._hub
        try:
            topic = hub.rewriter.topic(will.topic, client_id, principal.name)
            if topic.startswith(delayed.PREFIX):
                hub.delayed.append(hub.delayed.take(will, topic, principal), ignore_done)
            elif topic.startswith("$"):
                raise NotAuthorized(f"clients may not publish to {topic}")
            else:
                message = to_message(will, topic=topic, now_ms=hub.clock.now_ms())
                hub.broker.publisher.stage(message, principal=principal)
        except OnelogError as error:
            _log.warning("a will could not be published", client=client_id, reason=str(error))

    def close(self) -> None:
        """Publish no more."""
        for timer, _principal, _will in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
