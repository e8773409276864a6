"""Exchanges, queues and bindings as operators see them, make them and remove them.

Rules: the rights are those of AMQP's own methods (`permissions.py`), asked of the same authorizer
before anything is looked up. Who makes something is kept with it: what it brings is judged as that
principal (`queues/makers.py`). An administrator is not bound by rules, and what it makes is not
judged. What is there already and is the same is no error; what is there and is another is a
Conflict.
"""

from __future__ import annotations

from onelog.base.errors import Conflict, InvalidRequest, NotAuthorized, NotFound
from onelog.broker import LOCAL, Action, Kind, Principal
from onelog.broker.showing import (
    BindingRow,
    BindingWish,
    ExchangeRow,
    ExchangeWish,
    QueueRow,
    QueueWish,
)
from onelog.protocols.amqp.hub import Hub
from onelog.protocols.amqp.management.topology_rows import properties_key
from onelog.protocols.amqp.management.values import checked_table
from onelog.queues.addresses import exchange_root, queue_cursor, queue_topic
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord, check_same_exchange
from onelog.queues.makers import binding_filter, subtree
from onelog.queues.queue import Queue
from onelog.queues.settings import QueueRecord, check_equivalent
from onelog.queues.vhosts import VirtualHost


def exchange_row(vhost: VirtualHost, row: ExchangeRecord) -> ExchangeRow:
    """An exchange as operators see it."""
    return ExchangeRow(
        vhost=vhost.name,
        name=row.name,
        type=row.type,
        durable=row.durable,
        auto_delete=row.auto_delete,
        internal=row.internal,
        filter=subtree(exchange_root(vhost.name, row.name)),
    )


def queue_row(vhost: VirtualHost, queue: Queue) -> QueueRow:
    """A queue as operators see it."""
    return QueueRow(
        vhost=vhost.name,
        name=queue.name,
        type=queue.settings.type,
        durable=queue.record.durable,
        auto_delete=queue.record.auto_delete,
        exclusive=queue.record.exclusive,
        ready=queue.ready.size,
        unacked=queue.unacked,
        consumers=len(queue.consumers),
        published=queue.published,
        delivered=queue.delivered,
        cursor=queue.cursor.name,
        topic=queue_topic(vhost.name, queue.name),
        access=queue_cursor(vhost.name, queue.name),
    )


def binding_row(vhost: VirtualHost, row: Binding) -> BindingRow:
    """A binding as operators see it."""
    return BindingRow(
        vhost=vhost.name,
        source=row.source,
        destination=row.destination.name,
        destination_type=row.destination.kind,
        routing_key=row.routing_key,
        filter=binding_filter(vhost.name, vhost.router.find(row.source), row),
        target=_topics(vhost.name, row.destination),
        key=properties_key(row),
    )


def _topics(vhost: str, end: Destination) -> str:
    """The topic of a queue, or the filter over those of an exchange."""
    is_queue = end.kind == "queue"
    return queue_topic(vhost, end.name) if is_queue else subtree(exchange_root(vhost, end.name))


class Shaping:
    """Makes and removes; see `broker.showing.QueueShaping`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def declare_exchange(
        self, vhost: str, wish: ExchangeWish, principal: Principal
    ) -> ExchangeRow:
        """Make an exchange; one that is the same is no error."""
        record = ExchangeRecord(
            name=wish.name,
            type=wish.type,
            durable=wish.durable,
            auto_delete=wish.auto_delete,
            internal=wish.internal,
            arguments=checked_table(wish.arguments),
            maker=_maker(principal),
        )
        end = Destination("exchange", wish.name)
        self._need(principal, Action.CREATE, vhost, end)
        if record.alternate is not None:
            self._need(principal, Action.PUBLISH, vhost, Destination("exchange", record.alternate))
        host = self._host(vhost)
        current = host.router.find(wish.name)
        if current is not None:
            try:
                check_same_exchange(current, record, vhost)
            except InvalidRequest as error:
                raise Conflict(str(error)) from None
        await host.declare_exchange(record, passive=False)
        return exchange_row(host, host.exchange(wish.name))

    async def delete_exchange(
        self, vhost: str, name: str, principal: Principal, *, if_unused: bool
    ) -> None:
        """Delete an exchange and its bindings."""
        self._need(principal, Action.DELETE, vhost, Destination("exchange", name))
        host = self._host(vhost)
        host.exchange(name)
        if if_unused and host.router.bindings_from(name):
            raise Conflict(f"the exchange {name!r} is used: bindings lead from it")
        await host.delete_exchange(name, if_unused=if_unused)

    async def declare_queue(self, vhost: str, wish: QueueWish, principal: Principal) -> QueueRow:
        """Make a queue; one that is the same is no error."""
        record = QueueRecord(
            name=wish.name,
            durable=wish.durable,
            auto_delete=wish.auto_delete,
            arguments=checked_table(wish.arguments),
            maker=_maker(principal),
        )
        self._need(principal, Action.CREATE, vhost, Destination("queue", wish.name))
        self._need_dead_letters(principal, vhost, record)
        host = self._host(vhost)
        current = host.queues.get(wish.name)
        if current is not None:
            try:
                check_equivalent(current.record, record, vhost)
            except InvalidRequest as error:
                raise Conflict(str(error)) from None
        return queue_row(host, await host.declare_queue(record, None, passive=False))

    def _need_dead_letters(self, principal: Principal, vhost: str, record: QueueRecord) -> None:
        """What a queue gives up goes elsewhere as its maker, who needs the rights to that."""
        exchange = record.arguments.get("x-dead-letter-exchange")
        if not isinstance(exchange, str):
            return
        cursor = queue_cursor(vhost, record.name)
        if not self._allows(principal, Action.CONSUME, cursor, Kind.CURSOR):
            raise _refused(principal, Action.CONSUME, vhost, Destination("queue", record.name))
        key = record.arguments.get("x-dead-letter-routing-key")
        if exchange:
            self._need(principal, Action.PUBLISH, vhost, Destination("exchange", exchange))
        elif isinstance(key, str) and key:
            self._need(principal, Action.PUBLISH, vhost, Destination("queue", key))
        elif not self._allows(principal, Action.PUBLISH, subtree(queue_topic(vhost, "")[:-1])):
            raise _refused(principal, Action.PUBLISH, vhost, Destination("queue", ""))

    async def bind(self, vhost: str, wish: BindingWish, principal: Principal) -> BindingRow:
        """Make a binding; one that is there is no error."""
        binding = self._binding(wish, principal)
        self._need_binding(principal, vhost, binding)
        host = self._host(vhost)
        host.exchange(wish.source)
        if wish.destination_type == "queue":
            host.queue(wish.destination, None)
        else:
            host.exchange(wish.destination)
        await host.bind(binding)
        return binding_row(host, binding)

    async def unbind(self, vhost: str, wish: BindingWish, key: str, principal: Principal) -> None:
        """Remove a binding."""
        wanted = self._binding(wish, principal)
        self._need_binding(principal, vhost, wanted)
        host = self._host(vhost)
        found = [
            row
            for row in host.router.bindings_to(wanted.destination)
            if (row.source, row.routing_key) == (wanted.source, wanted.routing_key)
            and key in ("", properties_key(row))
        ]
        if not found:
            raise NotFound(
                f"there is no such binding from {wish.source!r} to {wish.destination!r} in the"
                f" virtual host {vhost!r}; GET /api/v1/amqp/bindings lists them"
            )
        if len(found) > 1:
            keys = ", ".join(map(properties_key, found[:10]))
            raise Conflict(
                f"{len(found)} bindings have this routing key: say which, by key: {keys}"
            )
        await host.unbind(found[0])

    def _binding(self, wish: BindingWish, principal: Principal) -> Binding:
        return Binding(
            source=wish.source,
            destination=Destination(wish.destination_type, wish.destination),
            routing_key=wish.routing_key,
            arguments=checked_table(wish.arguments),
            maker=_maker(principal),
        )

    # -- rights

    def _host(self, vhost: str) -> VirtualHost:
        found = self._hub.vhosts.find(vhost)
        if found is None:
            raise NotFound(f"there is no virtual host {vhost!r}")
        return found

    def _allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        return self._hub.broker.authorizer.allows(principal, action, resource, kind)

    def _need(self, principal: Principal, action: Action, vhost: str, end: Destination) -> None:
        """Raise NotAuthorized unless the principal may do this to a queue or an exchange."""
        if not self._allows(principal, action, _topics(vhost, end)):
            raise _refused(principal, action, vhost, end)

    def _need_binding(self, principal: Principal, vhost: str, binding: Binding) -> None:
        """Raise NotAuthorized unless the principal may make or end a binding."""
        host = self._hub.vhosts.find(vhost)
        source = None if host is None else host.router.find(binding.source)
        if not self._allows(principal, Action.DELIVER, binding_filter(vhost, source, binding)):
            origin = Destination("exchange", binding.source)
            raise _refused(principal, Action.DELIVER, vhost, origin)
        self._need(principal, Action.PUBLISH, vhost, binding.destination)


def _maker(principal: Principal) -> Principal | None:
    return None if principal is LOCAL else principal


def _refused(principal: Principal, action: Action, vhost: str, end: Destination) -> NotAuthorized:
    return NotAuthorized(
        f"no access rule lets {principal.name} {action} at the {end.kind} {end.name!r} in the"
        f" virtual host {vhost!r}"
    )
