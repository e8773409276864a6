"""Parts of pieces that are small and stay in memory: index parts, and postings of topics.

Rules: bounded by bytes; the part used longest ago leaves first, and none leaves between its arrival
and its first use while it is leased. A part is fetched once for all who want it at a time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from onelog.base.errors import ColdUnavailable
from onelog.storage.cold.errands import Errand, deadline_after
from onelog.storage.engine import Lease

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Part(Generic[V]):
    __slots__ = ("fresh", "leases", "size_bytes", "value")

    def __init__(self, value: V, size_bytes: int, leases: int) -> None:
        self.value = value
        self.size_bytes = size_bytes
        self.leases = leases
        self.fresh = True


class PartLease(Lease, Generic[K, V]):
    """A part that stays until its reader had it."""

    __slots__ = ("_cache", "_part", "value")

    def __init__(self, cache: PartCache[K, V], part: _Part[V]) -> None:
        self._cache = cache
        self._part: _Part[V] | None = part
        self.value = part.value

    def __enter__(self) -> PartLease[K, V]:
        return self

    def release(self) -> None:
        """The part may leave."""
        part, self._part = self._part, None
        if part is not None:
            self._cache.release(part)


class PartCache(Generic[K, V]):
    """Parts by their keys."""

    __slots__ = ("_errands", "_lock", "_parts", "fetched", "held_bytes", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.held_bytes = 0
        self.fetched = 0
        """Parts that were fetched."""
        self._parts: OrderedDict[K, _Part[V]] = OrderedDict()
        self._errands: dict[K, Errand[_Part[V]]] = {}
        self._lock = threading.Lock()

    def find(self, key: K) -> V | None:
        """A part, if it is here."""
        with self._lock:
            part = self._parts.get(key)
            if part is None:
                return None
            part.fresh = False
            self._parts.move_to_end(key)
            return part.value

    def obtain(self, key: K, name: str, size_bytes: int, fetch: Callable[[], V]) -> PartLease[K, V]:
        """Have a part here; blocks. Raises what `fetch` raises, and ColdUnavailable."""
        with self._lock:
            part = self._parts.get(key)
            if part is not None:
                part.leases += 1
                return PartLease(self, part)
            errand = self._errands.get(key)
            is_mine = errand is None
            if errand is None:
                errand = self._errands[key] = Errand(name)
            else:
                errand.waiters += 1
        if is_mine:
            return PartLease(self, self._run_errand(key, errand, size_bytes, fetch))
        errand.wait(deadline_after(size_bytes))
        with self._lock:
            part = errand.brought
            if part is None:
                errand.waiters -= 1
        errand.fail()
        if part is None:
            raise ColdUnavailable(f"{name} is still on its way: try again")
        return PartLease(self, part)

    def _run_errand(
        self, key: K, errand: Errand[_Part[V]], size_bytes: int, fetch: Callable[[], V]
    ) -> _Part[V]:
        try:
            value = fetch()
        except BaseException as error:
            with self._lock:
                del self._errands[key]
                failure = error if isinstance(error, Exception) else None
                errand.land(None, failure or ColdUnavailable(f"{errand.name} was given up"))
            raise
        with self._lock:
            del self._errands[key]
            part = _Part(value, size_bytes, 1 + errand.waiters)
            self._parts[key] = part
            self.held_bytes += size_bytes
            self.fetched += 1
            self._evict()
            errand.land(part, None)
        return part

    def _evict(self) -> None:
        for key in list(self._parts) if self.held_bytes > self.size_bytes else ():
            part = self._parts[key]
            if part.leases == 0 or not part.fresh:
                del self._parts[key]
                self.held_bytes -= part.size_bytes
                if self.held_bytes <= self.size_bytes:
                    break

    def release(self, part: _Part[V]) -> None:
        """A lease ends."""
        with self._lock:
            part.leases -= 1

    def forget(self, key: K) -> None:
        """A part is no longer read."""
        with self._lock:
            part = self._parts.pop(key, None)
            if part is not None:
                self.held_bytes -= part.size_bytes
