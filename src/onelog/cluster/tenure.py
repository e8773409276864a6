"""Whether what this node leads may have another leader by now, for so long that reads must stop.

Rules:
- A leader that is cut off from the metadata store does not see that another one was elected. What
  it shows is then stale, and must not be staler than a registration lasts (`node_ttl_ms`).
- While the registration was kept lately, rows are seen at once: reads are served.
- Otherwise the next leader is one of the replicas in ISR or ELR, and each closes its feed before it
  does anything in a newer epoch. So while all their feeds are open, and each node has answered a
  ping that was sent lately, nobody else leads: the store may be away for everybody.
- A leader that nobody can follow (no other replica is in sync) stays one.
- Times are those of this node's own loop. A node that stood still trusts nothing from before.
"""

from __future__ import annotations

from collections.abc import Callable

from onelog.cluster.leader import ReplicaLeader


class Tenure:
    """How long this node may show what it leads."""

    def __init__(
        self,
        ttl_s: float,
        now: Callable[[], float],
        kept_at: Callable[[], float],
        answered_at: Callable[[int], float],
    ) -> None:
        """`kept_at` says when the registration was kept last, `answered_at` when the newest ping
        was sent that a node has answered."""
        self._ttl_s = ttl_s
        self._now = now
        self._kept_at = kept_at
        self._answered_at = answered_at

    @property
    def is_kept(self) -> bool:
        """Whether the registration was kept lately: then whatever is led here is."""
        return self._kept_at() >= self._now() - self._ttl_s

    def holds(self, leader: ReplicaLeader) -> bool:
        """Whether nobody else can have led a partition for longer than a registration lasts."""
        if self.is_kept:
            return True
        since = self._now() - self._ttl_s
        return all(
            leader.feeds(node) and self._answered_at(node) >= since for node in leader.rivals
        )
