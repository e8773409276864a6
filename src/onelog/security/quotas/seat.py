"""The seat of one connection in the quotas: what it takes from, and what it holds.

Rules:
- A connection counts what it did once per read or request, after it did it. The answer is how long
  it waits, and its throttle (`net/throttle.py`) holds it for that long.
- Things that are held (the connection itself, its subscriptions) are counted whether or not a quota
  bounds them, so that a quota that comes later begins with the right number. One that is over a
  new quota keeps what it has, and gets nothing more.
- A seat without a quota takes from nothing: `is_paced` and `paces_publish` are for a look where a
  call would be too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onelog.base.errors import QuotaExceeded
from onelog.net.throttle import Throttle, ThrottleCounters, Throttled
from onelog.security.quotas.bucket import TokenBucket
from onelog.security.quotas.entities import MEANINGS, Limit

if TYPE_CHECKING:
    from onelog.security.quotas.table import ClientQuotas

Buckets = Sequence[TokenBucket]
_NONE: Final[tuple[TokenBucket, ...]] = ()
_UNBOUND: Final[dict[Limit, Buckets]] = {}


class CountExceeded(QuotaExceeded):
    """As many of something are there as a quota allows."""

    def __init__(self, limit: Limit, most: int) -> None:
        super().__init__(
            f"the quota of {most} {MEANINGS[limit]} is used up; `onelog quota list` shows whose"
            " quota that is"
        )
        self.most = most


class RateExceeded(QuotaExceeded):
    """More was done than a rate allows, and there is no connection that could be held back."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            f"the quota is used up: try again in {wait_s:.1f} s; `onelog quota list` shows whose"
            " quota that is"
        )
        self.wait_s = wait_s


class Tally:
    """How many of something the sharers of a limit hold together."""

    __slots__ = ("__weakref__", "used")

    def __init__(self) -> None:
        self.used = 0


class QuotaSeat:
    """Made by `ClientQuotas.join`, ended by `leave`."""

    __slots__ = (
        "_counters",
        "_held",
        "_owner",
        "_quotas",
        "_tallies",
        "_throttle",
        "buckets",
        "client",
        "is_paced",
        "listener",
        "paces_publish",
        "patience_s",
        "user",
    )

    def __init__(
        self,
        quotas: ClientQuotas,
        owner: Throttled,
        counters: ThrottleCounters,
        user: str,
        client: str,
        listener: str,
    ) -> None:
        self._quotas = quotas
        self._owner: Throttled | None = owner
        self._counters = counters
        self.patience_s = float("inf")
        """For how long the connection may be held back at once."""
        self._throttle: Throttle | None = None
        """Made when the connection is held back for the first time."""
        self.user = user
        self.client = client
        self.listener = listener
        self._held: dict[Limit, int] = {}
        self.buckets: Mapping[Limit, Buckets] = _UNBOUND
        """The buckets of each rate that is bounded."""
        self._tallies: Mapping[Limit, Sequence[tuple[Tally, int]]] = {}
        """For each number that is bounded: who holds how many, and how many that may be."""
        self.is_paced = False
        """Whether any rate is bounded."""
        self.paces_publish = False
        """Whether a rate of publishes is."""

    # -- rates

    def publish(self, messages: int, size_bytes: int, requests: int = 0) -> float:
        """Count publishes. Returns for how long the connection is held back, in seconds."""
        now = self._quotas.now()
        wait_s = 0.0
        for limit, count in (
            (Limit.PUBLISH_MESSAGES, messages),
            (Limit.PUBLISH_BYTES, size_bytes),
            (Limit.REQUESTS, requests),
        ):
            # One who takes nothing of a shared bucket does not wait for those who took too much.
            for bucket in self.buckets.get(limit, _NONE) if count else _NONE:
                wait_s = max(wait_s, bucket.debit(count, now))
        return self._hold(wait_s)

    def ask(self, requests: int) -> float:
        """Count requests. Returns for how long the connection is held back, in seconds."""
        return self._take(Limit.REQUESTS, requests)

    def fetch(self, size_bytes: int) -> float:
        """Count fetched bytes. Returns for how long the connection is held back, in seconds."""
        return self._take(Limit.FETCH_BYTES, size_bytes)

    def _take(self, limit: Limit, count: int) -> float:
        now, wait_s = self._quotas.now(), 0.0
        for bucket in self.buckets.get(limit, _NONE) if count else _NONE:
            wait_s = max(wait_s, bucket.debit(count, now))
        return self._hold(wait_s)

    def _hold(self, wait_s: float) -> float:
        if wait_s > 0 and self._owner is not None:
            if self._throttle is None:
                self._throttle = Throttle(self._owner, self._counters, self.patience_s)
            self._throttle.hold(wait_s)
        return wait_s

    @property
    def is_held(self) -> bool:
        """Whether the connection is held back now."""
        return self._throttle is not None and self._throttle.is_held

    # -- numbers

    def take(self, limit: Limit, count: int = 1) -> None:
        """Hold so many more of something. Raises QuotaExceeded when that is too many."""
        for tally, most in self._tallies.get(limit, ()):
            if tally.used + count > most:
                self._quotas.refusals[limit] += 1
                raise CountExceeded(limit, most)
        self.keep(limit, count)

    def keep(self, limit: Limit, count: int = 1) -> None:
        """Hold so many more, or less, without a check: they are there already, or gone."""
        self._held[limit] = self._held.get(limit, 0) + count
        for tally, _most in self._tallies.get(limit, ()):
            tally.used += count

    def held(self, limit: Limit) -> int:
        """How many of something the connection holds."""
        return self._held.get(limit, 0)

    # -- changes

    def rename(self, client: str) -> None:
        """The client calls itself otherwise from now on. Raises QuotaExceeded when there are too
        many connections of that name."""
        self._count(-1)
        self.client = client
        self._quotas.resolve(self)
        connections = self._held.pop(Limit.CONNECTIONS, 0)
        self._count(1)
        self.take(Limit.CONNECTIONS, connections)

    def renew(self) -> None:
        """Quotas changed: take from what counts now. The connection is held back no longer."""
        if self._owner is None:
            return  # it left when an earlier one changed
        self._count(-1)
        self._quotas.resolve(self)
        self._count(1)
        if self._throttle is not None:
            self._throttle.free()
        if self._owner is not None:
            self._owner.quotas_changed()

    def settle(
        self,
        buckets: Mapping[Limit, Buckets],
        tallies: Mapping[Limit, Sequence[tuple[Tally, int]]],
    ) -> None:
        """Take from these."""
        self.buckets, self._tallies = buckets, tallies
        self.is_paced = bool(buckets)
        self.paces_publish = Limit.PUBLISH_MESSAGES in buckets or Limit.PUBLISH_BYTES in buckets

    def _count(self, sign: int) -> None:
        """Put what is held into the tallies, or take it out."""
        for limit, count in self._held.items():
            for tally, _most in self._tallies.get(limit, ()):
                tally.used += sign * count

    def leave(self) -> None:
        """The connection is gone. Idempotent."""
        self._count(-1)
        self._held.clear()
        self._owner = None
        if self._throttle is not None:
            self._throttle.let_go()
            self._throttle = None
        self._quotas.left(self)
