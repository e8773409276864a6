"""All views: those whose name says what they show, and those with a given name.

Rules: a name that decodes to a filter is a view without any declaration. A name that decodes to an
exact topic is a view when there is a record of that topic. A name that was given to a filter
(`broker.views`) comes first. The number of remembered views is bounded; they hold no data, so a
forgotten one is made again when it is asked for.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from onelog.base.errors import InvalidName
from onelog.base.names import from_dotted
from onelog.base.topics import is_exact
from onelog.broker import Broker
from onelog.protocols.kafka.views.cache import FindingCache
from onelog.protocols.kafka.views.news import News
from onelog.protocols.kafka.views.topic import View

VIEWS_MAX: Final = 10_000
"""Views that are remembered."""
LOOK_THREADS: Final = 2
"""Threads that look through views, apart from those that sync the log."""

T = TypeVar("T")


class Views:
    """Topics that show records of other streams."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.cache = FindingCache()
        self._news = News(broker.troubles)
        self._views: OrderedDict[str, View] = OrderedDict()
        self._ids: dict[uuid.UUID, str] = {}
        self._given_ids: dict[uuid.UUID, str] = {}
        """Views with a given name, by id, once one of them was asked for by id."""
        self._given_are_known = False
        self._generation = 0
        """Counts changes of streams; a view is updated when it is asked for."""
        self._pool = ThreadPoolExecutor(LOOK_THREADS, thread_name_prefix="onelog-view")
        broker.streams.on_change.append(self._streams_changed)
        broker.views.on_change.append(self._forget)

    def close(self) -> None:
        """Stop listening for changes; running looks end by themselves."""
        self._broker.streams.on_change.remove(self._streams_changed)
        self._broker.views.on_change.remove(self._forget)
        self._news.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a look in a thread, so that it does not hold the loop."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _streams_changed(self) -> None:
        self._generation += 1

    def _forget(self, name: str) -> None:
        self._given_are_known = False
        view = self._views.pop(name, None)
        if view is not None:
            self._ids.pop(view.id, None)

    # -- looking up

    def find(self, name: str) -> View | None:
        """The view of this name, if it is one."""
        view = self._views.get(name)
        if view is not None:
            self._views.move_to_end(name)
            if view.generation != self._generation:
                view.refresh(self._generation)
            return view
        view = self.shape(name)
        if self._broker.views.find(name) is None and not view.is_known():
            return None
        self._keep(view)
        return view

    async def settle(self, name: str) -> None:
        """Wait for what is cold of what `find` needs for a name, which is not that of a stream."""
        try:
            view = self._views.get(name) or self.shape(name)
        except InvalidName:
            return
        if not is_exact(view.address):
            return
        await view.settle()
        if name not in self._views and view.is_known():
            self._keep(view)

    def shape(self, name: str) -> View:
        """What a view of this name shows, if there is one."""
        given = self._broker.views.find(name)
        shared = (self.cache, self._news)
        if given is not None:
            return View(self._broker, name, given.filter, shared, f"{name} {given.created_ms}")
        return View(self._broker, name, from_dotted(name), shared)

    def remember(self, name: str) -> None:
        """Another node knows the view of this name: it is one here, too."""
        try:
            if self.find(name) is None:
                self._keep(self.shape(name))
        except InvalidName:  # of a node of another version
            return

    def _keep(self, view: View) -> None:
        view.generation = self._generation
        self._views[view.name] = view
        self._ids[view.id] = view.name
        while len(self._views) > VIEWS_MAX:
            _name, gone = self._views.popitem(last=False)
            self._ids.pop(gone.id, None)

    def by_id(self, wanted: uuid.UUID) -> View | None:
        """The view of this id, if a client got the id lately."""
        name = self._ids.get(wanted)
        if name is not None:
            return self.find(name)
        if not self._given_are_known:  # a request may name 100 000 ids, and there be 10 000 views
            self._given_ids = {view.id: view.name for view in self.listed()}
            self._given_are_known = True
        name = self._given_ids.get(wanted)
        return None if name is None else self.find(name)

    def listed(self) -> Iterator[View]:
        """Views that have a given name."""
        for given in self._broker.views.all():
            view = self.find(given.name)
            if view is not None:
                yield view

    # -- names

    async def create(self, name: str, text: str) -> View:
        """Give a filter a name. Raises AlreadyExists, InvalidName, Conflict, Unavailable."""
        await self._broker.views.create(name, text)
        view = self.find(name)
        assert view is not None, "a view that was made is known"
        return view

    async def delete(self, name: str) -> None:
        """Remove a name; no record goes. Raises NotFound."""
        await self._broker.views.delete(name)
