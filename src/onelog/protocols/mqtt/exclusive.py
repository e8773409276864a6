"""Exclusive subscriptions: `$exclusive/<filter>` has one subscriber at a time over all clients.

Rules: a second subscriber is refused (0x97, as in EMQX) until the first one unsubscribes or
disconnects. Plain subscriptions to the same filter are not affected. A persistent session that
comes back claims its filters again, and loses those that another client has by then. On several
nodes, the one that owns the shard of a filter has its subscriber; any other refuses it.
"""

from __future__ import annotations

from collections.abc import Callable

from onelog.base.errors import QuotaExceeded


class Exclusive:
    """Which client has which filter."""

    def __init__(self, check_owned: Callable[[bytes], None]) -> None:
        self._check_owned = check_owned
        self._owners: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, text: str, client_id: str) -> None:
        """Take a filter. Raises QuotaExceeded when another client has it, NotOwner."""
        self._check_owned(text.encode())
        owner = self._owners.setdefault(text, client_id)
        if owner != client_id:
            raise QuotaExceeded(f"$exclusive/{text} has a subscriber already")

    def release(self, text: str, client_id: str) -> None:
        """Give a filter back, if the client has it."""
        if self._owners.get(text) == client_id:
            del self._owners[text]
