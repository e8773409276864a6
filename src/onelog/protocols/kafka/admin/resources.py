"""Resources that have settings: a topic, or this node; and who may see or change them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from onelog.broker import Action, Kind
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import topic_named
from onelog.protocols.kafka.topics import KafkaTopic

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


class ResourceType(IntEnum):
    """The kinds of resources, as the protocol numbers them. There are more; these are served."""

    TOPIC = 2
    BROKER = 4


def topic_for(hub: Hub, request: Request, action: Action | None, name: str) -> KafkaTopic:
    """A topic that the client may do this to, or see. Raises KafkaError."""
    return topic_named(hub, request.connection.principal, action, name)


def check_broker(hub: Hub, request: Request, name: str, *, to_see: bool = False) -> None:
    """Check that this node is meant, and that the client is its administrator, or may see it.

    Raises KafkaError.
    """
    if name not in ("", str(hub.node_id)):
        raise KafkaError(
            ErrorCode.invalid_request, f"this is broker {hub.node_id}, not {name[:100]!r}"
        )
    check_cluster(hub, request, to_see=to_see)


def check_cluster(
    hub: Hub, request: Request, part: str = "cluster", *, to_see: bool = False
) -> None:
    """Check that the client may change what the node is, or see it. Raises KafkaError."""
    principal, allows = request.connection.principal, hub.broker.authorizer.allows
    assert principal is not None
    actions = (Action.ADMIN, Action.DESCRIBE) if to_see else (Action.ADMIN,)
    if not any(allows(principal, each, part, Kind.SERVER) for each in actions):
        raise KafkaError(
            ErrorCode.cluster_authorization_failed,
            f"{principal.name} may not {'see' if to_see else 'change'} the server's {part}",
        )


def check_keeper(hub: Hub, request: Request, part: str) -> None:
    """Check that the client may change who may do what, or how much. Raises KafkaError.

    While there is no rule, everybody may publish and read everything. But whoever writes the first
    rule shuts the others out: that is for administrators, as in the management API.
    """
    check_cluster(hub, request, part)
    principal = request.connection.principal
    assert principal is not None
    rules_decide = hub.broker.authorizer.checks_delivery
    if not (rules_decide or hub.authenticator.is_administrator(principal.name)):
        raise KafkaError(
            ErrorCode.cluster_authorization_failed,
            f"while there are no access rules, only administrators change the server's {part}, and"
            f" {principal.name} is none: `onelog user promote NAME` makes one",
        )


def no_resource(kind: int) -> KafkaError:
    """The error for a kind of resource that has no settings here."""
    known = ", ".join(f"{row.value} ({row.name.lower()})" for row in ResourceType)
    return KafkaError(
        ErrorCode.invalid_request, f"resources of type {kind} have no settings; these have: {known}"
    )


def need_stream(topic: KafkaTopic, what: str) -> None:
    """Refuse to change a view: it holds no records."""
    if topic.stream is None:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"{topic.name} is a view of {topic.address!r} and {what}; do it to the topic's stream",
        )


def named_twice(name: str) -> KafkaError:
    """The error for a topic that a request names more than once."""
    return KafkaError(ErrorCode.invalid_request, f"the request names {name[:100]!r} more than once")
