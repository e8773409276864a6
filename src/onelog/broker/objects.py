"""The object store of a broker, for people: what it was asked, what that cost, whether it can be
trusted, and what lies there for nothing.

Rules: work that blocks has a thread of its own, one job at a time: no reader and no sync waits for
it. A broker without a store says so. Who writes objects says which of them are needed (`keepers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import InvalidRequest
from onelog.log.couriers import RemoteCouriers
from onelog.log.pool import Pool
from onelog.log.store_restore import BucketStream, StoreRestore
from onelog.objects.counts import KINDS, Prices, Usage
from onelog.objects.names import chains_of
from onelog.objects.probe import Probed, probe
from onelog.objects.store import ObjectStore
from onelog.objects.sweeping import Keeper, Swept, sweep, together
from onelog.observe.metrics import Sample
from onelog.observe.troubles import Troubles

__all__ = [
    "NO_PRICES",
    "BucketStream",
    "CacheSettings",
    "Objects",
    "Probed",
    "StoreStatus",
    "Swept",
    "SweptChain",
]

NO_PRICES: Final = Prices(0, 0, 0, 0, 0, 0)
SWEEP: Final = "store-sweep"
"""Incidents: what nothing names could not be deleted; the next day's sweep tries again."""
_SWEEPS_S: Final = (3600.0, 24 * 3600.0)
"""The first sweep after a start, and those after it."""
_SWEEP_PAUSE_S: Final = 0.2
"""After each thousand names: a sweep is in no hurry."""


class SweptChain(NamedTuple):
    """A chain whose older epochs may have left objects."""

    store: ObjectStore
    name: str
    keeper: Keeper


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What of the store's bytes is kept on this machine."""

    directory: Path | None = None
    """None: `cold` in the data directory."""
    cache_bytes: int = 1024 * 1024 * 1024
    index_bytes: int = 256 * 1024 * 1024


class StoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and bytes of a time, and what they cost."""

    put: int
    get: int
    list: int
    delete: int
    sent_bytes: int
    received_bytes: int
    dollars: float


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The object store at a glance."""

    url: str
    last_success_ms: int
    """When it answered last; 0: it was not asked yet."""
    last_error: str
    """What it said when it failed; empty: the last request did not fail."""
    errors: int
    throttled: int
    refused: int
    couriers: int
    """Cold reads that may run at once now; fewer than configured while the store throttles."""
    waiting: int
    """Cold reads that wait for a courier."""
    hour: StoreUsage
    month_dollars: float
    """What a month like the last hour costs in requests and transfer; storage comes on top."""
    total: StoreUsage
    """Since the start."""


class Objects:
    """The object store of a broker."""

    def __init__(
        self,
        prices: Prices,
        couriers: RemoteCouriers,
        clock: Clock,
        troubles: Troubles,
    ) -> None:
        self.store: ObjectStore | None = None
        self.keepers: dict[str, Keeper] = {}
        """Who says which objects of a folder (`t/`) are needed; who writes them adds itself."""
        self._chains: list[SweptChain] = []
        self.more_samples: list[Callable[[], Iterable[Sample]]] = []
        """Metrics of those that write to the store."""
        self.restoring: StoreRestore | None = None
        """Who restores streams; the assembly hands it over."""
        self._prices = prices
        self._couriers = couriers
        self._clock = clock
        self._troubles = troubles
        self._thread: Pool | None = None
        self._daily: asyncio.Task[None] | None = None

    def _opened(self) -> ObjectStore:
        if self.store is None:
            raise InvalidRequest(
                "this broker has no object store: set store.url (s3://BUCKET/PREFIX) and start it"
                " again"
            )
        return self.store

    @property
    def url(self) -> str:
        """The URL of the store; empty: there is none."""
        return "" if self.store is None else self.store.url

    def status(self) -> StoreStatus:
        """What the store was asked. Raises InvalidRequest when there is none."""
        counts = self._opened().counts
        hour = self._priced(counts.last_hour())
        return StoreStatus(
            url=self._opened().url,
            last_success_ms=counts.last_success_ms,
            last_error=counts.last_error,
            errors=counts.errors,
            throttled=counts.throttled,
            refused=counts.refused,
            couriers=self._couriers.at_once,
            waiting=self._couriers.waiting,
            hour=hour,
            month_dollars=round(hour.dollars * 730, 2),
            total=self._priced(counts.total),
        )

    def _priced(self, usage: Usage) -> StoreUsage:
        return StoreUsage(**usage._asdict(), dollars=round(self._prices.dollars(usage), 6))

    async def check(self) -> Probed:
        """Try the store. Raises what it does wrong."""
        store = self._opened()
        return await self._pool().run(lambda: probe(store))

    async def restore(
        self, streams: Sequence[str], *, dry_run: bool, take_over: bool = False
    ) -> list[BucketStream]:
        """Restore streams that lie in the store, and that this broker does not have. With
        `take_over` also those that another broker wrote lately."""
        self._opened()
        if self.restoring is None:
            raise InvalidRequest("this broker restores nothing: its engines are not its own")
        return await self.restoring.run(streams, dry_run=dry_run, take_over=take_over)

    async def sweep(self, *, dry_run: bool) -> Swept:
        """Delete what nothing names."""
        store, keepers = self._opened(), dict(self.keepers)
        sweeps = [(store, keepers)]
        for chain in self._chains:
            own = {chains_of(chain.name): chain.keeper}
            if chain.store.url == store.url:
                keepers.update(own)
            else:
                sweeps.append((chain.store, own))
        return await self._pool().run(
            lambda: together(
                sweep(one, asked, dry_run=dry_run, pause_s=_SWEEP_PAUSE_S) for one, asked in sweeps
            )
        )

    def keep_chain(self, chain: SweptChain) -> None:
        """Let sweeps take what older epochs of a chain left, wherever it lies."""
        self._chains.append(chain)

    def sweep_daily(self) -> None:
        """From now on, delete each day what nothing names."""
        assert self._daily is None, "sweeps are made already"
        self._daily = asyncio.create_task(self._sweep_daily(), name="onelog-sweep")

    async def _sweep_daily(self) -> None:
        wait_s, later_s = _SWEEPS_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = later_s
            try:
                await self.sweep(dry_run=False)
            except Exception as error:  # noqa: BLE001 - the next day may do better
                self._troubles.note(SWEEP, "store", error)

    def _pool(self) -> Pool:
        if self._thread is None:
            self._thread = Pool("objects", 1, self._troubles)
        return self._thread

    async def close(self) -> None:
        """Wait for what runs."""
        if self._daily is not None:
            self._daily.cancel()
            await asyncio.wait([self._daily])
            self._daily = None
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.close()

    def samples(self) -> Iterable[Sample]:
        """Metrics; none without a store."""
        if self.store is None:
            return
        for samples in self.more_samples:
            yield from samples()
        counts, couriers = self.store.counts, self._couriers
        for kind in KINDS:
            yield Sample(
                "onelog_store_requests_total",
                "Requests to the object store, by kind.",
                "counter",
                getattr(counts, kind),
                (("kind", kind),),
            )
        rows: list[tuple[str, str, float]] = [
            ("sent_bytes_total", "Bytes sent to the object store.", counts.sent_bytes),
            ("received_bytes_total", "Bytes that the store sent.", counts.received_bytes),
            ("errors_total", "Calls of the object store that failed.", counts.errors),
            ("throttled_total", "Calls that the object store throttled.", counts.throttled),
            ("refused_total", "Calls refused: keys, rights, clocks.", counts.refused),
            ("cold_reads_total", "Runs of the log that couriers brought.", couriers.brought),
            ("cold_reads_late_total", "Cold reads that took too long.", couriers.late),
            ("cold_reads_waiting", "Cold reads that wait for a courier.", couriers.waiting),
            ("couriers", "Cold reads that may run at once.", couriers.at_once),
        ]
        if counts.last_success_ms:
            age_s = (self._clock.now_ms() - counts.last_success_ms) / 1000
            rows.append(("idle_seconds", "Since the store last answered well.", max(0.0, age_s)))
        for name, about, value in rows:
            full = f"onelog_store_{name}"
            yield Sample(full, about, "counter" if name.endswith("_total") else "gauge", value)
