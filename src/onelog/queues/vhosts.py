"""A virtual host: its exchanges, queues and bindings, who may declare what, and what is kept.

Rules:
- Durable exchanges, durable queues and the bindings between them are in the metadata store before a
  declaration is answered (I4, I9), also when two clients declare the same at once. Transient ones
  live in memory, exclusive queues as long as their connection.
- A declaration of something that exists must be equal in all that counts; a passive one only asks.
- Names that begin with `amq.` are the broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onelog.base.errors import InvalidRequest, NotAuthorized, OnelogError
from onelog.broker import Delete, Put, RoutedCursor
from onelog.queues.dead_letters import DeadLetters
from onelog.queues.definitions import binding_key, encode_row, key_of
from onelog.queues.errors import NotDeclared, UnknownExchangeType
from onelog.queues.exchanges import (
    TYPES,
    Binding,
    Destination,
    ExchangeRecord,
    check_binding_arguments,
)
from onelog.queues.headers import BLIND_KEYS, LEFT_OUT
from onelog.queues.queue import Queue
from onelog.queues.replies import Replies
from onelog.queues.router import Router
from onelog.queues.rows import Rows
from onelog.queues.settings import (
    DeclaredSettings,
    QueueRecord,
    check_equivalent,
    locked_queue,
    read_settings,
)
from onelog.queues.stream_queue import StreamQueue
from onelog.queues.streams import Streams
from onelog.record.headers import Headers

if TYPE_CHECKING:
    from onelog.queues.hub import QueueHub

RESERVED: Final = "amq."
NAME_BYTES_MAX: Final = 255
CURSOR_PREFIX: Final = "amqp:"
TRANSIENT_PREFIX: Final = "amqp-transient:"
_KINDS: Final[dict[str, type[Queue]]] = {"classic": Queue, "quorum": Queue, "stream": StreamQueue}
"""The class of each type of queue."""
_DEFAULT_EXCHANGE: Final = "operation not permitted on the default exchange"


class VirtualHost:
    """One virtual host."""

    def __init__(self, hub: QueueHub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.router = Router()
        self.queues: dict[str, Queue] = {}
        self._rows = Rows(hub.broker.store)
        self._loose: list[Delete] = []
        """Keys of rows of an earlier run that belong to nothing any more."""
        self._changes: dict[str, asyncio.Event] = {}
        """Keys of rows that are being written or deleted, and futures of those who wait."""
        self.streams = Streams(hub, name)
        self.dead_letters = DeadLetters(self)
        self.replies = Replies()

    # -- keeping rows

    def _key(self, kind: str, name: str) -> str:
        return key_of(self.name, kind, name)

    @contextlib.contextmanager
    def _changing(self, key: str) -> Iterator[None]:
        """While an object is being made or deleted, others who want the same one wait."""
        done = self._changes[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._changes[key]
            done.set()

    async def _settled(self, key: str) -> None:
        """Wait until an object is durable and can be used, so that no answer comes too early."""
        while key in self._changes:
            await self._changes[key].wait()

    async def save_owed(self) -> None:
        """Write what could not be written before."""
        await self._rows.settle()

    def _is_kept(self, binding: Binding) -> bool:
        """Whether a binding is needed to know which queues messages went to."""
        if binding.destination.kind == "exchange":
            return True
        queue = self.queues.get(binding.destination.name)
        return queue is not None and queue.record.is_kept

    def is_lasting(self, binding: Binding) -> bool:
        """Whether both ends of a kept binding survive a restart."""
        source = self.router.find(binding.source)
        if source is None or not source.durable:
            return False
        if binding.destination.kind == "queue":
            return binding.destination.name in self.queues
        exchange = self.router.find(binding.destination.name)
        return exchange is not None and exchange.durable

    def restore_binding(self, binding: Binding) -> None:
        """Add a binding of an earlier run. One whose exchange is gone leads from nowhere."""
        if self.router.find(binding.source) is None:
            self._loose.append(Delete(binding_key(self.name, binding)))
        else:
            self.router.bind(binding)

    async def drop_transient(self) -> None:
        """After a restart: drop everything that was not durable, or that a crash left half
        deleted."""
        router = self.router
        ops, self._loose = self._loose, []
        for binding in router.bindings():
            if not self.is_lasting(binding):
                router.unbind(binding)
                ops.append(Delete(binding_key(self.name, binding)))
        for record in router.exchanges():
            if not record.durable:
                router.remove_exchange(record.name)
                ops.append(Delete(self._key("exchanges", record.name)))
        await self._rows.write(*ops)

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
        key = self._key("exchanges", record.name)
        await self._settled(key)
        current = self.router.find(record.name)
        if current is not None:
            self._check_same_exchange(current, record)
            return
        self._check_new_name("exchange", record.name)
        if record.type not in TYPES:
            raise UnknownExchangeType(f"invalid exchange type '{record.type}'")
        with self._changing(key):  # two declarations at once make one exchange
            await self._rows.write(Put(key, encode_row(record)))
            self.router.add_exchange(record)
            self.hub.topology_changed()

    def _check_same_exchange(self, current: ExchangeRecord, record: ExchangeRecord) -> None:
        rows = [
            ("type", current.type, record.type),
            ("durable", current.durable, record.durable),
            ("auto_delete", current.auto_delete, record.auto_delete),
            ("internal", current.internal, record.internal),
            ("alternate-exchange", current.alternate, record.alternate),
        ]
        for name, ours, theirs in rows:
            if ours != theirs:
                raise InvalidRequest(
                    f"inequivalent arg '{name}' for exchange '{record.name}' in vhost"
                    f" '{self.name}': received '{_shown(theirs)}' but current is '{_shown(ours)}'",
                )

    def _check_new_name(self, kind: str, name: str) -> None:
        if name.startswith(RESERVED):
            raise NotAuthorized(
                f"{kind} name '{name}' contains reserved prefix 'amq.*'",
            )
        if len(name.encode()) > NAME_BYTES_MAX:
            raise InvalidRequest(f"the {kind} name is longer than 255 bytes")

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """exchange.delete; no error when it does not exist."""
        if not name:
            raise NotAuthorized(_DEFAULT_EXCHANGE)
        if name.startswith(RESERVED):
            raise NotAuthorized(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        key = self._key("exchanges", name)
        await self._settled(key)
        if self.router.find(name) is None:
            return
        if if_unused and self.router.bindings_from(name):
            raise InvalidRequest(f"exchange '{name}' in vhost '{self.name}' in use")
        rows = [
            *self.router.bindings_from(name),
            *self.router.bindings_to(Destination("exchange", name)),
        ]
        ops = [Delete(key)]
        ops += [Delete(binding_key(self.name, row)) for row in rows if self._is_kept(row)]
        gone = self.router.remove_exchange(name)
        self.streams.exchange_gone(name)
        self.hub.topology_changed()
        with self._changing(key):
            # The places that it brought to queues are kept before the row of the exchange is gone.
            await self.hub.unbound(self, gone)
            await self._rows.write(*ops)
        await self._unused_exchanges(gone)

    async def _unused_exchanges(self, gone: list[Binding]) -> None:
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
        if found is None:
            raise NotDeclared(f"no queue '{name}' in vhost '{self.name}'")
        if found.owner is not None and owner is not None and found.owner is not owner:
            raise locked_queue(name, self.name)
        return found

    async def declare_queue(
        self, record: QueueRecord, owner: object | None, *, passive: bool
    ) -> Queue:
        """queue.declare."""
        await self._settled(self._key("queues", record.name))
        self.hub.counters.declared += 1
        if passive:
            found = self.queue(record.name, owner)
            found.declared_again()
            return found
        if record.name in self.queues:
            found = self.queue(record.name, owner)
            check_equivalent(found.record, record, self.name)
            found.declared_again()
            return found
        if record.name:
            self._check_new_name("queue", record.name)
        else:
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
            record = msgspec.structs.replace(record, name=name)
        settings = read_settings(record, self.name)
        return await self._make_queue(record, settings, owner if record.exclusive else None)

    async def _make_queue(
        self, record: QueueRecord, settings: DeclaredSettings, owner: object | None
    ) -> Queue:
        limit = self.hub.limits.queues
        if len(self.queues) >= limit:
            raise InvalidRequest(
                f"vhost '{self.name}' has {limit} queues, which is the limit (amqp.limits.queues)",
            )
        cursor = RoutedCursor(self.cursor_name(record), (f"{self.name}/{record.name}",))
        queue = _KINDS[settings.type](self, record, settings, cursor, owner)
        self.queues[record.name] = queue  # two declarations at once make one queue
        key = self._key("queues", record.name)
        with self._changing(key):
            try:
                await self.hub.watch(queue)
                if record.is_kept:
                    await self._rows.write(Put(key, encode_row(record)))
            except BaseException:
                del self.queues[record.name]
                queue.close()
                with contextlib.suppress(OnelogError):
                    await self.hub.unwatch(queue)  # otherwise nobody could declare it again
                raise
        self.router.add_queue(record.name)
        self.hub.counters.made += 1
        self.hub.topology_changed()
        if settings.start is not None:
            await self.hub.take_history(queue, Binding(
                source="", destination=Destination("queue", queue.name), routing_key=queue.name,
            ))  # fmt: skip
        return queue

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
        """queue.delete. Returns how many messages were deleted with it."""
        key = self._key("queues", queue.name)
        await self._settled(key)
        if if_unused and queue.consumers:
            raise InvalidRequest(f"queue '{queue.name}' in vhost '{self.name}' in use")
        if if_empty and queue.ready.size:  # messages with consumers do not count, as in RabbitMQ
            raise InvalidRequest(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        if self.queues.get(queue.name) is not queue:
            return 0
        count = queue.ready.size
        rows = self.router.bindings_to(Destination("queue", queue.name))
        ops: list[Delete] = []
        if queue.record.is_kept:
            ops.append(Delete(key))
            ops += [Delete(binding_key(self.name, row)) for row in rows]
        del self.queues[queue.name]
        queue.close()
        gone = self.router.remove_queue(queue.name)
        self.hub.counters.queue_gone(queue)
        self.hub.topology_changed()
        with self._changing(key):
            try:
                await self._rows.write(*ops)
            finally:
                await self.hub.unwatch(queue)
        await self._unused_exchanges(gone)
        # Its consumers hear of it after the answer to the client that deleted it.
        self.hub.loop.call_soon(_tell_consumers, queue)
        return count

    def queue_unused(self, queue: Queue) -> None:
        """The last consumer of an auto-delete queue left."""
        self.hub.run(self._delete_unused(queue))

    async def _delete_unused(self, queue: Queue) -> None:
        if not queue.consumers:  # no consumer came meanwhile
            await self.delete_queue(queue)

    def queue_expired(self, queue: Queue) -> None:
        """Nobody used a queue for as long as its `x-expires` says."""
        self.hub.run(self.delete_queue(queue))

    async def owner_gone(self, owner: object) -> None:
        """A connection ended: delete its exclusive queues."""
        for queue in [row for row in self.queues.values() if row.owner is owner]:
            await self.delete_queue(queue)

    # -- bindings

    async def bind(self, binding: Binding) -> None:
        """queue.bind and exchange.bind. The caller has looked up both ends."""
        source = self.exchange(binding.source)
        if not binding.source:
            raise NotAuthorized(_DEFAULT_EXCHANGE)
        check_binding_arguments(source, binding.arguments)
        waiting = self.streams.make_ready(binding.source)
        if waiting is not None:
            await waiting
        key = binding_key(self.name, binding)
        await self._settled(key)
        self._check_ends(binding)
        if not self.router.bind(binding):
            return
        self.hub.topology_changed()
        with self._changing(key):
            try:
                await self.hub.bound(self, binding)
                if self.router.has(binding) and self._is_kept(binding):
                    await self._rows.write(Put(key, encode_row(binding)))
            except BaseException:
                self.router.unbind(binding)
                self.hub.topology_changed()
                raise

    def _check_ends(self, binding: Binding) -> None:
        """Both ends were looked up, but another client may have deleted one since."""
        self.exchange(binding.source)
        if binding.destination.kind == "exchange":
            self.exchange(binding.destination.name)
        else:
            self.queue(binding.destination.name, None)

    async def unbind(self, binding: Binding) -> None:
        """queue.unbind and exchange.unbind; no error when the binding does not exist."""
        if not binding.source:
            raise NotAuthorized(_DEFAULT_EXCHANGE)
        key = binding_key(self.name, binding)
        await self._settled(key)
        kept = self._is_kept(binding)
        if not self.router.unbind(binding):
            return
        self.hub.topology_changed()
        with self._changing(key):
            await self.hub.unbound(self, [binding])
            if kept:
                await self._rows.write(Delete(key))
        await self._unused_exchanges([binding])


def _tell_consumers(queue: Queue) -> None:
    for consumer in list(queue.consumers):
        consumer.queue_gone()


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
