"""Addresses: the topic of a message that is sent to an exchange, and the stream of that topic.

Rules (ADR 9; docs/reference/amqp.md has the table):
- `amq.topic` of the virtual host `/` is the root of the topic space: key `a.b` is topic `a/b`.
- Every other exchange has its own subtree `$x/<exchange>/…`. Messages of the default exchange to a
  queue lie at `$q/<queue>`. Any other virtual host has its name in the first level. Names are
  escaped into one level, so two different addresses never share a topic (I7), and a subscriber to
  `#` does not see them (a wildcard does not match `$…` at the first level). Clients of every
  protocol may write to them; any other topic that begins with `$` belongs to the broker.
- The audit trail lies at `$audit/…`; its exchange is `amq.onelog.audit`, which takes no message.
- In the log, the address for an answer is a topic. In AMQP it is the key of a publish to the
  default exchange, which is what every RPC client and worker uses: the queue's name for
  `$q/<queue>`, and `amq.topic/<topic>` for any other topic. No client can declare a queue of such a
  name.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final, NamedTuple

from onelog.base.errors import InvalidRequest, NotAuthorized
from onelog.base.limits import TOPIC_BYTES_MAX
from onelog.base.names import from_routing_key, to_routing_key
from onelog.base.topics import AUDIT_ROOT, check_topic, is_audit


class Address(NamedTuple):
    """The AMQP address of a topic."""

    vhost: str
    exchange: str
    """Empty: the default exchange."""
    routing_key: str


ROOT_EXCHANGE: Final = "amq.topic"
AUDIT_EXCHANGE: Final = "amq.onelog.audit"
"""Queues that are bound to it, in the virtual host `/`, get the audit trail."""
AUDIT_STREAM: Final = "~audit"
DEFAULT_VHOST: Final = "/"
RESERVED: Final = "amq."
"""How names begin that only the broker gives."""
NAME_BYTES_MAX: Final = 255
ADDRESSES_REMEMBERED: Final = 65_536
QUEUES_STREAM: Final = "amqp.queues"
STREAM_PREFIX: Final = "amqp."
"""The prefix of the names of AMQP's own streams. Nobody else makes a stream of such a name."""
TOPIC_PREFIX: Final = f"{ROOT_EXCHANGE}/"
"""Stands before a topic where AMQP expects the name of a queue."""

_STREAM_NAME_MAX: Final = 240
"""A longer name is a digest, behind a character that no other name has there."""
_ESCAPE: Final = re.compile(r"_x([0-9A-F]{2})_")
_ESCAPES: Final = re.compile(r"(?:_x[0-9A-F]{2}_)+")
_ADDRESS: Final = re.compile(r"\$([qx]|[qxt]@[^/]+)/.", re.DOTALL)
_OWN_STREAM: Final = re.compile(r"\$(q|x(?!(@[^/]+)?/amq\.topic(/|$)))(@[^/]+)?/.", re.DOTALL)
_UNSAFE: Final = re.compile(r"[/+#\x00@]|_(?=x[0-9A-F]{2}_)")


def level(name: str) -> str:
    """A name as one level of a topic."""
    return _UNSAFE.sub(
        lambda match: "".join(f"_x{byte:02X}_" for byte in match.group().encode()), name
    )


def _space(letter: str, vhost: str) -> str:
    return f"${letter}" if vhost == DEFAULT_VHOST else f"${letter}@{level(vhost)}"


def queue_topic(vhost: str, queue: str) -> str:
    """The topic of messages that the default exchange sends to a queue."""
    return f"{_space('q', vhost)}/{level(queue)}"


def queue_cursor(vhost: str, queue: str) -> str:
    """What access rules call a queue that is consumed."""
    return f"queue/{queue}" if vhost == DEFAULT_VHOST else f"queue@{level(vhost)}/{queue}"


def exchange_root(vhost: str, exchange: str) -> str:
    """The topic under which an exchange's messages lie; empty: the root of the topic space."""
    if (vhost, exchange) == (DEFAULT_VHOST, AUDIT_EXCHANGE):
        return AUDIT_ROOT
    if exchange != ROOT_EXCHANGE:
        return f"{_space('x', vhost)}/{level(exchange)}"
    return "" if vhost == DEFAULT_VHOST else _space("t", vhost)


@lru_cache(maxsize=ADDRESSES_REMEMBERED)
def message_topic(vhost: str, exchange: str, routing_key: str) -> str:
    """The topic of a message; the default exchange's key is a queue's name. Raises InvalidName."""
    if not exchange:
        return check_topic(queue_topic(vhost, routing_key))
    root = exchange_root(vhost, exchange)
    topic = from_routing_key(routing_key)
    if root:
        return check_topic(f"{root}/{topic}")
    if not topic or topic.startswith("$"):
        # `amq.topic` has no such topic: the message gets one as if of any other exchange.
        return check_topic(f"{_space('x', vhost)}/{level(exchange)}/{topic}")
    return check_topic(topic)


@lru_cache(maxsize=ADDRESSES_REMEMBERED)
def address_of(topic: str) -> Address:
    """The virtual host, exchange and routing key of a topic, whichever protocol wrote it."""
    if not topic.startswith("$"):
        return Address(DEFAULT_VHOST, ROOT_EXCHANGE, to_routing_key(topic))
    if is_audit(topic):
        key = topic.removeprefix(AUDIT_ROOT).removeprefix("/")
        return Address(DEFAULT_VHOST, AUDIT_EXCHANGE, to_routing_key(key))
    space, _, rest = topic.partition("/")
    kind, marked, name = space.partition("@")
    vhost = _unlevel(name) if marked else DEFAULT_VHOST
    if kind == "$q":
        return Address(vhost, "", _unlevel(rest))
    if kind == "$x":
        exchange, _, key = rest.partition("/")
        return Address(vhost, _unlevel(exchange), to_routing_key(key))
    if kind == "$t":
        return Address(vhost, ROOT_EXCHANGE, to_routing_key(rest))
    return Address(DEFAULT_VHOST, ROOT_EXCHANGE, to_routing_key(topic))


def is_writable(topic: str) -> bool:
    """Whether clients may publish to a topic, rights aside."""
    return not topic.startswith("$") or _ADDRESS.match(topic) is not None


def has_own_stream(text: str) -> bool:
    """Whether a topic or filter is of a queue, or of an exchange with a stream of its own.

    Such a topic never lives in a shared stream: before its own stream exists, no queue or binding
    could receive the message. The exception is a topic that `amq.topic` has no other place for.
    """
    return _OWN_STREAM.match(text) is not None


def _unlevel(text: str) -> str:
    # A topic of another protocol may have escapes that no name has.
    return _ESCAPES.sub(
        lambda match: bytes(int(pair, 16) for pair in _ESCAPE.findall(match.group())).decode(
            "utf-8", "surrogateescape"
        ),
        text,
    )


def reply_topic(vhost: str, reply_to: str) -> str:
    """The topic that a message's `reply_to` stands for."""
    if reply_to.startswith(TOPIC_PREFIX):
        return reply_to[len(TOPIC_PREFIX) :]
    return queue_topic(vhost, reply_to)


def reply_key(vhost: str, topic: str) -> str:
    """The `reply_to` for a topic: the inverse of `reply_topic`."""
    found = address_of(topic)
    if not found.exchange and queue_topic(vhost, found.routing_key) == topic:
        return found.routing_key
    return f"{TOPIC_PREFIX}{topic}"


def topic_named(vhost: str, exchange: str, routing_key: str) -> Address | None:
    """The address of a publish whose key names a topic; None: the key names a queue."""
    if exchange or not routing_key.startswith(TOPIC_PREFIX):
        return None
    found = address_of(routing_key[len(TOPIC_PREFIX) :])
    return found if found.vhost == vhost else None


def capture_of(vhost: str, exchange: str) -> tuple[str, str] | None:
    """The stream that an exchange has for itself, and its capture; None: it has none."""
    root = exchange_root(vhost, exchange)
    if not root or exchange == ROOT_EXCHANGE:
        return None
    if root == AUDIT_ROOT:
        return AUDIT_STREAM, f"{root}/#"
    suffix = "" if vhost == DEFAULT_VHOST else f".{_stream_part(vhost)}"
    name = f"amqp.x{suffix}.{_stream_part(exchange)}"
    if len(name) > _STREAM_NAME_MAX:
        # Every exchange has an answer: one that had none would be in the way of all others.
        digest = hashlib.sha256(root.encode("utf-8", "surrogateescape")).hexdigest()
        name = f"amqp.x_{digest}"
    return name, f"{root}/#"


def queues_capture(vhost: str) -> str:
    """The capture of the stream of queues, for a virtual host."""
    return f"{_space('q', vhost)}/#"


def _stream_part(name: str) -> str:
    """A name in the characters of a stream's name; two names never give the same."""
    plain = re.compile(r"[A-Za-z0-9-]")
    return "".join(
        char if plain.fullmatch(char) else "".join(f"_{byte:02X}" for byte in char.encode())
        for char in name
    )


def check_new_name(kind: str, vhost: str, name: str) -> None:
    """Refuse the name of a new exchange or queue that the broker has for itself, or too long."""
    if name.startswith(RESERVED):
        raise NotAuthorized(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidRequest(f"the {kind} name is longer than {NAME_BYTES_MAX} bytes")
    size = len(queue_topic(vhost, name).encode())
    if size > TOPIC_BYTES_MAX:
        raise InvalidRequest(
            f"the topic of the {kind} name has {size} bytes, and a topic has {TOPIC_BYTES_MAX} at"
            " most: each of the characters / + # @ counts as five; use fewer of them"
        )
