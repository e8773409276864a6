"""Resources that have settings: a topic, or this node; and who may see or change them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from onelog.broker import Action, Kind
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.topics import KafkaTopic

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


class ResourceType(IntEnum):
    """The kinds of resources, as the protocol numbers them. There are more; these are served."""

    TOPIC = 2
    BROKER = 4


def topic_for(hub: Hub, request: Request, action: Action, name: str) -> KafkaTopic:
    """A topic that the client may do this to. Raises KafkaError."""
    topic = hub.topics.get(name)
    hub.authorize(request.connection.principal, action, topic)
    return topic


def check_broker(hub: Hub, request: Request, name: str) -> None:
    """Check that this node is meant, and that the client is its administrator. Raises
    KafkaError."""
    if name not in ("", str(hub.node_id)):
        raise KafkaError(
            ErrorCode.invalid_request, f"this is broker {hub.node_id}, not {name[:100]!r}"
        )
    check_cluster(hub, request)


def check_cluster(hub: Hub, request: Request, part: str = "cluster") -> None:
    """Check that the client may see and change the node's state. Raises KafkaError."""
    principal = request.connection.principal
    assert principal is not None
    if not hub.broker.authorizer.allows(principal, Action.ADMIN, part, Kind.SERVER):
        raise KafkaError(
            ErrorCode.cluster_authorization_failed,
            f"{principal.name} may not see or change the server's {part}",
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
