"""Makers: what bindings, alternate exchanges and dead letters bring is judged as who made them.

Rules:
- Who binds a queue, names an alternate exchange or names a dead-letter exchange is kept with it. A
  message goes that way only while its maker has the rights that making it needs, for that message
  (ADR 26). So a rule that changes counts from the next message on.
- Without a maker nothing is asked: an administrator made it by the management API, the broker did,
  or a version that kept no makers.
- A message that comes to an exchange is judged by the topic that it would have there.
"""

from __future__ import annotations

from onelog.base.errors import InvalidName
from onelog.base.names import from_routing_key
from onelog.broker import Action, Authorizer, Kind, Principal
from onelog.queues.addresses import exchange_root, message_topic, queue_cursor, queue_topic
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord


class Makers:
    """The judge of one virtual host."""

    __slots__ = ("_authorizer", "_vhost")

    def __init__(self, authorizer: Authorizer, vhost: str) -> None:
        self._authorizer = authorizer
        self._vhost = vhost

    def may_lead(self, maker: Principal | None, source: str, key: str, to: Destination) -> bool:
        """Whether a binding brings a message from an exchange to its destination."""
        if maker is None or not self._authorizer.checks_delivery:
            return True
        allows = self._authorizer.allows
        return allows(maker, Action.DELIVER, self._topic(source, key)) and allows(
            maker, Action.PUBLISH, self._destination(to)
        )

    def may_pass_on(self, maker: Principal | None, alternate: str, key: str) -> bool:
        """Whether a message that an exchange finds no queue for goes to its alternate exchange."""
        if maker is None or not self._authorizer.checks_delivery:
            return True
        return self._authorizer.allows(maker, Action.PUBLISH, self._topic(alternate, key))

    def may_bury(self, maker: Principal | None, queue: str, exchange: str, key: str) -> bool:
        """Whether a dead letter goes from a queue to an exchange with this key."""
        if maker is None or not self._authorizer.checks_delivery:
            return True
        allows = self._authorizer.allows
        return allows(
            maker, Action.CONSUME, queue_cursor(self._vhost, queue), Kind.CURSOR
        ) and allows(maker, Action.PUBLISH, self._topic(exchange, key))

    def may_keep(self, binding: Binding, source: ExchangeRecord | None) -> bool:
        """Whether the maker of a binding could make all of it again."""
        if binding.maker is None:
            return True
        wanted = binding_filter(self._vhost, source, binding)
        allows = self._authorizer.allows
        return allows(binding.maker, Action.DELIVER, wanted) and allows(
            binding.maker, Action.PUBLISH, self._destination(binding.destination)
        )

    def _topic(self, exchange: str, key: str) -> str:
        """The topic of a message of an exchange, or all of them if the key makes no topic."""
        try:
            return message_topic(self._vhost, exchange, key)
        except (InvalidName, UnicodeError):
            return subtree(exchange_root(self._vhost, exchange))

    def _destination(self, to: Destination) -> str:
        if to.kind == "queue":
            return queue_topic(self._vhost, to.name)
        return subtree(exchange_root(self._vhost, to.name))


def binding_filter(vhost: str, source: ExchangeRecord | None, binding: Binding) -> str:
    """The topics that come through a binding, or more where no filter says just these."""
    root = exchange_root(vhost, binding.source)
    if source is None or source.type not in ("direct", "topic"):
        return subtree(root)
    if source.type == "direct":
        text = from_routing_key(binding.routing_key)
    else:
        words = binding.routing_key.split(".")
        if "#" in words[:-1]:
            return subtree(root)
        text = "/".join({"*": "+", "#": "#"}.get(word) or from_routing_key(word) for word in words)
    return "/".join(part for part in (root, text) if part) or "#"


def subtree(root: str) -> str:
    """The filter over everything below a topic; empty: over all."""
    return f"{root}/#" if root else "#"
