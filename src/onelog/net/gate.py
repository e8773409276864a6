"""Limits of connections: how many in all, from one address, and per second.

Rules: the gate is asked once per connection, before anything is read from it. Guards (bans, quotas
of addresses) may keep an address out. The rate is a token bucket on the monotonic clock. An IPv6
peer is counted by its /64, which is what one customer gets. One gate may stand before several
listeners.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import msgspec

from onelog.base.clock import Clock
from onelog.observe import Sample


class GateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of connections; 0 is no bound."""

    total_max: int = 0
    per_host_max: int = 0
    per_second_max: int = 0
    """It is also how many may come at once after a quiet time."""


class Gate:
    """Counts connections; all methods are called on the loop."""

    def __init__(self, limits: GateLimits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self._hosts: dict[str, int] = {}
        self._tokens = float(limits.per_second_max)
        self._filled_at = clock.monotonic()
        self.open = 0
        """Connections now."""
        self.accepted = 0
        self.refused_total = 0
        self.refused_host = 0
        self.refused_rate = 0
        self.refused_guard = 0
        self.guards: tuple[Callable[[str], bool], ...] = ()
        """Asked for the address of each connection; one that says no keeps it out."""
        self.handshakes_failed = 0
        """Connections that ended before their protocol began: without a word, or in their PROXY
        header, TLS handshake or WebSocket upgrade."""
        self.handshakes_late = 0
        """Those among them that ended at the deadline."""
        self.writes_stuck = 0
        """Connections that were cut off because their peer took no bytes."""

    def enter(self) -> bool:
        """Whether a connection may come in. If so, the caller calls `leave` when it ends."""
        limits = self.limits
        if limits.total_max and self.open >= limits.total_max:
            self.refused_total += 1
            return False
        if limits.per_second_max and not self._take_token():
            self.refused_rate += 1
            return False
        self.open += 1
        self.accepted += 1
        return True

    def take_host(self, host: str) -> str | None:
        """Count a connection for its host. Returns the key to `leave` with, None if the host may
        not come in."""
        for admits in self.guards:
            if not admits(host):
                self.refused_guard += 1
                return None
        most = self.limits.per_host_max
        if not most:
            return ""
        key = host_key(host)
        count = self._hosts.get(key, 0)
        if count >= most:
            self.refused_host += 1
            return None
        self._hosts[key] = count + 1
        return key

    def leave(self, host_key: str | None = None) -> None:
        """A connection that came in has ended."""
        assert self.open > 0
        self.open -= 1
        if host_key:
            left = self._hosts[host_key] - 1
            if left:
                self._hosts[host_key] = left
            else:
                del self._hosts[host_key]

    def samples(self, listener: str) -> tuple[Sample, ...]:
        """Numbers for the metrics; `listener` names what the gate stands before."""
        label = ("listener", listener)
        refused = "onelog_connections_refused_total"
        about = "Connections closed at once because of a limit."
        late = self.handshakes_late
        failed = "onelog_handshakes_failed_total"
        ended = "Connections that ended before their protocol began, TLS and WebSocket included."
        return (
            Sample("onelog_connections", "Connections now.", "gauge", self.open, (label,)),
            Sample(
                "onelog_connections_accepted_total",
                "Connections let in.",
                "counter",
                self.accepted,
                (label,),
            ),
            Sample(refused, about, "counter", self.refused_total, (label, ("limit", "total"))),
            Sample(refused, about, "counter", self.refused_host, (label, ("limit", "host"))),
            Sample(refused, about, "counter", self.refused_rate, (label, ("limit", "rate"))),
            Sample(refused, about, "counter", self.refused_guard, (label, ("limit", "address"))),
            Sample(
                "onelog_connections_stuck_total",
                "Connections cut off because their peer took no bytes.",
                "counter",
                self.writes_stuck,
                (label,),
            ),
            Sample(failed, ended, "counter", late, (label, ("why", "late"))),
            Sample(
                failed, ended, "counter", self.handshakes_failed - late, (label, ("why", "bad"))
            ),
        )

    def _take_token(self) -> bool:
        now = self._clock.monotonic()
        most = self.limits.per_second_max
        self._tokens = min(float(most), self._tokens + (now - self._filled_at) * most)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def host_key(host: str) -> str:
    """What an address is counted by: itself, or the /64 of an IPv6 address."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(address) >> 64 << 64)}/64"
