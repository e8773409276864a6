"""Credit: how many bytes of batches a peer may send before this side has dealt with earlier ones.

Rules:
- Both directions of a connection have credit of their own. Only BATCHES cost credit: all other
  frames are small, or are bounded where they are made (calls).
- A grant is a total since the beginning of the connection, so that a grant says all that the one
  before it said. HELLO is the first grant: the window.
- A sender with any credit left may send one frame, however large it is: a batch is never cut. So a
  side holds its window and one frame at most (I8).
- A peer that sends without credit, or whose grants fall or leap, ends its link (I10).
"""

from __future__ import annotations

from typing import Final

from onelog.cluster.link.layout import LinkViolation

WINDOW_BYTES_MAX: Final = 64 * 1024 * 1024
"""Credit that a peer may give at most; one that gives more ends its link."""


class SendCredit:
    """What this side may send."""

    __slots__ = ("_granted", "sent")

    def __init__(self, window: int) -> None:
        self._granted = window
        self.sent = 0

    @property
    def left(self) -> int:
        """Bytes that may be sent; nothing may be sent at 0 or below."""
        return self._granted - self.sent

    def spend(self, size: int) -> None:
        """Bytes are sent."""
        assert self.sent < self._granted, "a sender asks for credit before it sends"
        self.sent += size

    def grant(self, total: int) -> None:
        """The peer allows so many bytes since the beginning."""
        if not self._granted <= total <= self.sent + WINDOW_BYTES_MAX:
            raise LinkViolation(
                f"a grant of {total} bytes after one of {self._granted}, {self.sent} were sent"
            )
        self._granted = total


class ReceiveCredit:
    """What the peer may send."""

    __slots__ = ("_freed", "_granted", "_window", "received")

    def __init__(self, window: int) -> None:
        self._window = window
        self._granted = window
        self._freed = 0
        self.received = 0

    @property
    def held(self) -> int:
        """Bytes that came and are not dealt with."""
        return self.received - self._freed

    def take(self, size: int) -> None:
        """Bytes came."""
        if self.received >= self._granted:
            raise LinkViolation(f"{size} bytes came, but the credit was used up")
        self.received += size

    def free(self, size: int) -> int | None:
        """Bytes are dealt with. Returns the grant that the peer should hear, if it is time."""
        self._freed += size
        assert self._freed <= self.received, "only bytes that came can be dealt with"
        total = self._freed + self._window
        # Half a window at a time: a frame about credit for each of batches would be many.
        if total - self._granted < self._window // 2 and self.received < self._granted:
            return None
        if total == self._granted:
            return None
        self._granted = total
        return total
