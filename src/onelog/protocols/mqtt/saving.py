"""What a session does only after its state is durable: one save serves everything that waits.

Rules: actions run in the order in which they were asked for. When saving fails the connection
ends, and what waited is not done: the client asks again. The session is not held from here, so
that it goes when its connection has let go of it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.base.errors import OnelogError
from onelog.broker import Cursor

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession


class Saver:
    """Saves one session."""

    def __init__(self, session: MqttSession) -> None:
        self._session = weakref.ref(session)
        self._actions: list[Callable[[], None]] = []
        self._more: set[Cursor] = set()
        self._task: asyncio.Task[None] | None = None

    def then(self, action: Callable[[], None], *more: Cursor) -> None:
        """Run `action` when the state as it is now is durable, and that of `more` cursors."""
        self._actions.append(action)
        self._more.update(more)
        if self._task is None:
            session = self._session()
            assert session is not None, "only the session itself asks"
            self._task = session.hub.loop.create_task(self._run(session))

    async def _run(self, session: MqttSession) -> None:
        try:
            while self._actions:
                actions, self._actions = self._actions, []
                more, self._more = self._more, set()
                await session.hub.broker.cursors.save(session, *more)
                session.hub.broker.troubles.tell("session-answer", actions)
        except OnelogError as error:
            self._actions.clear()
            if session.connection is not None:
                session.connection.fail(error)
        finally:
            self._task = None

    async def finish(self) -> None:
        """Wait until nothing waits."""
        while self._task is not None:
            await asyncio.wait((self._task,))
