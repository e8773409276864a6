"""Names for filters: `telemetry` for `sensors/+/telemetry`, wherever a protocol shows a view.

Rules: a name is kept in the metadata store and holds no data: taking it away deletes no record. It
must be free: no stream has it, no stream is made for the topic of that name, and it does not name
a filter by itself. A protocol decides how it shows a named view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import AlreadyExists, Conflict, InvalidName, InvalidRequest, NotFound
from onelog.base.limits import VIEWS_MAX
from onelog.base.names import from_kafka
from onelog.base.topics import check_filter, is_exact
from onelog.log.catalog import stored_configs
from onelog.metadata.store import Compare, MetadataStore, Put
from onelog.observe.troubles import Troubles

_VIEWS: Final = "views/"


class NamedView(msgspec.Struct, frozen=True, kw_only=True):
    """A filter with a name."""

    name: str
    filter: str
    created_ms: int


class NamedViews:
    """All names of filters."""

    def __init__(
        self, store: MetadataStore, clock: Clock, troubles: Troubles | None = None
    ) -> None:
        self._store = store
        self._troubles = troubles or Troubles(clock)
        self._clock = clock
        self._views: dict[str, NamedView] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Told the name of a view that was made or taken away."""

    async def open(self) -> None:
        """Read what was kept."""
        for entry in (await self._store.range(_VIEWS)).entries:
            view = msgspec.json.decode(entry.value, type=NamedView)
            self._views[view.name] = view

    def find(self, name: str) -> NamedView | None:
        """The view of a name."""
        return self._views.get(name)

    def all(self) -> list[NamedView]:
        """Every view, by name."""
        return [self._views[name] for name in sorted(self._views)]

    async def create(self, name: str, text: str) -> NamedView:
        """Give a filter a name, durably."""
        await self.check_new(name, text)
        view = NamedView(name=name, filter=text, created_ms=self._clock.now_ms())
        put = Put(_VIEWS + name, msgspec.json.encode(view))
        if not (await self._store.txn([Compare(put.key, "version", "==", 0)], [put])).succeeded:
            raise AlreadyExists(f"the view {name!r} exists already")
        self._changed(name, view)
        return view

    async def check_new(self, name: str, text: str) -> None:
        """Raise what `create` would raise."""
        check_filter(text)
        topic = from_kafka(name)
        if not is_exact(topic):
            raise InvalidName(f"the name {name!r} is the view of the filter {topic!r} already")
        if topic == text:
            raise InvalidRequest(f"the topic {text!r} has the name {name!r} already")
        if name in self._views:
            raise AlreadyExists(f"the view {name!r} exists already")
        for config in await stored_configs(self._store):
            if name == config.name or topic == config.single_topic:
                raise AlreadyExists(f"the name {name!r} belongs to the stream {config.name}")
        if len(self._views) >= VIEWS_MAX:
            raise Conflict(f"there are {VIEWS_MAX} named views already; delete one first")

    async def delete(self, name: str) -> None:
        """Take a name away, durably."""
        if name not in self._views or not await self._store.delete(_VIEWS + name):
            raise NotFound(f"there is no view {name!r}")
        self._changed(name, None)

    def _changed(self, name: str, view: NamedView | None) -> None:
        if view is None:
            self._views.pop(name, None)
        else:
            self._views[name] = view
        self._troubles.tell("view-listener", self.on_change, name)
