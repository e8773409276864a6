"""What a Kafka client may do to topics, groups and transactional ids, asked of the one authorizer.

Rules:
- READ is *deliver*, WRITE *publish*. ALTER and ALTER_CONFIGS are *configure*. To see a topic
  (DESCRIBE), a client needs any right on it, as in Kafka.
- A topic is read as a whole: the right to a part of a view's filter is not enough (ADR 22).
- A group is the cursor `group/<id>`, a transactional id `transaction/<id>`. Both need *consume*;
  deleting a group or its offsets needs *delete*.
- A client that may not see a topic does not learn whether the topic exists, neither by its name nor
  by its id.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.broker import Action, Kind, Principal
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.topics import KafkaTopic, check_name

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub
    from onelog.protocols.kafka.request import Request

_SEEING: Final = (
    Action.DELIVER,
    Action.PUBLISH,
    Action.CONFIGURE,
    Action.DELETE,
    Action.CREATE,
    Action.DESCRIBE,
)
"""Each of these shows a topic to who may do it."""

_TOPIC_BITS: Final = (
    (Action.DELIVER, 1 << 3),
    (Action.PUBLISH, 1 << 4),
    (Action.CREATE, 1 << 5),
    (Action.DELETE, 1 << 6),
    (Action.CONFIGURE, 1 << 7 | 1 << 11),
)
"""The operations that a right is, as Kafka numbers them: read, write, create, delete, alter and
alter configs."""
_SEEN_BITS: Final = 1 << 8 | 1 << 10
_SEEING_CURSOR: Final = (Action.CONSUME, Action.DELETE, Action.DESCRIBE)
"""Describe, and describe configs."""
_GROUP_BITS: Final = ((Action.CONSUME, 1 << 3), (Action.DELETE, 1 << 6))
_CLUSTER_BITS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""What an administrator may do to a cluster: nobody writes or reads one."""


def authorize(hub: Hub, principal: Principal | None, action: Action | None, address: str) -> None:
    """Refuse what the principal may not do to a topic; None: see it. Raises KafkaError."""
    assert principal is not None, "nothing is asked before the login"
    allows = hub.broker.authorizer.allows
    if action is None:
        allowed = any(allows(principal, each, address) for each in _SEEING)
    else:
        allowed = allows(principal, action, address)
    if not allowed:
        raise KafkaError(
            ErrorCode.topic_authorization_failed,
            f"{principal.name} may not {action or 'see'} the topic {address}",
        )


def topic_named(
    hub: Hub, principal: Principal | None, action: Action | None, name: str
) -> KafkaTopic:
    """The topic of a name, if the principal may do this to it. Raises OnelogError."""
    try:
        topic = hub.topics.get(name)
    except OnelogError:
        authorize(hub, principal, action, check_name(name))
        raise
    # Fetches come this way: mostly there is nothing to explain.
    allows = hub.broker.authorizer.allows
    if action is None or principal is None or not allows(principal, action, topic.address):
        authorize(hub, principal, action, topic.address)
    return topic


def topic_of_id(
    hub: Hub, principal: Principal | None, action: Action | None, wanted: uuid.UUID
) -> KafkaTopic:
    """The topic of an id, if the principal may do this to it; None: see it. Raises KafkaError."""
    topic = hub.topics.by_id(wanted)
    allows = hub.broker.authorizer.allows
    if topic and action and principal and allows(principal, action, topic.address):
        return topic  # a fetch, mostly
    if topic is None or not may_see(hub, principal, topic):
        raise KafkaError(ErrorCode.unknown_topic_id, f"no topic has the id {wanted}")
    if action is not None:
        authorize(hub, principal, action, topic.address)
    return topic


def may_see(hub: Hub, principal: Principal | None, topic: KafkaTopic) -> bool:
    """Whether the principal may know of a topic."""
    try:
        authorize(hub, principal, None, topic.address)
    except KafkaError:
        return False
    return True


def may_own(hub: Hub, request: Request, cursor: str, action: Action = Action.CONSUME) -> bool:
    """Whether a client may do this to a group or transactional id."""
    principal = request.connection.principal
    assert principal is not None, "nothing is asked before the login"
    return hub.broker.authorizer.allows(principal, action, cursor, Kind.CURSOR)


def may_see_cursor(hub: Hub, request: Request, cursor: str) -> bool:
    """Whether a client may know of a group or transactional id."""
    return any(may_own(hub, request, cursor, each) for each in _SEEING_CURSOR)


def group_cursor(group: str) -> str:
    """What rules call a group."""
    return f"group/{group}"


def transaction_cursor(transactional_id: str) -> str:
    """What rules call a transactional id."""
    return f"transaction/{transactional_id}"


def check_group(
    hub: Hub, request: Request, group: str, action: Action | None = Action.CONSUME
) -> None:
    """Raise KafkaError unless the client may do this to a group; None: see it."""
    cursor = group_cursor(group)
    if not (
        may_see_cursor(hub, request, cursor)
        if action is None
        else may_own(hub, request, cursor, action)
    ):
        raise KafkaError(
            ErrorCode.group_authorization_failed,
            f"{_name_of(request)} may not use the group {group[:100]!r}",
        )


def check_transaction(
    hub: Hub, request: Request, transactional_id: str, *, to_see: bool = False
) -> None:
    """Raise KafkaError unless the client may own a transactional id, or see it."""
    ask = may_see_cursor if to_see else may_own
    if not ask(hub, request, transaction_cursor(transactional_id)):
        raise KafkaError(
            ErrorCode.transactional_id_authorization_failed,
            f"{_name_of(request)} may not use the transactional id {transactional_id[:100]!r}",
        )


def _name_of(request: Request) -> str:
    principal = request.connection.principal
    return "nobody" if principal is None else principal.name


# -- the rights of a client, as Kafka reports them


def topic_operations(hub: Hub, principal: Principal | None, topic: KafkaTopic) -> int:
    """What the principal may do to a topic that it sees, as Kafka writes it."""
    assert principal is not None
    allows = hub.broker.authorizer.allows
    bits = sum(bit for action, bit in _TOPIC_BITS if allows(principal, action, topic.address))
    seen = bits or allows(principal, Action.DESCRIBE, topic.address)
    return bits | _SEEN_BITS if seen else 0


def group_operations(hub: Hub, request: Request, group: str) -> int:
    """What a client may do to a group, as Kafka writes it."""
    cursor = group_cursor(group)
    bits = sum(bit for action, bit in _GROUP_BITS if may_own(hub, request, cursor, action))
    return bits | 1 << 8 if bits or may_own(hub, request, cursor, Action.DESCRIBE) else 0


def cluster_operations(hub: Hub, request: Request) -> int:
    """What a client may do to the cluster, as Kafka writes it."""
    principal = request.connection.principal
    assert principal is not None
    allowed = hub.broker.authorizer.allows(principal, Action.ADMIN, "cluster", Kind.SERVER)
    return _CLUSTER_BITS if allowed else 0
