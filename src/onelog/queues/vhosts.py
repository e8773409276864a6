"""A virtual host: its exchanges, queues and bindings, who may declare what, and what is kept.

Rules:
- Exchanges, kept queues and their bindings are rows of the metadata store: a command writes them,
  if what it saw still holds, and is answered when the watch applied them here (`host_rows.py`). A
  command that another was faster than looks again. Queues that are not kept live in memory with
  their bindings, exclusive ones as long as their connection.
- A command that began is carried through, also when its connection goes.
- A declaration of what is there must say the same in all that counts; a passive one only asks.
- Names that begin with `amq.` are the broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from onelog.base.errors import (
    Conflict,
    InvalidRequest,
    NotAuthorized,
    OnelogError,
    Timeout,
    Unavailable,
)
from onelog.broker import RoutedCursor, check_here
from onelog.queues.addresses import RESERVED, check_new_name, queue_topic
from onelog.queues.binding import Bindings
from onelog.queues.dead_letters import DeadLetters
from onelog.queues.definitions import binding_key
from onelog.queues.errors import NotDeclared, UnknownExchangeType
from onelog.queues.exchanges import (
    TYPES,
    Binding,
    Destination,
    ExchangeRecord,
    check_same_exchange,
)
from onelog.queues.host_rows import HostRows
from onelog.queues.makers import Makers
from onelog.queues.queue import Queue
from onelog.queues.quota import check_queue_quota
from onelog.queues.replies import Replies
from onelog.queues.router import Router
from onelog.queues.settings import (
    DeclaredSettings,
    QueueRecord,
    check_equivalent,
    locked_queue,
    read_settings,
)
from onelog.queues.stream_queue import StreamQueue
from onelog.queues.streams import Streams
from onelog.record.headers import BLIND_KEYS, LEFT_OUT, Headers

if TYPE_CHECKING:
    from onelog.queues.hub import QueueHub

T = TypeVar("T")

CURSOR_PREFIX: Final = "amqp:"
TRANSIENT_PREFIX: Final = "amqp-transient:"
_KINDS: Final[dict[str, type[Queue]]] = {"classic": Queue, "quorum": Queue, "stream": StreamQueue}
"""How each type of queue behaves."""
RETRY_S: Final = 1.0
"""Wait before a queue that nobody uses, and that could not be deleted, is tried again."""
_DEFAULT_EXCHANGE: Final = "operation not permitted on the default exchange"


class VirtualHost:
    """One virtual host."""

    def __init__(self, hub: QueueHub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.makers = Makers(hub.broker.authorizer, name)
        self.router = Router(self.makers)
        self.queues: dict[str, Queue] = {}
        self.rows = HostRows(self, hub.topology)
        self.bindings = Bindings(self)
        self.is_gone = False
        self._changes: dict[str, asyncio.Event] = {}
        """Keys of rows that are being written or deleted, and futures of those who wait."""
        self.streams = Streams(hub, name)
        self.dead_letters = DeadLetters(self)
        self.replies = Replies()

    # -- keeping rows

    def change_row(
        self, key: str, work: Coroutine[Any, Any, T], *, carried: bool = True
    ) -> Awaitable[T]:
        """Carry a change through, or not; who wants to change the same waits meanwhile."""
        done = self._changes[key] = asyncio.Event()

        async def change() -> T:
            try:
                return await work
            finally:
                del self._changes[key]
                done.set()

        return self.hub.carry_through(change()) if carried else change()

    async def settled(self, key: str) -> None:
        """Wait until an object is durable and can be used, so that no answer comes too early."""
        while key in self._changes:
            await self._changes[key].wait()

    # -- exchanges

    def exchange(self, name: str) -> ExchangeRecord:
        """An exchange. Raises NotDeclared."""
        found = self.router.find(name)
        if found is None:
            raise NotDeclared(f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def exchange_to_publish(self, name: str) -> str:
        """The exchange of a publish. Raises NotDeclared or NotAuthorized."""
        found = self.exchange(name)
        if found.internal:
            raise NotAuthorized(
                f"cannot publish to internal exchange '{found.name}' in vhost '{self.name}'",
            )
        return found.name

    def is_plain_way(self, exchange: str, routing_key: str, headers: Headers) -> bool:
        """Whether all messages with this key and these headers go to the same queues."""
        if any(name in (BLIND_KEYS, LEFT_OUT) for name, _value in headers):
            return False
        if self.router.looks_at_headers(exchange):
            return False
        names = self.router.route(exchange, routing_key, {})
        return bool(names) and not any(
            self.queues[name].may_refuse for name in names if name in self.queues
        )

    async def declare_exchange(self, record: ExchangeRecord, *, passive: bool) -> None:
        """exchange.declare."""
        if not record.name:
            raise NotAuthorized(_DEFAULT_EXCHANGE)
        if passive:
            self.exchange(record.name)
            return
        key = self.rows.key("exchanges", record.name)
        while True:
            await self.settled(key)
            current = self.router.find(record.name)
            if current is not None:
                check_same_exchange(current, record, self.name)
                return
            check_new_name("exchange", self.name, record.name)
            if record.type not in TYPES:
                raise UnknownExchangeType(f"invalid exchange type '{record.type}'")
            with contextlib.suppress(Conflict):
                await self.change_row(key, self._keep_exchange(key, record))
                return

    async def _keep_exchange(self, key: str, record: ExchangeRecord) -> None:
        await self.rows.make_way(Destination("exchange", record.name))
        await self.rows.create(key, record)

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """exchange.delete; no error when it does not exist."""
        if not name:
            raise NotAuthorized(_DEFAULT_EXCHANGE)
        if name.startswith(RESERVED):
            raise NotAuthorized(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        key = self.rows.key("exchanges", name)
        while True:
            await self.settled(key)
            if self.router.find(name) is None:
                return
            if if_unused and self.router.bindings_from(name):
                raise InvalidRequest(f"exchange '{name}' in vhost '{self.name}' in use")
            with contextlib.suppress(Conflict):
                gone = await self.change_row(key, self._drop_exchange(key, name))
                break
        await self.unused_exchanges(gone)

    async def _drop_exchange(self, key: str, name: str) -> list[Binding]:
        """Delete an exchange; the bindings that went with it."""
        queues = self.hub.queues_behind(self, *self._bindings_of(name))
        async with self.hub.follower.standing.still(queues):
            bindings = self._bindings_of(name)
            if not set(self.hub.queues_behind(self, *bindings)) <= set(queues):
                raise Conflict("bindings came meanwhile")
            # What it brought to queues is kept with them before nobody knows any more that it did.
            await self.hub.save_behind(self, bindings)
            try:
                await self.drop_rows(key, bindings)
            except OnelogError:
                if self.router.find(name) is not None:
                    raise  # else only rows that lead nowhere are left, as with a queue
        return bindings

    async def drop_rows(self, key: str, bindings: list[Binding]) -> None:
        """Delete a row, then those of bindings, whose queues were saved."""
        keys = [key, *(binding_key(self.name, row) for row in bindings)]
        with self.rows.writing(*keys):
            await self.rows.delete(*keys)

    def _bindings_of(self, name: str) -> list[Binding]:
        """The bindings from and to an exchange."""
        to = self.router.bindings_to(Destination("exchange", name))
        return [*self.router.bindings_from(name), *to]

    async def unused_exchanges(self, gone: list[Binding]) -> None:
        """Delete exchanges that were declared to go with their last binding."""
        for source in {row.source for row in gone}:
            found = self.router.find(source)
            if found is not None and found.auto_delete and not self.router.bindings_from(source):
                await self.delete_exchange(source, if_unused=False)

    # -- queues

    def queue(self, name: str, owner: object | None) -> Queue:
        """A queue that `owner` may use; without an owner, any queue. Raises NotDeclared or
        QueueLocked."""
        found = self.queues.get(name)
        if found is None or name in self.rows.leaving:
            raise NotDeclared(f"no queue '{name}' in vhost '{self.name}'")
        if found.owner is not None and owner is not None and found.owner is not owner:
            raise locked_queue(name, self.name)
        return found

    async def declare_queue(
        self, record: QueueRecord, owner: object | None, *, passive: bool
    ) -> Queue:
        """queue.declare."""
        self.hub.counters.declared += 1
        generated = "" if record.name or passive else f"amq.gen-{secrets.token_urlsafe(16)}"
        record = msgspec.structs.replace(record, name=record.name or generated)
        if not passive and record.name not in self.queues:
            await self._check_default(record.name)
        while True:
            await self.settled(self.rows.key("queues", record.name))
            await self.rows.adopt(record.name)
            if passive or record.name in self.queues:
                found = self.queue(record.name, owner)
                if not passive:
                    check_equivalent(found.record, record, self.name)
                found.declared_again()
                return found
            if not generated:
                check_new_name("queue", self.name, record.name)
            settings = read_settings(record, self.name)
            with contextlib.suppress(Conflict):
                return await self._make_queue(record, settings, owner if record.exclusive else None)

    async def _check_default(self, queue: str) -> None:
        """Raise InvalidRequest where messages of the default exchange would not get to a queue."""
        waiting = self.streams.make_ready("")
        if waiting is not None:
            await waiting
        check_here(self.hub.broker, queue_topic(self.name, queue))

    async def _make_queue(
        self, record: QueueRecord, settings: DeclaredSettings, owner: object | None
    ) -> Queue:
        limit = self.hub.limits.queues
        if len(self.queues) + len(self.rows.prepared) >= limit:
            raise InvalidRequest(
                f"vhost '{self.name}' has {limit} queues, which is the limit (amqp.limits.queues)",
            )
        check_queue_quota(self.hub, record)
        queue = self._new_queue(record, settings, owner)
        self.rows.prepared[record.name] = queue
        key = self.rows.key("queues", record.name)
        # What is not kept goes with its connection, also while it is made.
        await self.change_row(key, self._keep_queue(queue), carried=record.is_kept)
        if settings.start is not None:
            await self.hub.carry_through(self.hub.follower.standing.take_own_past(queue))
        return queue

    def _new_queue(
        self, record: QueueRecord, settings: DeclaredSettings, owner: object | None = None
    ) -> Queue:
        cursor = RoutedCursor(self.cursor_name(record), (f"{self.name}/{record.name}",))
        return _KINDS[settings.type](self, record, settings, cursor, owner)

    async def _keep_queue(self, queue: Queue) -> None:
        """Let a prepared queue be there; or it was not, and another may be."""
        record = queue.record
        try:
            await self.rows.make_way(Destination("queue", record.name))
            await self.hub.watch(queue)
            if record.is_kept:
                await self.rows.create(self.rows.key("queues", record.name), record)
            else:
                self.add_queue(self.rows.prepared.pop(record.name))
        except BaseException:
            if self.rows.prepared.get(record.name) is queue:
                del self.rows.prepared[record.name]
                queue.close()
                with contextlib.suppress(OnelogError):
                    await self.hub.unwatch(queue)  # or nobody could declare it again
            raise

    def add_queue(self, queue: Queue) -> None:
        """A queue is there."""
        self.queues[queue.name] = queue
        self.router.add_queue(queue.name)
        self.hub.counters.made += 1
        self.hub.topology_changed()

    async def adopt_queue(self, record: QueueRecord) -> None:
        """Make a queue that the store has, and that nobody here declares."""
        key = self.rows.key("queues", record.name)
        await self.settled(key)
        if record.name in self.queues or not self.rows.has(key):
            return
        queue = self._new_queue(record, read_settings(record, self.name))

        async def adopt() -> None:
            await self.hub.watch(queue)
            if self.rows.has(key):
                self.add_queue(queue)
            else:
                queue.close()
                await self.hub.unwatch(queue)

        await self.change_row(key, adopt())

    def remove_queue(self, queue: Queue) -> list[Binding]:
        """A queue is there no more; the bindings that went with it."""
        del self.queues[queue.name]
        queue.close()
        gone = self.router.remove_queue(queue.name)
        self.hub.counters.queue_gone(queue)
        self.hub.topology_changed()
        return gone

    def restore_queue(self, record: QueueRecord, cursor: RoutedCursor) -> Queue:
        """A durable queue of an earlier run."""
        settings = read_settings(record, self.name)
        queue = _KINDS[settings.type](self, record, settings, cursor, None)
        self.queues[record.name] = queue
        self.router.add_queue(record.name)
        return queue

    def cursor_name(self, record: QueueRecord) -> str:
        """The name of the cursor that keeps a queue's places."""
        prefix = CURSOR_PREFIX if record.is_kept else TRANSIENT_PREFIX
        return f"{prefix}{self.name}:{record.name}"

    async def delete_queue(
        self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """queue.delete; how many messages went with it."""
        key = self.rows.key("queues", queue.name)
        while True:
            await self.settled(key)
            if if_unused and queue.consumers:
                raise InvalidRequest(f"queue '{queue.name}' in vhost '{self.name}' in use")
            if if_empty and queue.ready.size:  # what is out does not count, as in RabbitMQ
                raise InvalidRequest(f"queue '{queue.name}' in vhost '{self.name}' not empty")
            if self.queues.get(queue.name) is not queue:
                return 0
            count = queue.ready.size
            with contextlib.suppress(Conflict):
                gone = await self.change_row(key, self._drop_queue(key, queue))
                break
        await self.unused_exchanges(gone)
        # Its consumers hear of it after whoever deleted it has the answer.
        self.hub.loop.call_soon(queue.consumers.tell_gone)
        return count

    async def _drop_queue(self, key: str, queue: Queue) -> list[Binding]:
        """Delete a queue; the bindings that went with it."""
        if not queue.record.is_kept:
            gone = self.remove_queue(queue)
            await self.hub.unwatch(queue)
            return gone
        gone = self.router.bindings_to(Destination("queue", queue.name))
        self.rows.leaving.add(queue.name)
        try:
            await self.drop_rows(key, gone)
        except OnelogError:
            if not queue.is_deleted:
                raise
            # It is gone; what is left of its bindings leads nowhere, and goes with the next start.
        finally:
            await self.rows.cleared(queue.name)
            self.rows.leaving.discard(queue.name)
        return gone

    def queue_unused(self, queue: Queue) -> None:
        """The last consumer of an auto-delete queue left."""
        again = partial(self.hub.loop.call_later, RETRY_S, self.queue_unused, queue)
        self.hub.run(self._delete_idle(queue, again))

    def queue_expired(self, queue: Queue) -> None:
        """Nobody used a queue for as long as it said."""
        self.hub.run(self._delete_idle(queue, queue.declared_again))

    async def _delete_idle(self, queue: Queue, again: Callable[[], object]) -> None:
        try:
            if not queue.consumers and not self.hub.is_over:  # nobody came meanwhile
                await self.delete_queue(queue)
        except (Unavailable, Timeout):
            again()
            raise

    async def owner_gone(self, owner: object) -> None:
        """A connection ended: delete its exclusive queues."""
        for queue in [row for row in self.queues.values() if row.owner is owner]:
            if not self.hub.is_over:
                await self.delete_queue(queue)

    # -- bindings

    async def bind(self, binding: Binding) -> None:
        """queue.bind and exchange.bind. The caller has looked up both ends."""
        if not binding.source:
            raise NotAuthorized(_DEFAULT_EXCHANGE)
        await self.bindings.bind(binding)

    async def unbind(self, binding: Binding) -> None:
        """queue.unbind and exchange.unbind; no error when the binding does not exist."""
        if not binding.source:
            raise NotAuthorized(_DEFAULT_EXCHANGE)
        if await self.bindings.unbind(binding):
            await self.unused_exchanges([binding])
