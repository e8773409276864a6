"""Shards: which names this node owns, and the services that begin and end with them.

Rules:
- Shard k is partition k of every internal stream. The node that leads these partitions owns every
  name whose rows lie there. A node on its own owns all shards from the start.
- A service takes a shard when this node is elected, and drops it when another node is. Services
  take in the order in which they were registered, and drop in reverse. A service that raises harms
  no other: the failure is a trouble that stands, and requests for its names of this shard raise it.
- A name counts as served only while its service has taken its shard: nothing is answered from rows
  that are still being read (StateLoading), or that another node owns (NotOwner).
- From the call of `lose` on no name of the shard is served, also while a service still takes it.
- A node that may have been deposed without having heard of it answers for no name (NotOwner): its
  clients find the owner by another node. What it has stays, for it may be the owner after all.
- A write that the shard's partition refuses (NotLeader) means that the shard is lost, and never
  that its rows are damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from onelog.base.errors import (
    NotOwner,
    OnelogError,
    StateLoading,
    StateUnknown,
    Unavailable,
    again,
)
from onelog.log.cluster_map import NOBODY
from onelog.log.internal import Placement
from onelog.observe.logging import get_logger
from onelog.observe.troubles import Troubles

STATE_UNKNOWN: Final = "state-unknown"
"""Standing: the rows of an internal stream cannot be read."""
TAKE: Final = "shard-take"
"""Standing: a service could not begin to serve a shard."""
DROP: Final = "shard-drop"
"""Incidents: a service failed while it let a shard go."""
DROP_TIMEOUT_S: Final = 10.0
"""How long a service may take to let the names of a lost shard go."""

_log = get_logger("shards")


class ShardService(Protocol):
    """What keeps rows by name, for the shards that this node owns."""

    @property
    def name(self) -> str:
        """For troubles: `sessions`, `kafka-groups`."""
        ...

    async def take(self, shard: int) -> None:
        """Load the rows of a shard and begin to serve its names. A failure may leave a part of it:
        `drop` is called then."""
        ...

    async def drop(self, shard: int) -> None:
        """End serving the names of a shard: let their connections go with the protocol's own word,
        fail waiters, free memory, and write nothing. It may have been taken in part."""
        ...


class _Place:
    """One shard here."""

    __slots__ = ("failed", "is_led", "lock", "taken", "taking", "term")

    def __init__(self) -> None:
        self.is_led = False
        self.term = 0
        """Counts how often it was lost."""
        self.taken: list[ShardService] = []
        self.failed: dict[ShardService, OnelogError] = {}
        self.taking: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()


class Shards:
    """The shards of this node."""

    def __init__(self, troubles: Troubles, owner: Callable[[bytes], int]) -> None:
        self._troubles = troubles
        self._owner = owner
        self._services: list[ShardService] = []
        self.placement = Placement()
        self.is_elected = False
        """Whether elections decide which shards this node owns. False: it owns all of them."""
        self.is_fresh: Callable[[int], bool] = lambda _shard: True
        """Whether nobody else can have owned a shard that is led here for long: the node may still
        answer for it."""
        self._places = [_Place()]

    def open(self, placement: Placement, *, led: bool) -> None:
        """Once the number of shards is known. `led`: all of them are led from now on, and each
        service takes them when it is registered."""
        self.placement, self.is_elected = placement, not led
        self._places = [_Place() for _ in range(placement.partitions)]
        for place in self._places:
            place.is_led = led

    # -- looking

    def __len__(self) -> int:
        return len(self._places)

    @property
    def owned(self) -> set[int]:
        """The shards that are led here and that every service has taken, or has failed to take."""
        count = len(self._services)
        return {
            shard
            for shard, place in enumerate(self._places)
            if place.is_led and len(place.taken) + len(place.failed) >= count
        }

    @property
    def led(self) -> set[int]:
        """The shards that are led here, including those that services still take."""
        return {shard for shard, place in enumerate(self._places) if place.is_led}

    def of(self, name: bytes) -> int:
        """The shard of a name."""
        return self.placement.shard(name)

    def serves(self, service: ShardService, name: bytes) -> bool:
        """Whether a service answers for a name here."""
        place = self._places[self.placement.shard(name)]
        return place.is_led and service in place.taken

    def unlisted(self, service: ShardService) -> OnelogError | None:
        """Why a service cannot list all that this node owns; None: it can."""
        for shard, place in enumerate(self._places):
            if not place.is_led:
                continue
            if service not in place.taken and service not in place.failed:
                return StateLoading("the rows of a shard are being read")
            if not self.is_fresh(shard):
                return Unavailable("another node may own some by now: this one is cut off from it")
        return None

    def check(self, service: ShardService, name: bytes) -> None:
        """Raise NotOwner, StateLoading, or the error because of which a service could not take the
        shard of a name."""
        shard = self.placement.shard(name)
        place = self._places[shard]
        if not place.is_led:
            raise self._not_owned(name)
        if not self.is_fresh(shard):
            text = name.decode(errors="replace")
            raise NotOwner(f"another node may own {text} by now: this one is cut off from it")
        if service not in place.taken:
            failed = place.failed.get(service)
            if failed is not None:
                raise again(failed)
            raise StateLoading(f"the rows of {name.decode(errors='replace')} are being read")

    def holds(self, name: bytes) -> bool:
        """Whether this node leads the shard of a name, and nobody else can have for long."""
        shard = self.placement.shard(name)
        return self._places[shard].is_led and self.is_fresh(shard)

    def leads(self, name: bytes) -> bool:
        """Whether this node leads the shard of a name, as far as it knows."""
        return self._places[self.placement.shard(name)].is_led

    def check_led(self, name: bytes) -> None:
        """Raise NotOwner unless this node leads the shard of a name."""
        if not self.leads(name):
            raise self._not_owned(name)

    def _not_owned(self, name: bytes) -> NotOwner:
        node = self._owner(name)
        whose = "its owner is being elected" if node == NOBODY else f"node {node} owns it"
        text = name.decode(errors="replace")
        return NotOwner(f"this node does not own {text}: {whose}", node)

    # -- services

    async def register(self, service: ShardService) -> None:
        """Let a service take the shards that are led here, and those that will be.

        Raises what a `take` raises; then the service is not registered.
        """
        error: BaseException | None = None
        self._services.append(service)
        try:
            for shard, place in enumerate(self._places):
                async with place.lock:
                    if place.is_led and service not in place.taken:
                        error = await self._take(service, shard, place)
                if error is not None:
                    break
        except BaseException:
            self.remove(service)
            raise
        if error is not None:
            self.remove(service)
            raise error

    def remove(self, service: ShardService) -> None:
        """A service ends: it closes what it has by itself, and no shard is given to it any more."""
        if service in self._services:
            self._services.remove(service)
        for shard, place in enumerate(self._places):
            if place.failed.pop(service, None) is not None:
                self._troubles.clear(TAKE, _where(service, shard))
            if service in place.taken:
                place.taken.remove(service)

    # -- elections

    async def lead(self, shard: int) -> None:
        """This node leads a shard: every service takes it. Idempotent: services that could not take
        it try again. Returns when all of them have taken it or failed, or when it is lost."""
        place = self._places[shard]
        place.is_led = True
        async with place.lock:
            term, tried = place.term, set[int]()
            while place.is_led and place.term == term:
                left = (row for row in self._services if id(row) not in tried)
                service = next((row for row in left if row not in place.taken), None)
                if service is None:
                    return
                tried.add(id(service))
                error = await self._take(service, shard, place)
                if error is not None:
                    self._failed(service, shard, place, error)

    def _failed(
        self, service: ShardService, shard: int, place: _Place, error: BaseException
    ) -> None:
        where = _where(service, shard)
        self._troubles.stand(TAKE, where, error, blocks=True)
        if not isinstance(error, OnelogError):
            error = StateUnknown(f"{where} could not be opened: {error!r}")
        place.failed[service] = error

    async def _take(self, service: ShardService, shard: int, place: _Place) -> BaseException | None:
        """Returns why it could not; None also when the shard was lost meanwhile."""
        term = place.term
        task = place.taking = asyncio.get_running_loop().create_task(service.take(shard))
        try:
            await asyncio.wait([task])
        finally:
            place.taking = None
            if not task.done():  # the caller was cancelled
                task.cancel()
                await asyncio.wait([task])
        error = None if task.cancelled() else task.exception()
        is_lost = place.term != term
        if error is None and not task.cancelled() and not is_lost:
            place.taken.append(service)
            if place.failed.pop(service, None) is not None:
                self._troubles.clear(TAKE, _where(service, shard))
            return None
        await self._drop(service, shard)
        return None if is_lost else error

    async def lose(self, shard: int) -> None:
        """Another node leads a shard, or nobody: every service drops it. Idempotent. Returns when
        nothing of it is left here."""
        place = self._places[shard]
        place.is_led = False
        place.term += 1
        dropping, place.taken = place.taken, []
        for service in place.failed:
            self._troubles.clear(TAKE, _where(service, shard))
        place.failed.clear()
        if place.taking is not None:
            place.taking.cancel()
        async with place.lock:
            for service in reversed(dropping):
                await self._drop(service, shard)

    async def _drop(self, service: ShardService, shard: int) -> None:
        try:
            async with asyncio.timeout(DROP_TIMEOUT_S):
                await service.drop(shard)
        except Exception as error:  # noqa: BLE001 - the other services drop it all the same
            self._troubles.note(DROP, _where(service, shard), error)


def _where(service: ShardService, shard: int) -> str:
    return f"{service.name}/{shard}"
