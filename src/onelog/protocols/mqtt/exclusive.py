"""Exclusive subscriptions: `$exclusive/<filter>` has one subscriber at a time over all clients.

Rules: whoever comes second is refused (0x97, as EMQX does) until the first unsubscribes or its
connection goes. Plain subscriptions to the same filter are not touched by it. A persistent session
that comes back claims its filters again; one that another client has by then, it loses.
"""

from __future__ import annotations

from onelog.base.errors import QuotaExceeded


class Exclusive:
    """Who has which filter."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, text: str, client_id: str) -> None:
        """Take a filter; QuotaExceeded when another client has it."""
        owner = self._owners.setdefault(text, client_id)
        if owner != client_id:
            raise QuotaExceeded(f"$exclusive/{text} has a subscriber already")

    def release(self, text: str, client_id: str) -> None:
        """Give a filter back, if it is the client's."""
        if self._owners.get(text) == client_id:
            del self._owners[text]
