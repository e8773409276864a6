"""Definitions: virtual hosts, exchanges, queues and bindings as one file, for export and import.

Rules: an import is checked as a whole before anything is done. Then everything is declared in
order, and existing objects must be equal. Nothing is deleted. Rows that OneLog does not support
(policies, parameters) are refused, not skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.protocols.amqp.management.hosts import HostNote, Hosts
from onelog.protocols.amqp.management.topology_rows import is_built_in, sorted_bindings
from onelog.protocols.amqp.management.values import checked_table, jsonable
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord, ExchangeType
from onelog.queues.settings import QueueRecord
from onelog.queues.vhosts import VirtualHost

if TYPE_CHECKING:
    from onelog.protocols.amqp.hub import Hub

Row = dict[str, Any]
TURN: Final = 500
"""Rows that are made before others have their turn."""
_REFUSED: Final = ("policies", "parameters", "topic_permissions")


class HostDefinition(msgspec.Struct, frozen=True):
    """A virtual host in a file."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()


class ExchangeDefinition(msgspec.Struct, frozen=True):
    """An exchange in a file."""

    name: str
    type: ExchangeType
    vhost: str = ""
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Row = {}


class QueueDefinition(msgspec.Struct, frozen=True):
    """A queue in a file."""

    name: str
    vhost: str = ""
    durable: bool = False
    auto_delete: bool = False
    arguments: Row = {}


class BindingDefinition(msgspec.Struct, frozen=True):
    """A binding in a file."""

    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    vhost: str = ""
    routing_key: str = ""
    arguments: Row = {}


class Definitions(msgspec.Struct, frozen=True):
    """The keys that are read from a file; other keys have no effect."""

    vhosts: tuple[HostDefinition, ...] = ()
    exchanges: tuple[ExchangeDefinition, ...] = ()
    queues: tuple[QueueDefinition, ...] = ()
    bindings: tuple[BindingDefinition, ...] = ()
    policies: tuple[Row, ...] = ()
    parameters: tuple[Row, ...] = ()
    topic_permissions: tuple[Row, ...] = ()


async def export(hub: Hub, hosts: Hosts, vhost: str | None) -> Row:
    """All definitions, or those of one virtual host."""
    chosen = hub.vhosts.all() if vhost is None else [hosts.find(vhost)]
    named = vhost is None
    found: Row = {"parameters": [], "policies": []}
    if named:
        found["vhosts"] = [_host(hosts, row.name) for row in chosen]
    for name, rows_of in (("queues", _queues), ("exchanges", _exchanges), ("bindings", _bindings)):
        rows = found[name] = []
        for host in chosen:
            for row in rows_of(host, named):
                rows.append(row)
                if len(rows) % TURN == 0:
                    await asyncio.sleep(0)
    return found


def _host(hosts: Hosts, name: str) -> Row:
    note = hosts.note(name)
    return {"name": name, "description": note.description, "tags": list(note.tags)}


def _in(vhost: VirtualHost, named: bool) -> Row:
    return {"vhost": vhost.name} if named else {}


def _queues(vhost: VirtualHost, named: bool) -> Iterator[Row]:
    for name, queue in sorted(vhost.queues.items()):
        if not queue.record.exclusive:
            yield {
                "name": name,
                **_in(vhost, named),
                "durable": queue.record.durable,
                "auto_delete": queue.record.auto_delete,
                "arguments": jsonable(queue.record.arguments),
            }


def _exchanges(vhost: VirtualHost, named: bool) -> Iterator[Row]:
    for record in vhost.router.exchanges():
        if not is_built_in(record.name):
            yield {
                "name": record.name,
                **_in(vhost, named),
                "type": record.type,
                "durable": record.durable,
                "auto_delete": record.auto_delete,
                "internal": record.internal,
                "arguments": jsonable(record.arguments),
            }


def _bindings(vhost: VirtualHost, named: bool) -> Iterator[Row]:
    for row in sorted_bindings(vhost):
        queue = vhost.queues.get(row.destination.name)
        is_queue = row.destination.kind == "queue"
        if is_queue and (queue is None or queue.record.exclusive):
            continue
        yield {
            "source": row.source,
            **_in(vhost, named),
            "destination": row.destination.name,
            "destination_type": row.destination.kind,
            "routing_key": row.routing_key,
            "arguments": jsonable(row.arguments),
        }


def read(value: Row, hub: Hub, hosts: Hosts, vhost: str | None) -> Definitions:
    """A file, checked as a whole. Raises InvalidRequest."""
    try:
        found = msgspec.convert(value, type=Definitions, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the definitions cannot be read: {error}") from None
    for name in _REFUSED:
        if getattr(found, name):
            raise InvalidRequest(
                f"{name} are not kept here: take them out of the definitions, or say the same"
                " with arguments of queues and exchanges"
            )
    for host in found.vhosts:
        hosts.check(host.name, HostNote(description=host.description, tags=host.tags))
    known = {row.name for row in hub.vhosts.all()} | {row.name for row in found.vhosts}
    rows: tuple[ExchangeDefinition | QueueDefinition | BindingDefinition, ...]
    rows = (*found.exchanges, *found.queues, *found.bindings)
    for row in rows:
        checked_table(row.arguments)
        if vhost is None and row.vhost not in known:
            raise InvalidRequest(f"no_such_vhost: {row.vhost or 'undefined'}")
    return found


async def apply(found: Definitions, hosts: Hosts, vhost: str | None) -> None:
    """Declare the content of a file. Raises the errors of a declaration."""
    for host in found.vhosts:
        await hosts.make(host.name, HostNote(description=host.description, tags=host.tags))
    for exchange in found.exchanges:
        if is_built_in(exchange.name):
            continue
        await hosts.find(vhost or exchange.vhost).declare_exchange(
            ExchangeRecord(
                name=exchange.name,
                type=exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            ),
            passive=False,
        )
    for queue in found.queues:
        record = QueueRecord(
            name=queue.name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=queue.arguments,
        )
        await hosts.find(vhost or queue.vhost).declare_queue(record, None, passive=False)
    for row in found.bindings:
        host_of = hosts.find(vhost or row.vhost)
        await bind(host_of, _binding(row))


def _binding(row: BindingDefinition) -> Binding:
    return Binding(
        source=row.source,
        destination=Destination(row.destination_type, row.destination),
        routing_key=row.routing_key,
        arguments=row.arguments,
    )


async def bind(vhost: VirtualHost, binding: Binding) -> None:
    """Bind two ends that must exist. Raises AmqpError."""
    if binding.destination.kind == "queue":
        vhost.queue(binding.destination.name, None)
    else:
        vhost.exchange(binding.destination.name)
    await vhost.bind(binding)
