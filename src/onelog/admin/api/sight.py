"""What a caller may see: while there are access rules, only what these rules let it describe.

Rules: an administrator sees everything, and so does everybody while there is no rule. A topic or
cursor is seen by whoever has any right on it. A filter is seen by whoever may have some of its
topics, or has another right to all of them. Who changes what holds for every topic of a filter (a
stream) has to have a right to all of them. What is not seen is left out of lists, and answered as
if it were not there; the words of failures, which name topics, are left out, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onelog.admin.api.declaring import Caller
from onelog.base.errors import NotAuthorized
from onelog.base.topics import is_exact
from onelog.broker import Action, Authorizer, Kind
from onelog.security.roles import AdminRole

_TOPIC: Final = (
    Action.DELIVER,
    Action.PUBLISH,
    Action.DESCRIBE,
    Action.CONFIGURE,
    Action.CREATE,
    Action.DELETE,
)
_FILTER: Final = (Action.SUBSCRIBE, *_TOPIC)
_SERVER: Final = (Action.DESCRIBE, Action.ADMIN)
_CLUSTER: Final = "cluster"
"""The broker as a whole, as rules and Kafka name it."""
_CURSOR: Final = (Action.CONSUME, Action.DESCRIBE, Action.DELETE)


class Sight:
    """The eyes of one caller."""

    def __init__(self, authorizer: Authorizer, caller: Caller) -> None:
        self._authorizer = authorizer
        self._caller = caller
        self.sees_all = caller.role is AdminRole.ADMIN or not authorizer.checks_delivery
        """Whether nothing is hidden."""

    def topic(self, topic: str) -> bool:
        """Whether it sees a topic, or a filter."""
        return self.sees_all or self._any(_TOPIC if is_exact(topic) else _FILTER, topic, Kind.TOPIC)

    def topics(self, filters: Iterable[str]) -> bool:
        """Whether it sees all of these topics and filters, and there are any."""
        rows = tuple(filters)
        return self.sees_all or (bool(rows) and all(map(self.topic, rows)))

    def whole(self, filters: Iterable[str]) -> bool:
        """Whether it has a right to every topic of these filters."""
        return self.sees_all or all(self._any(_TOPIC, row, Kind.TOPIC) for row in filters)

    @property
    def server(self) -> bool:
        """Whether it sees what the broker holds as a whole: names of streams, for their sizes."""
        return self.sees_all or self._any(_SERVER, _CLUSTER, Kind.SERVER)

    def cursor(self, name: str) -> bool:
        """Whether it sees a cursor by the name that rules have for it, as in `group/billing`."""
        return self.sees_all or self._any(_CURSOR, name, Kind.CURSOR)

    def owns(self, user: str) -> bool:
        """Whether something that belongs to a user is its own."""
        return self.sees_all or (bool(user) and user == self._caller.name)

    def _any(self, actions: Iterable[Action], resource: str, kind: Kind) -> bool:
        allows, principal = self._authorizer.allows, self._caller.principal
        return any(allows(principal, action, resource, kind) for action in actions)

    def need_all(self, what: str) -> None:
        """Raise NotAuthorized unless nothing is hidden from it."""
        if not self.sees_all:
            raise NotAuthorized(
                f"{self._caller.name} has the role {self._caller.role}: while there are access"
                f" rules, {what} may name topics that are not to be seen, and needs the role admin"
            )
