"""What quotas count, also of publishes that were staged before anybody counted them.

Rules:
- The kernel stages a whole read of plain publishes; the read is counted afterwards, once. What the
  quota does not take any more is owed.
- A principal that owes has no routes: each of its publishes is looked at, and refused until the
  quota has taken the debt, bit by bit. So a quota is exceeded by one read of each connection at
  most, and that is counted, too.
"""

from __future__ import annotations

from onelog.base.errors import QuotaExceeded
from onelog.broker.hooks import Principal, Quotas


class Meter:
    """The quotas of all principals, and who owes."""

    __slots__ = ("_debts", "_quotas")

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._debts: dict[Principal, tuple[int, int]] = {}
        """Messages and bytes that were staged and that no quota has taken yet."""

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        """Take from the principal's share, debts first; raises QuotaExceeded when it is used up."""
        error = self.debt_of(principal)
        if error is not None:
            raise error
        self._quotas.take_publish(principal, messages, size_bytes)

    def charge(self, principal: Principal, messages: int, size_bytes: int) -> QuotaExceeded | None:
        """Count what is staged already; the error when the principal owes now."""
        owed_messages, owed_bytes = self._debts.pop(principal, (0, 0))
        return self._pay(principal, owed_messages + messages, owed_bytes + size_bytes)

    def debt_of(self, principal: Principal) -> QuotaExceeded | None:
        """The error when the principal owes, also now."""
        if principal not in self._debts:
            return None
        return self._pay(principal, *self._debts.pop(principal))

    def _pay(self, principal: Principal, messages: int, size_bytes: int) -> QuotaExceeded | None:
        """Take what the quota gives: all, or else a half if it gives that, a quarter, and so on."""
        refused: QuotaExceeded | None = None
        halved = 0
        while (part := (messages >> halved, size_bytes >> halved)) != (0, 0):
            try:
                self._quotas.take_publish(principal, *part)
            except QuotaExceeded as error:
                refused = error
            else:
                messages, size_bytes = messages - part[0], size_bytes - part[1]
            halved += 1
        if refused is not None:
            self._debts[principal] = messages, size_bytes
        return refused
