"""Making and ending bindings of one virtual host.

Rules:
- A binding that says which queues confirmed messages went to is a row of the store, and its queues
  stand still while it comes or goes (ADR 23). Others live in memory.
- A binding that is there stays as it is when it is made again. But if who made it could not make it
  any more, whoever makes it again takes it over.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from onelog.base.errors import Conflict
from onelog.broker import check_here
from onelog.queues.definitions import binding_key
from onelog.queues.exchanges import Binding, check_binding_arguments
from onelog.queues.makers import binding_filter

if TYPE_CHECKING:
    from onelog.queues.vhosts import VirtualHost


class Bindings:
    """The bindings of one virtual host, as commands change them."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost

    def have_ends(self, binding: Binding) -> bool:
        """Whether both ends of a binding are there."""
        vhost = self._vhost
        if vhost.router.find(binding.source) is None:
            return False
        if binding.destination.kind == "queue":
            return binding.destination.name in vhost.queues
        return vhost.router.find(binding.destination.name) is not None

    async def bind(self, binding: Binding) -> None:
        """Let a binding be there. The caller has looked up both ends."""
        vhost = self._vhost
        check_binding_arguments(vhost.exchange(binding.source), binding.arguments)
        waiting = vhost.streams.make_ready(binding.source)
        if waiting is not None:
            await waiting
        source = vhost.exchange(binding.source)
        check_here(vhost.hub.broker, binding_filter(vhost.name, source, binding))
        key = binding_key(vhost.name, binding)
        while True:
            await vhost.settled(key)
            self._check_ends(binding)
            known = vhost.router.find_binding(binding)
            if known is not None:
                if known.maker == binding.maker or self._is_good(known):
                    return
                with contextlib.suppress(Conflict):
                    await self._end(key, known)
                continue
            if not self._is_kept(binding) and not self._brings_past(binding):
                vhost.router.bind(binding)
                vhost.hub.topology_changed()
                return
            with contextlib.suppress(Conflict):
                await vhost.change_row(key, self._keep(key, binding))
                return

    def _is_good(self, known: Binding) -> bool:
        """Whether who made a binding could make it still."""
        return self._vhost.makers.may_keep(known, self._vhost.router.find(known.source))

    def _is_kept(self, binding: Binding) -> bool:
        """Whether a binding is needed to know which queues messages went to."""
        if binding.destination.kind == "exchange":
            return True
        queue = self._vhost.queues.get(binding.destination.name)
        return queue is not None and queue.record.is_kept

    def _check_ends(self, binding: Binding) -> None:
        """Raise NotDeclared when an end of a binding is gone."""
        vhost = self._vhost
        vhost.exchange(binding.source)
        if binding.destination.kind == "exchange":
            vhost.exchange(binding.destination.name)
        else:
            vhost.queue(binding.destination.name, None)

    def _brings_past(self, binding: Binding) -> bool:
        if binding.destination.kind == "exchange":
            return False
        return self._vhost.queues[binding.destination.name].settings.start is not None

    async def _keep(self, key: str, binding: Binding) -> None:
        vhost, hub = self._vhost, self._vhost.hub
        queues = hub.queues_behind(vhost, binding)
        standing = hub.follower.standing
        async with standing.still(queues):
            self._check_ends(binding)
            if hub.queues_behind(vhost, binding) != queues:
                raise Conflict("queues came or went meanwhile")
            if self._brings_past(binding):
                await standing.take_past(queues[0], binding)
            if not self._is_kept(binding):
                self._check_ends(binding)
                vhost.router.bind(binding)
                hub.topology_changed()
                return
            await hub.keep_positions(vhost, binding)
            with vhost.rows.writing(key):
                await vhost.rows.create(key, binding, *vhost.rows.needed_by(binding))

    async def unbind(self, binding: Binding) -> bool:
        """Let a binding be there no more. Returns whether it was there."""
        vhost = self._vhost
        key = binding_key(vhost.name, binding)
        while True:
            await vhost.settled(key)
            if not vhost.router.has(binding):
                return False
            with contextlib.suppress(Conflict):
                await self._end(key, binding)
                return True

    async def _end(self, key: str, binding: Binding) -> None:
        vhost = self._vhost
        if vhost.rows.has(key):
            await vhost.change_row(key, self._drop(key, binding))
        else:
            vhost.router.unbind(binding)
            vhost.hub.topology_changed()

    async def _drop(self, key: str, binding: Binding) -> None:
        hub = self._vhost.hub
        async with hub.follower.standing.still(hub.queues_behind(self._vhost, binding)):
            # What it brought stays: it is kept before nobody knows any more that it did.
            await hub.save_behind(self._vhost, [binding])
            await self._vhost.drop_rows(key, [])
