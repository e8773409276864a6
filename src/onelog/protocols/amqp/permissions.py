"""The rights of a user: RabbitMQ's configure, write and read, asked of the one authorizer.

Rules:
- Configure is *create* or *delete*, write is *publish*. Reading a queue is *consume* on the cursor
  `queue/<name>`, reading an exchange is *deliver* on the topics that a binding asks for.
- A queue is asked for by the topic of its own messages, an exchange by the filter over its subtree.
  A publish is asked for by the door, with the topic itself, which is what RabbitMQ calls topic
  permissions. Each further key of a publish (CC, BCC) needs the right that it would need alone.
- A binding is judged as a whole when it is made, and each message that comes through it as who made
  it (`queues/makers.py`). And a rule that denies reaches through a queue: a user does not consume a
  queue that is bound to topics which a rule forbids to that user.
- When answers changed, the publishes of open channels are looked at anew, and a channel whose
  consumer may not have its queue any more is closed with 403.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from onelog.base.errors import InvalidName
from onelog.broker import Action, Kind
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.queues.addresses import exchange_root, queue_cursor, queue_topic
from onelog.queues.claims import check_further_keys
from onelog.queues.exchanges import Binding, Destination
from onelog.queues.makers import binding_filter, subtree

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel
    from onelog.protocols.amqp.hub import Hub

Thing = Literal["queue", "exchange"]

_SEEING: Final = (
    Action.DESCRIBE,
    Action.PUBLISH,
    Action.DELIVER,
    Action.CREATE,
    Action.CONFIGURE,
    Action.DELETE,
)
"""Each of these on the topic of a queue shows the queue to who may do it."""
_SEEING_CURSOR: Final = (Action.DESCRIBE, Action.CONSUME, Action.DELETE)


def may(channel: Channel, action: Action, thing: Thing, name: str) -> None:
    """Raise AmqpError unless the user of a channel may do this."""
    vhost = channel.vhost.name
    if thing == "queue":
        resource = queue_topic(vhost, name or "amq.gen-")  # the broker will name it so
    else:
        resource = subtree(exchange_root(vhost, name))
    _ask(channel, action, resource, Kind.TOPIC, thing, name)


def may_consume(channel: Channel, queue: str) -> None:
    """Raise AmqpError unless the user of a channel may have what a queue holds."""
    cursor = queue_cursor(channel.vhost.name, queue)
    _ask(channel, Action.CONSUME, cursor, Kind.CURSOR, "queue", queue)
    authorizer, principal = channel.connection.hub.broker.authorizer, channel.connection.principal
    assert principal is not None
    if not authorizer.checks_delivery:
        return
    for source in _sources(channel, queue):
        if authorizer.denies(principal, Action.DELIVER, source):
            raise _refused(channel, "queue", queue)


def may_see(channel: Channel, queue: str) -> None:
    """Raise AmqpError unless the user of a channel has some right on a queue, which shows it."""
    vhost, connection = channel.vhost.name, channel.connection
    allows = connection.hub.broker.authorizer.allows
    assert connection.principal is not None
    topic, cursor = queue_topic(vhost, queue), queue_cursor(vhost, queue)
    if not (
        any(allows(connection.principal, action, topic) for action in _SEEING)
        or any(
            allows(connection.principal, action, cursor, Kind.CURSOR) for action in _SEEING_CURSOR
        )
    ):
        raise _refused(channel, "queue", queue)


def _sources(channel: Channel, queue: str) -> Iterator[str]:
    """The topics that come to a queue by bindings, also through other exchanges, as filters."""
    router = channel.vhost.router
    seen: set[Destination] = set()
    waiting = [Destination("queue", queue)]
    while waiting:
        destination = waiting.pop()
        if destination not in seen:
            seen.add(destination)
            for binding in router.bindings_to(destination):
                if binding.source:
                    yield _wanted(channel, binding)
                    waiting.append(Destination("exchange", binding.source))


def may_look_for(channel: Channel, exchange: str, key: str) -> None:
    """Raise NotAuthorized unless the user of a channel may publish there, if it were there.

    Rights are asked first, as RabbitMQ does: who has none does not learn whether an exchange or
    queue is there. So the words are those of the door, too.
    """
    connection = channel.connection
    assert connection.principal is not None
    with contextlib.suppress(InvalidName):  # no rule is about a key that is no topic
        check_further_keys(
            connection.hub.broker.authorizer,
            connection.principal,
            channel.vhost.name,
            exchange,
            (key,),
        )


def may_bind(channel: Channel, binding: Binding) -> None:
    """Raise AmqpError unless the user of a channel may make or end a binding."""
    destination, source = binding.destination, binding.source
    if source:  # every queue is bound to the default exchange
        wanted = _wanted(channel, binding)
        _ask(channel, Action.DELIVER, wanted, Kind.TOPIC, "exchange", source)
    may(channel, Action.PUBLISH, destination.kind, destination.name)


def may_send_dead_letters(channel: Channel, exchange: str, key: str | None) -> None:
    """Raise AmqpError unless the user of a channel may send what a queue gives up there."""
    if exchange:
        may(channel, Action.PUBLISH, "exchange", exchange)
    else:
        vhost = channel.vhost.name
        resource = queue_topic(vhost, key) if key else subtree(queue_topic(vhost, "")[:-1])
        _ask(channel, Action.PUBLISH, resource, Kind.TOPIC, "queue", key or "")


def _wanted(channel: Channel, binding: Binding) -> str:
    """The topics that come through a binding."""
    vhost = channel.vhost
    return binding_filter(vhost.name, vhost.router.find(binding.source), binding)


def look_anew(hub: Hub) -> None:
    """Answers changed: routes are found anew, and who may not consume any more is told."""
    hub.queues.generation += 1
    for connection in list(hub.connections):
        for channel in list(connection.channels.values()):
            _look_at(channel)


def _look_at(channel: Channel) -> None:
    for consumer in list(channel.consuming.consumers.values()):
        try:
            may_consume(channel, consumer.queue.name)
        except AmqpError as error:
            channel.fail(error)
            return


def _ask(
    channel: Channel, action: Action, resource: str, kind: Kind, thing: Thing, name: str
) -> None:
    connection = channel.connection
    assert connection.principal is not None
    if not connection.hub.broker.authorizer.allows(connection.principal, action, resource, kind):
        raise _refused(channel, thing, name)


def _refused(channel: Channel, thing: Thing, name: str) -> AmqpError:
    return AmqpError(
        Reply.ACCESS_REFUSED,
        f"access to {thing} '{name}' in vhost '{channel.vhost.name}' refused for user"
        f" '{channel.connection.login_name}'",
    )
