"""Names for filters: `telemetry` for `sensors/+/telemetry`, wherever a protocol shows a view.

Rules: a name is kept in the metadata store and holds no data: removing it deletes no record. It
must be free: no stream has it, no stream is made for the topic of that name, and it is not itself
the Kafka name of a filter. The rows that the store's watch has shown count (`Projection`). A
protocol decides how it shows a named view.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import AlreadyExists, Conflict, InvalidName, InvalidRequest, NotFound
from onelog.base.limits import VIEWS_MAX
from onelog.base.names import from_dotted
from onelog.base.topics import check_filter, is_exact
from onelog.log.stream_rows import stored_configs
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Entry, MetadataStore
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
        self._rows = Projection(store, _VIEWS, _decode, self._troubles, self._changed)
        self.on_change: list[Callable[[str], None]] = []
        """Called with the name of a view that was made or removed."""

    async def open(self) -> None:
        """Read the kept views, and watch for changes."""
        await self._rows.open()

    async def close(self) -> None:
        """Stop watching."""
        await self._rows.close()

    def find(self, name: str) -> NamedView | None:
        """The view of a name."""
        row = self._rows.get(_VIEWS + name)
        return None if row is None else row.value

    def all(self) -> list[NamedView]:
        """Every view, by name."""
        return sorted((view for _key, view in self._rows.rows()), key=lambda view: view.name)

    async def create(self, name: str, text: str) -> NamedView:
        """Give a filter a name, durably."""
        await self.check_new(name, text)
        view = NamedView(name=name, filter=text, created_ms=self._clock.now_ms())
        exists = AlreadyExists(f"the view {name!r} exists already")
        if self.find(name) is not None:
            raise exists
        try:
            await self._rows.put(_VIEWS + name, msgspec.json.encode(view))
        except Conflict:
            raise exists from None
        return view

    async def check_new(self, name: str, text: str) -> None:
        """Raise what `create` would raise."""
        check_filter(text)
        topic = from_dotted(name)
        if not is_exact(topic):
            raise InvalidName(f"the name {name!r} is the view of the filter {topic!r} already")
        if topic == text:
            raise InvalidRequest(f"the topic {text!r} has the name {name!r} already")
        if self.find(name) is not None:
            raise AlreadyExists(f"the view {name!r} exists already")
        for config in await stored_configs(self._store):
            if name == config.name or topic == config.single_topic:
                raise AlreadyExists(f"the name {name!r} belongs to the stream {config.name}")
        if len(self._rows) >= VIEWS_MAX:
            raise Conflict(f"there are {VIEWS_MAX} named views already; delete one first")

    async def delete(self, name: str) -> None:
        """Remove a name, durably."""
        while self.find(name) is not None:
            with contextlib.suppress(Conflict):  # another made or took it meanwhile
                await self._rows.delete(_VIEWS + name)
                return
        raise NotFound(f"there is no view {name!r}")

    def _changed(self, changes: Sequence[Change[NamedView]]) -> None:
        for change in changes:
            self._troubles.tell("view-listener", self.on_change, change.key.removeprefix(_VIEWS))


def _decode(entry: Entry) -> NamedView:
    return msgspec.json.decode(entry.value, type=NamedView)
