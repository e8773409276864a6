"""State that is recovered from an internal stream, or known to be unknown.

Rules: a request for state that could not be read gets StateUnknown, every time, so no request is
served on a guess (I9). It is a standing trouble, and the process is not ready; requests that do not
need the state are served. Only a restart with restored files ends it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, TypeVar

from onelog.base.errors import StateUnknown
from onelog.broker.shards import STATE_UNKNOWN
from onelog.observe import Troubles

State = TypeVar("State")


class RecoveredState(Generic[State]):
    """The state that one internal stream keeps. `open` it, then `get` it."""

    __slots__ = ("_state", "_stream", "_troubles", "_why")

    def __init__(self, stream: str, troubles: Troubles) -> None:
        self._stream = stream
        self._troubles = troubles
        self._state: State | None = None
        self._why = f"what {stream} keeps has not been read"

    async def open(self, opening: Awaitable[State]) -> State | None:
        """Recover it; None: its state is unknown. Other errors than StateUnknown are raised."""
        try:
            self._state = await opening
        except StateUnknown as error:
            self._why = str(error)
            self._troubles.stand(STATE_UNKNOWN, self._stream, error, blocks=True)
        else:
            self._troubles.clear(STATE_UNKNOWN, self._stream)
        return self._state

    def find(self) -> State | None:
        """The state if it is known, for callers that only look."""
        return self._state

    def get(self) -> State:
        """The state. Raises StateUnknown."""
        if self._state is None:
            raise StateUnknown(self._why)
        return self._state
