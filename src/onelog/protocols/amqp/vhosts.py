"""A virtual host: its exchanges, queues and bindings, who may declare what, and what is kept.

Rules:
- Durable exchanges, durable queues and the bindings between them are in the metadata store before
  they are answered (I4, I9); transient ones live in memory, exclusive queues as long as their
  connection.
- A declaration of what is there must say the same in all that counts; a passive one only asks.
- Names that begin with `amq.` are the broker's.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from onelog.broker import RoutedCursor
from onelog.metadata.store import Delete, Op, Put
from onelog.protocols.amqp.dead_letters import DeadLetters
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.queues.queue import Queue
from onelog.protocols.amqp.queues.settings import (
    QueueRecord,
    QueueSettings,
    check_equivalent,
    read_settings,
)
from onelog.protocols.amqp.router import (
    TYPES,
    Binding,
    Destination,
    ExchangeRecord,
    Router,
    check_binding_arguments,
)
from onelog.protocols.amqp.streams import Streams

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection
    from onelog.protocols.amqp.hub import Hub

RESERVED: Final = "amq."
ROOT: Final = "amqp/vhosts/"
NAME_BYTES_MAX: Final = 255
CURSOR_PREFIX: Final = "amqp:"
TRANSIENT_PREFIX: Final = "amqp-transient:"


def _part(text: str) -> str:
    return quote(text, safe="")


class VirtualHost:
    """One virtual host."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.router = Router()
        self.queues: dict[str, Queue] = {}
        self.streams = Streams(hub, name)
        self.dead_letters = DeadLetters(self)

    # -- keys of the metadata store

    def _key(self, kind: str, *parts: str) -> str:
        return f"{ROOT}{_part(self.name)}/{kind}/{'/'.join(map(_part, parts))}"

    def _exchange_key(self, name: str) -> str:
        return self._key("exchanges", name)

    def _queue_key(self, name: str) -> str:
        return self._key("queues", name)

    def _binding_key(self, binding: Binding) -> str:
        digest = repr(sorted(binding.arguments.items()))
        return self._key(
            "bindings",
            binding.source,
            binding.destination.kind,
            binding.destination.name,
            binding.routing_key,
            digest,
        )

    async def _save(self, *ops: Op) -> None:
        if ops:
            await self.hub.broker.store.txn([], list(ops))

    def _is_kept(self, binding: Binding) -> bool:
        """Whether both ends of a binding survive a restart."""
        source = self.router.find(binding.source)
        if source is None or not source.durable:
            return False
        name = binding.destination.name
        if binding.destination.kind == "queue":
            queue = self.queues.get(name)
            return queue is not None and queue.record.durable and not queue.record.exclusive
        exchange = self.router.find(name)
        return exchange is not None and exchange.durable

    # -- exchanges

    def exchange(self, name: str) -> ExchangeRecord:
        """An exchange. Raises AmqpError."""
        found = self.router.find(name)
        if found is None:
            raise AmqpError(Reply.NOT_FOUND, f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def exchange_to_publish(self, method: Any, connection: Connection) -> str:
        """The exchange of a publish. Raises AmqpError."""
        del connection
        found = self.exchange(method.exchange)
        if found.internal:
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"cannot publish to internal exchange '{found.name}' in vhost '{self.name}'",
            )
        return found.name

    async def declare_exchange(self, record: ExchangeRecord, *, passive: bool) -> None:
        """exchange.declare."""
        if passive:
            self.exchange(record.name)
            return
        current = self.router.find(record.name)
        if current is not None:
            self._check_same_exchange(current, record)
            return
        self._check_new_name("exchange", record.name)
        if record.type not in TYPES:
            raise AmqpError(Reply.COMMAND_INVALID, f"unknown exchange type '{record.type}'")
        if record.durable:
            await self._save(Put(self._exchange_key(record.name), msgspec.json.encode(record)))
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
                raise AmqpError(
                    Reply.PRECONDITION_FAILED,
                    f"inequivalent arg '{name}' for exchange '{record.name}' in vhost"
                    f" '{self.name}': received '{_shown(theirs)}' but current is '{_shown(ours)}'",
                )

    def _check_new_name(self, kind: str, name: str) -> None:
        if not name or name.startswith(RESERVED):
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"{kind} name '{name}' contains reserved prefix 'amq.*'"
                if name
                else "operation not permitted on the default exchange",
            )
        if len(name.encode()) > NAME_BYTES_MAX:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"the {kind} name is longer than 255 bytes")

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """exchange.delete; one that is not there is fine."""
        if not name or name.startswith(RESERVED):
            raise AmqpError(Reply.ACCESS_REFUSED, f"operation not permitted on exchange '{name}'")
        found = self.router.find(name)
        if found is None:
            return
        if if_unused and self.router.bindings_from(name):
            raise AmqpError(
                Reply.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{self.name}' in use"
            )
        ops: list[Op] = [Delete(self._exchange_key(name))] if found.durable else []
        rows = [
            *self.router.bindings_from(name),
            *self.router.bindings_to(Destination("exchange", name)),
        ]
        ops += [Delete(self._binding_key(row)) for row in rows if self._is_kept(row)]
        await self._save(*ops)
        gone = self.router.remove_exchange(name)
        await self.streams.exchange_gone(name)
        self.hub.topology_changed()
        await self._unused_exchanges(gone)

    async def _unused_exchanges(self, gone: list[Binding]) -> None:
        """Exchanges that were to go with their last binding."""
        for source in {row.source for row in gone}:
            found = self.router.find(source)
            if found is not None and found.auto_delete and not self.router.bindings_from(source):
                await self.delete_exchange(source, if_unused=False)

    # -- queues

    def queue(self, name: str, connection: Connection | None) -> Queue:
        """A queue that this connection may use. Raises AmqpError."""
        found = self.queues.get(name)
        if found is None:
            raise AmqpError(Reply.NOT_FOUND, f"no queue '{name}' in vhost '{self.name}'")
        if found.owner is not None and connection is not None and found.owner is not connection:
            raise AmqpError(
                Reply.RESOURCE_LOCKED,
                f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'."
                " It could be originally declared on another connection or the exclusive property"
                " value does not match that of the original declaration.",
            )
        return found

    async def declare_queue(
        self, record: QueueRecord, connection: Connection, *, passive: bool
    ) -> Queue:
        """queue.declare."""
        if passive:
            return self.queue(record.name, connection)
        if record.name in self.queues:
            found = self.queue(record.name, connection)
            check_equivalent(found.record, record, self.name)
            found.declared_again()
            return found
        if record.name:
            self._check_new_name("queue", record.name)
        else:
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
            record = msgspec.structs.replace(record, name=name)
        settings = read_settings(record, self.name)
        owner = connection if record.exclusive else None
        return await self._make_queue(record, settings, owner)

    async def _make_queue(
        self, record: QueueRecord, settings: QueueSettings, owner: Connection | None
    ) -> Queue:
        limit = self.hub.limits.queues
        if len(self.queues) >= limit:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"vhost '{self.name}' has {limit} queues, which is the limit (amqp.limits.queues)",
            )
        kept = record.durable and not record.exclusive
        cursor = RoutedCursor(self._cursor_name(record), (f"{self.name}/{record.name}",))
        queue = Queue(self, record, settings, cursor, owner)
        self.queues[record.name] = queue  # two declarations at once make one queue
        try:
            await self.hub.watch(queue)
            if kept:
                await self._save(Put(self._queue_key(record.name), msgspec.json.encode(record)))
        except BaseException:
            del self.queues[record.name]
            queue.close()
            raise
        self.router.add_queue(record.name)
        self.hub.topology_changed()
        if settings.start is not None:
            await self.hub.take_history(queue, Binding(
                source="", destination=Destination("queue", queue.name), routing_key=queue.name,
            ))  # fmt: skip
        return queue

    def _cursor_name(self, record: QueueRecord) -> str:
        kept = record.durable and not record.exclusive
        return f"{CURSOR_PREFIX if kept else TRANSIENT_PREFIX}{self.name}:{record.name}"

    def restore_queue(self, record: QueueRecord, cursor: RoutedCursor) -> Queue:
        """A durable queue of an earlier run."""
        queue = Queue(self, record, read_settings(record, self.name), cursor, None)
        self.queues[record.name] = queue
        self.router.add_queue(record.name)
        return queue

    def cursor_name(self, record: QueueRecord) -> str:
        """The name that a queue's places are kept under."""
        return self._cursor_name(record)

    async def delete_queue(
        self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """queue.delete; how many messages went with it."""
        if if_unused and queue.consumers:
            raise AmqpError(
                Reply.PRECONDITION_FAILED, f"queue '{queue.name}' in vhost '{self.name}' in use"
            )
        if if_empty and (queue.ready.size or queue.unacked):
            raise AmqpError(
                Reply.PRECONDITION_FAILED, f"queue '{queue.name}' in vhost '{self.name}' not empty"
            )
        if self.queues.get(queue.name) is not queue:
            return 0
        count = queue.ready.size
        rows = self.router.bindings_to(Destination("queue", queue.name))
        ops: list[Op] = []
        if queue.record.durable and not queue.record.exclusive:
            ops.append(Delete(self._queue_key(queue.name)))
            ops += [Delete(self._binding_key(row)) for row in rows if self._is_kept(row)]
        del self.queues[queue.name]
        queue.close()
        gone = self.router.remove_queue(queue.name)
        self.hub.topology_changed()
        for consumer in list(queue.consumers):
            consumer.owner.queue_gone(queue)
        await self._save(*ops)
        await self.hub.unwatch(queue)
        await self._unused_exchanges(gone)
        return count

    def queue_unused(self, queue: Queue) -> None:
        """The last consumer of an auto-delete queue left."""
        self.hub.run(self.delete_queue(queue))

    def queue_expired(self, queue: Queue) -> None:
        """Nobody used a queue for as long as it said."""
        self.hub.run(self.delete_queue(queue))

    def connection_gone(self, connection: Connection) -> None:
        """A connection ended: its exclusive queues go with it."""
        for queue in [row for row in self.queues.values() if row.owner is connection]:
            self.hub.run(self.delete_queue(queue))

    # -- bindings

    async def bind(self, binding: Binding) -> None:
        """queue.bind and exchange.bind; both ends were looked up."""
        source = self.exchange(binding.source)
        if not binding.source:
            raise AmqpError(Reply.ACCESS_REFUSED, "operation not permitted on the default exchange")
        check_binding_arguments(source, binding.arguments)
        waiting = self.streams.make_ready(binding.source)
        if waiting is not None:
            await waiting
        if not self.router.bind(binding):
            return
        self.hub.topology_changed()
        await self.hub.bound(self, binding)
        if self._is_kept(binding):
            await self._save(Put(self._binding_key(binding), msgspec.json.encode(binding)))

    async def unbind(self, binding: Binding) -> None:
        """queue.unbind and exchange.unbind; a binding that is not there is fine."""
        kept = self._is_kept(binding)
        if not self.router.unbind(binding):
            return
        self.hub.topology_changed()
        await self.hub.unbound(self, binding)
        if kept:
            await self._save(Delete(self._binding_key(binding)))
        await self._unused_exchanges([binding])


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
