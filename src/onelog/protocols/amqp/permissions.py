"""The rights of a user: RabbitMQ's configure, write and read, asked of the one authorizer.

Rules: configure is *manage*, write is *publish*, read is *subscribe*. The resource of a queue is
the topic of its own messages, that of an exchange the filter over its subtree. The door asks for a
publish, with the topic itself, which RabbitMQ calls topic permissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from onelog.broker import Action
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.queues.addresses import exchange_root, queue_topic

if TYPE_CHECKING:
    from onelog.protocols.amqp.channel import Channel

Kind = Literal["queue", "exchange"]


def may(channel: Channel, action: Action, kind: Kind, name: str) -> None:
    """Raise AmqpError unless the user of a channel may do this."""
    connection, vhost = channel.connection, channel.vhost
    assert connection.principal is not None
    if kind == "queue":
        resource = queue_topic(vhost.name, name)
    else:
        root = exchange_root(vhost.name, name)
        resource = f"{root}/#" if root else "#"
    if not connection.hub.broker.authorizer.allows(connection.principal, action, resource):
        raise AmqpError(
            Reply.ACCESS_REFUSED,
            f"access to {kind} '{name}' in vhost '{vhost.name}' refused for user"
            f" '{connection.login_name}'",
        )
