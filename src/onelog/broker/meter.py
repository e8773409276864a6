"""The quotas of principals, including publishes that were staged before they were counted.

Rules:
- The kernel stages a whole read of plain publishes; the read is counted afterwards, once. What the
  quota cannot take is a debt.
- A principal with a debt has no routes: each of its publishes is checked, and refused until the
  quota has taken the debt, bit by bit. So a quota is exceeded by at most one read of each
  connection, and that excess is counted, too.
"""

from __future__ import annotations

from onelog.base.errors import QuotaExceeded
from onelog.broker.hooks import Principal, Quotas


class Meter:
    """The quotas of all principals, and their debts."""

    __slots__ = ("_debts", "_quotas")

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._debts: dict[Principal, tuple[int, int]] = {}
        """Messages and bytes that were staged and that no quota has taken yet."""

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        """Take from the principal's share, debts first. Raises QuotaExceeded when it is used up."""
        error = self.debt_of(principal)
        if error is not None:
            raise error
        self._quotas.take_publish(principal, messages, size_bytes)

    def charge(self, principal: Principal, messages: int, size_bytes: int) -> QuotaExceeded | None:
        """Count messages that are staged already. Returns the error when the principal has a debt
        now."""
        owed_messages, owed_bytes = self._debts.pop(principal, (0, 0))
        return self._pay(principal, owed_messages + messages, owed_bytes + size_bytes)

    def debt_of(self, principal: Principal) -> QuotaExceeded | None:
        """The error when the principal has a debt that its quota still cannot take."""
        if principal not in self._debts:
            return None
        return self._pay(principal, *self._debts.pop(principal))

    def _pay(self, principal: Principal, messages: int, size_bytes: int) -> QuotaExceeded | None:
        """Take as much as the quota gives: all, else a half, a quarter, and so on."""
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
