"""Filters whose records lie on other nodes only: observed by this node before they are granted.

Rules:
- A subscription is granted when this node has a copy of every partition that may hold a record of
  it, each copy has what its leader showed when it began, and the live feed has handed out all of
  that. So the client gets every message from then on and none of before, and what is retained is
  known here.
- What is missing is waited for a while, then refused (0x83, or 0x88 for a session that would be
  resumed without it). The copy goes on, so that the next attempt finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from onelog.broker import Observing, PartitionHandle, Source
from onelog.protocols.mqtt import system
from onelog.protocols.mqtt.special import parse_address

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub

HAND_OUT_S: Final = 10.0
"""How long a subscription waits until the live feed has handed out a copy."""
_LOOK_S: Final = 0.01


class ObservedFilters:
    """What the clients of this node read of partitions that lie elsewhere."""

    def __init__(self, hub: Hub, observing: Observing | None) -> None:
        """None: this node is on its own, and has everything."""
        self._hub = hub
        self._observing = observing
        self._ready: dict[tuple[str, int], PartitionHandle] = {}
        """Copies that the live feed has handed out."""
        if observing is not None:
            observing.wants.append(self._filters)

    def close(self) -> None:
        """Nobody here needs anything more."""
        if self._observing is not None and self._filters in self._observing.wants:
            self._observing.wants.remove(self._filters)

    def _filters(self) -> Iterator[str]:
        """They are taken in pieces: sessions and their filters change meanwhile."""
        for session in list(self._hub.sessions.values()):
            yield from filter(_is_read, list(session.subscriptions))
            yield from (parse_address(text).filter for text in list(session.specials))

    # -- for subscriptions

    def missing(self, texts: Iterable[str]) -> list[str]:
        """The filters that have to be brought before they are granted."""
        return [] if self._observing is None else [text for text in texts if any(self._lacks(text))]

    async def bring(self, texts: Iterable[str]) -> None:
        """Have copies for these filters, and wait for them a while. `check` says how it went."""
        texts = self.missing(texts)
        if self._observing is None or not texts:
            return
        await self._observing.bring(texts)
        until = self._hub.loop.time() + HAND_OUT_S
        # The live feed tells nobody how far it is, and it is behind for a moment only.
        while self._hub.loop.time() < until and any(map(self._is_behind, texts)):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def check(self, text: str) -> None:
        """Raise Unavailable where something is missing for a filter."""
        if self._observing is not None and _is_read(text):
            for source in self._lacks(text):
                raise self._observing.missing(source, text)

    def _lacks(self, text: str) -> Iterator[Source]:
        assert self._observing is not None
        sources = self._observing.sources(text) if _is_read(text) else []
        return (source for source in sources if not self._is_ready(source))

    def _is_behind(self, text: str) -> bool:
        """Whether only the live feed is missing."""
        assert self._observing is not None
        return any(map(self._observing.has_copied, self._lacks(text)))

    def _is_ready(self, source: Source) -> bool:
        assert self._observing is not None
        if not self._observing.has_copied(source):
            return False
        if self._ready.get(source.key) is source.partition:
            return True
        followed = self._hub.live.find(source.key)
        if followed is None or followed.position < followed.limit:
            return False
        self._ready = {
            key: row
            for key, row in self._ready.items()
            if row.stopped is None  # what is gone is not kept
        }
        self._ready[source.key] = source.partition
        return True


def _is_read(text: str) -> bool:
    """Whether a filter is read from streams: `$SYS` is each node's own."""
    return not text.startswith(system.PREFIX)
