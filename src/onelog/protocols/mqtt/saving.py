"""What a session does only after its state is durable: one save serves everything that waits.

Rules: actions run in the order in which they were asked for. When saving fails, the connection ends
and the actions are not run: the client asks again. An action may have an `undone` callback for
that. A client is not read while a thousand of its packets wait here (I8). This object has no strong
reference to the session, so that the session is freed when its connection releases it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from onelog.base.errors import OnelogError, StorageError
from onelog.broker import Cursor

if TYPE_CHECKING:
    from onelog.protocols.mqtt.session import MqttSession

WAITING_MAX: Final = 1000
"""Actions that may wait for one save before the client is not read: a disk may hang."""


class _Waiting(NamedTuple):
    action: Callable[[], None]
    undone: Callable[[], None]


class Saver:
    """Saves one session."""

    __slots__ = ("_more", "_session", "_task", "_waiting")

    def __init__(self, session: MqttSession) -> None:
        self._session = weakref.ref(session)
        self._waiting: list[_Waiting] = []
        self._more: set[Cursor] = set()
        self._task: asyncio.Task[None] | None = None

    def then(
        self,
        action: Callable[[], None],
        *more: Cursor,
        undone: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `action` when the current state, and that of `more` cursors, is durable.

        `undone` is called instead when it cannot be made durable.
        """
        self._waiting.append(_Waiting(action, undone))
        self._more.update(more)
        if self._task is None:
            session = self._session()
            assert session is not None, "only the session itself asks"
            self._task = session.hub.loop.create_task(self._run(session))

    @property
    def is_full(self) -> bool:
        """Whether so many actions wait that no more should be asked for."""
        return len(self._waiting) >= WAITING_MAX

    async def _run(self, session: MqttSession) -> None:
        troubles = session.hub.broker.troubles
        waiting: list[_Waiting] = []
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                more, self._more = self._more, set()
                await session.hub.broker.cursors.save(session, *more)
                troubles.tell("session-answer", [row.action for row in waiting])
        except OnelogError as error:
            self._give_up(session, waiting, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody waits for ever
            troubles.note("session-answer", "save", error)
            self._give_up(session, waiting, StorageError("the session could not be saved"))
        finally:
            self._task = None

    def _give_up(self, session: MqttSession, begun: list[_Waiting], error: OnelogError) -> None:
        waiting, self._waiting = [*begun, *self._waiting], []
        if session.connection is not None:
            session.connection.fail(error)
        session.hub.broker.troubles.tell("session-answer", [row.undone for row in waiting])

    async def finish(self) -> None:
        """Wait until no action waits."""
        while self._task is not None:
            await asyncio.wait((self._task,))
