"""Addresses that fail to log in: their answers come late, then they are kept out for a while.

Rules:
- A failed login is one with a wrong password, SCRAM proof or token. A peer without credentials has
  tried nothing, and a certificate that was refused is no guess: neither counts.
- Failures of an address are a level that falls by itself, evenly, to nothing within the window.
  Each failure doubles the delay of its answer. When the level reaches the limit, the address is
  banned: it may not connect, and no connection that it still has may log in. Those that are logged
  in go on.
- An IPv6 address counts by its /64, which is what one customer gets.
- Settings may change while the broker runs: they count from the next failed login on, and a ban
  lasts for as long as was said when it began.
- Bans are in memory: a restart lifts them. Both tables are bounded (I8): the address whose last
  failure is longest ago is forgotten first.
- Addresses of `exempt` are neither counted nor banned: this machine's own, by default, so that
  nobody on it can keep the operator out.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated, NotFound
from onelog.base.networks import is_within, parse_networks
from onelog.net.gate import host_key
from onelog.observe import Sample, get_logger

_log = get_logger("security")

ADDRESSES_MAX: Final = 65_536
"""Addresses with failed logins that are remembered, and as many that are banned."""
_DOUBLINGS_MAX: Final = 30

T = TypeVar("T")


class AddressBanned(NotAuthenticated):
    """No login of this address is looked at for now."""


class BanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an operator."""

    failures: int = 10
    """Failed logins within the window that ban an address; 0: none is banned or delayed."""
    window_s: float = 60.0
    ban_s: float = 600.0
    delay_s: float = 0.1
    """Delay of the answer to the first failed login; each further one doubles it."""
    delay_max_s: float = 4.0
    exempt: tuple[str, ...] = ("127.0.0.0/8", "::1/128")


class BanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An address that may not connect."""

    address: str
    since_ms: int
    until_ms: int


class _Failures:
    __slots__ = ("at", "level")

    def __init__(self, at: float) -> None:
        self.level = 0.0
        self.at = at


class Bans:
    """The failed logins of every listener of this process."""

    def __init__(self, settings: BanSettings, clock: Clock) -> None:
        self.settings = settings
        """In force now; the networks that are exempt stay those of the start."""
        self._clock = clock
        self._exempt = parse_networks("security.bans.exempt", settings.exempt)
        self._failing: OrderedDict[str, _Failures] = OrderedDict()
        self._banned: OrderedDict[str, tuple[float, BanInfo]] = OrderedDict()
        self.failures = 0
        self.bans = 0

    def __len__(self) -> int:
        return len(self._banned)

    # -- logins

    async def guard(self, host: str, check: Callable[[], Awaitable[T]]) -> T:
        """Let a peer prove who it is. A failure counts against its address, and is answered late.

        Raises what the check raises, and AddressBanned for an address that is banned.
        """
        self.check(host)
        try:
            return await check()
        except NotAuthenticated:
            await asyncio.sleep(self.failed(host))
            raise

    def check(self, host: str) -> None:
        """Raise AddressBanned for an address that is banned."""
        if not self.admits(host):
            raise AddressBanned(
                f"too many logins from {host_key(host)} failed, so it may not log in for a while;"
                " `onelog ban list` shows for how long, `onelog ban lift` ends that"
            )

    def admits(self, host: str) -> bool:
        """Whether an address may connect."""
        if not self._banned:
            return True
        key = host_key(host)
        found = self._banned.get(key)
        if found is None:
            return True
        if found[0] > self._clock.monotonic():
            return False
        del self._banned[key]
        return True

    def failed(self, host: str) -> float:
        """Count a failed login. Returns for how many seconds its answer has to wait."""
        self.failures += 1
        settings = self.settings
        if not settings.failures or self._is_exempt(host):
            return 0.0
        key, now = host_key(host), self._clock.monotonic()
        row = self._failing.get(key)
        if row is None:
            row = self._failing[key] = _Failures(now)
            if len(self._failing) > ADDRESSES_MAX:
                self._failing.popitem(last=False)
        fallen = (now - row.at) * settings.failures / settings.window_s
        row.level, row.at = max(0.0, row.level - fallen) + 1, now
        self._failing.move_to_end(key)
        if row.level > settings.failures - 1:
            self._ban(key, now)
        doublings = min(_DOUBLINGS_MAX, int(row.level) - 1)
        return min(settings.delay_max_s, settings.delay_s * 2.0**doublings)

    def _ban(self, key: str, now: float) -> None:
        self._failing.pop(key, None)
        since_ms = self._clock.now_ms()
        until_ms = since_ms + round(self.settings.ban_s * 1000)
        row = BanInfo(address=key, since_ms=since_ms, until_ms=until_ms)
        self._banned[key] = now + self.settings.ban_s, row
        self._banned.move_to_end(key)
        if len(self._banned) > ADDRESSES_MAX:
            self._banned.popitem(last=False)
        self.bans += 1
        _log.warning("an address is banned: its logins failed", address=key, until_ms=until_ms)

    def _is_exempt(self, host: str) -> bool:
        try:
            return is_within(self._exempt, host)
        except ValueError:
            return True  # it has no address, so it is on this machine

    # -- operators

    def rows(self) -> tuple[BanInfo, ...]:
        """Every address that may not connect, the oldest ban first."""
        now = self._clock.monotonic()
        for key in [key for key, (until, _row) in self._banned.items() if until <= now]:
            del self._banned[key]
        return tuple(row for _until, row in self._banned.values())

    def lift(self, address: str) -> None:
        """Let an address connect again, at once. Raises NotFound."""
        try:
            key = host_key(str(ipaddress.ip_address(address.removesuffix("/64").partition("%")[0])))
        except ValueError:
            key = address
        if self.admits(key.removesuffix("/64")):
            raise NotFound(f"{address[:80]} is not banned; `onelog ban list` shows who is")
        del self._banned[key]

    def samples(self) -> tuple[Sample, ...]:
        """Numbers for the metrics."""
        return (
            Sample("onelog_bans", "Addresses that are banned.", "gauge", len(self.rows())),
            Sample("onelog_bans_total", "Times an address was banned.", "counter", self.bans),
            Sample(
                "onelog_logins_failed_total",
                "Logins with a wrong password, proof or token.",
                "counter",
                self.failures,
            ),
        )
