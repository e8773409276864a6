"""What one virtual host has, as its rows say: exchanges, kept queues, and bindings.

Rules:
- A row takes effect when the watch shows it (`topology.py`), whoever wrote it. A binding counts
  while both of its ends are there.
- A queue that a command here makes is prepared before its row is written: its cursor says from
  where on it takes what comes. For a row that another wrote, or that came after its writer gave up,
  the queue is made then. What such a row concerns is saved as soon as it applies.
- A queue that goes is closed in that moment; its cursor goes after that, and who makes the queue
  again waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from onelog.base.errors import NotFound
from onelog.queues.definitions import MADE, binding_key, encode_row, key_of
from onelog.queues.exchanges import BUILT_IN, Binding, Destination, ExchangeRecord
from onelog.queues.settings import QueueRecord

if TYPE_CHECKING:
    from onelog.queues.queue import Queue
    from onelog.queues.topology import RowChange, Topology
    from onelog.queues.vhosts import VirtualHost

_BUILT_IN: Final = frozenset(record.name for record in BUILT_IN)


class HostRows:
    """The rows of one virtual host, and what they do to it."""

    def __init__(self, vhost: VirtualHost, topology: Topology) -> None:
        self._vhost = vhost
        self._topology = topology
        self.prepared: dict[str, Queue] = {}
        """Queues that are there as soon as their rows are."""
        self._written_here: set[str] = set()
        """Rows that commands here write: these save the queues behind them themselves."""
        self.leaving: set[str] = set()
        """Queues that commands here delete: these report it themselves."""
        self._loose: dict[str, Binding] = {}
        """Rows of bindings of which an end is not there."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Queues that are gone, and whose cursors are going."""

    # -- writing

    def key(self, kind: str, name: str) -> str:
        """The key of an exchange or a queue."""
        return key_of(self._vhost.name, kind, name)

    def needed_by(self, binding: Binding) -> tuple[str, str]:
        """The rows that a binding rests on; those of built-in exchanges are never there."""
        kind = "queues" if binding.destination.kind == "queue" else "exchanges"
        return self.key("exchanges", binding.source), self.key(kind, binding.destination.name)

    async def create(
        self, key: str, record: ExchangeRecord | QueueRecord | Binding, *needed: str
    ) -> None:
        """Write a row, if all that it rests on is as known here. Raises Conflict if not."""
        if self._vhost.is_gone:
            raise NotFound(f"the virtual host '{self._vhost.name}' is deleted")
        made = key_of(self._vhost.name, MADE, "")
        await self._topology.create(key, encode_row(record), made, *needed)

    async def delete(self, *keys: str) -> None:
        """Delete rows, the first one first. Raises Conflict when one changed meanwhile."""
        await self._topology.delete(keys)

    @contextmanager
    def writing(self, *keys: str) -> Iterator[None]:
        """A command writes these rows, and has saved the queues behind them."""
        self._written_here.update(keys)
        try:
            yield
        finally:
            self._written_here.difference_update(keys)

    def has(self, key: str) -> bool:
        """Whether a row is there."""
        return self._topology.find(key) is not None

    async def make_way(self, *ends: Destination) -> None:
        """Delete what is left of bindings to or from something that went, before it comes again."""
        keys = [
            key
            for key, row in self._loose.items()
            if row.destination in ends or Destination("exchange", row.source) in ends
        ]
        if keys:
            await self.delete(*keys)

    async def cleared(self, *names: str) -> None:
        """Wait until the cursors of queues that are gone are gone, too; of all without a name."""
        tasks = [task for name, task in self._ending.items() if not names or name in names]
        if tasks:
            await asyncio.wait(tasks)

    # -- at the start

    def restore_binding(self, key: str, binding: Binding) -> None:
        """A binding of an earlier run; one without both ends leads nowhere."""
        if not self._bind(binding):
            self._loose[key] = binding

    async def drop_transient(self) -> None:
        """Forget what was not durable, and what a crash left half deleted."""
        vhost = self._vhost
        keys = [
            self.key("exchanges", record.name)
            for record in vhost.router.exchanges()
            if not record.durable
        ]
        keys += [
            binding_key(vhost.name, row)
            for row in vhost.router.bindings()
            if not self._is_lasting(row)
        ]
        await self.delete(*keys, *self._loose)

    def _is_lasting(self, binding: Binding) -> bool:
        """Whether both ends of a binding that has a row survive a restart."""
        router, to = self._vhost.router, binding.destination
        ends = [router.find(binding.source)]
        if to.kind == "exchange":
            ends.append(router.find(to.name))
        return all(end is not None and end.durable for end in ends)

    # -- what the watch shows

    def apply(self, change: RowChange) -> None:
        """A row came or went."""
        record = change.row.record
        if isinstance(record, Binding):
            if change.is_there:
                self._binding_came(change.key, record)
            else:
                self._binding_went(change.key, record)
        elif isinstance(record, QueueRecord):
            if change.is_there:
                self._queue_came(record)
            else:
                self._queue_went(record.name)
        elif isinstance(record, ExchangeRecord):
            if change.is_there:
                self._exchange_came(record)
            else:
                self._exchange_went(record.name)

    def _exchange_came(self, record: ExchangeRecord) -> None:
        self._vhost.router.add_exchange(record)
        self._bind_loose()

    def _exchange_went(self, name: str) -> None:
        router = self._vhost.router
        if router.find(name) is not None and name not in _BUILT_IN:
            gone = router.remove_exchange(name)
            self._unbound(gone)
            self._vhost.streams.exchange_gone(name)
            missed = [
                row for row in gone if binding_key(self._vhost.name, row) not in self._written_here
            ]
            if missed:
                self._vhost.hub.run(self._vhost.hub.save_behind(self._vhost, missed))

    def _queue_came(self, record: QueueRecord) -> None:
        queue = self.prepared.pop(record.name, None)
        if queue is not None:
            self._vhost.add_queue(queue)
            self._bind_loose()
        elif record.name not in self._vhost.queues:
            self._vhost.hub.run(self.adopt(record.name))

    async def adopt(self, name: str) -> None:
        """Make the queue of a row that no command here wrote, if it is not there."""
        row = None if name in self._vhost.queues else self._topology.find(self.key("queues", name))
        if row is not None and isinstance(row.record, QueueRecord):
            await self._vhost.adopt_queue(row.record)
            self._bind_loose()

    def _queue_went(self, name: str) -> None:
        queue = self._vhost.queues.get(name)
        if queue is not None:
            self._unbound(self._vhost.remove_queue(queue))
            task = self._ending[name] = self._vhost.hub.run(self._clear(queue))
            task.add_done_callback(lambda _task: self._ending.pop(name, None))

    async def _clear(self, queue: Queue) -> None:
        try:
            await self._vhost.hub.unwatch(queue)
        finally:
            if queue.name not in self.leaving:
                queue.consumers.tell_gone()

    def _binding_came(self, key: str, binding: Binding) -> None:
        if not self._bind(binding):
            self._loose[key] = binding
        elif key not in self._written_here:
            self._vhost.hub.run(self._vhost.hub.keep_positions(self._vhost, binding))

    def _binding_went(self, key: str, binding: Binding) -> None:
        self._loose.pop(key, None)
        if self._vhost.router.unbind(binding) and key not in self._written_here:
            self._vhost.hub.run(self._vhost.hub.save_behind(self._vhost, [binding]))

    # -- bindings without ends

    def _bind(self, binding: Binding) -> bool:
        """Let a binding count; False when an end of it is not there."""
        if not self._vhost.bindings.have_ends(binding):
            return False
        self._vhost.router.bind(binding)
        return True

    def _bind_loose(self) -> None:
        self._loose = {key: row for key, row in self._loose.items() if not self._bind(row)}

    def _unbound(self, gone: list[Binding]) -> None:
        """These count no more; as far as their rows are there, an end is not."""
        for row in gone:
            key = binding_key(self._vhost.name, row)
            if self.has(key):
                self._loose[key] = row
