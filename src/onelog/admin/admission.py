"""Which HTTP connections have a place, which wait for their peer, and which are sent away.

Rules: a request has a place from its head to the end of its answer, and there are `places`. A
connection without a request has none: it waits for its peer, and so does one whose body is still
coming. When there is no place for a request, the body that is awaited for longest gives its place
up; without such a body, the request is refused. `OPEN_PER_PLACE` times as many connections stand at
most; one more, and the one that waits for its peer for longest is sent away. So peers that ask for
nothing keep nobody out, and every request has an answer. This module knows no HTTP.
"""

from __future__ import annotations

from typing import Final, Protocol

OPEN_PER_PLACE: Final = 4
"""Connections that may stand, for each place."""
PARTING_MAX: Final = 1000
"""Connections that were refused and whose peers still send."""


class Visitor(Protocol):
    """A connection, as far as admission needs to know it."""

    def send_away(self) -> None:
        """Refuse what the peer asks, and close."""


class Admission:
    """The connections of one listener; each is in one of four lists."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._idle: dict[Visitor, None] = {}
        """No request is here. The first has waited for longest."""
        self._coming: dict[Visitor, None] = {}
        """They have a place, and their body is not complete. The first has waited for longest."""
        self._answered: dict[Visitor, None] = {}
        """They have a place, and wait for us."""
        self.parting: dict[Visitor, None] = {}
        """They were sent away, and are not closed yet."""
        self.refused = 0
        """Requests and connections that were sent away."""

    def enter(self, visitor: Visitor) -> None:
        """A connection stands; another one goes if there are too many."""
        self._idle[visitor] = None
        standing = len(self._idle) + len(self._coming) + len(self._answered)
        if standing > self.places * OPEN_PER_PLACE:
            longest = next(iter(self._idle))  # the visitor itself, if all others are busy
            longest.send_away()

    def take_place(self, visitor: Visitor) -> bool:
        """The head of a request is here. False: there is no place for it."""
        if visitor in self._answered or visitor in self._coming:
            return True  # a request right behind another one shares its place
        if len(self._coming) + len(self._answered) >= self.places:
            if not self._coming:
                return False
            next(iter(self._coming)).send_away()
        self._move(visitor, self._coming)
        return True

    def wait_for_answer(self, visitor: Visitor) -> None:
        """The request is complete: it waits for us."""
        if visitor in self._coming:
            self._move(visitor, self._answered)

    def leave_place(self, visitor: Visitor) -> None:
        """The answer is complete: the connection waits for its peer again."""
        if visitor in self._answered or visitor in self._coming:
            self._move(visitor, self._idle)

    def part(self, visitor: Visitor) -> bool:
        """A connection is sent away. False: too many are, so it has to go at once."""
        self._move(visitor, self.parting)
        return len(self.parting) <= PARTING_MAX

    def leave(self, visitor: Visitor) -> None:
        """A connection is gone."""
        for row in (self._idle, self._coming, self._answered, self.parting):
            row.pop(visitor, None)

    def _move(self, visitor: Visitor, to: dict[Visitor, None]) -> None:
        self.leave(visitor)
        to[visitor] = None
