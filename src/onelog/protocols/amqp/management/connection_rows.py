"""Connections, channels and consumers as RabbitMQ's management API writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onelog.protocols.amqp.channel import Channel
from onelog.protocols.amqp.connection import Connection
from onelog.protocols.amqp.consumer import ChannelConsumer
from onelog.protocols.amqp.management.rates import Rates
from onelog.protocols.amqp.management.values import jsonable
from onelog.protocols.amqp.states import State

Row = dict[str, Any]
Addresses = Mapping[str, tuple[str, int]]
"""Host and port of each listener."""

_STATES = {
    State.HEADER: "starting",
    State.HANDSHAKE: "starting",
    State.OPEN: "running",
    State.CLOSING: "closing",
    State.CLOSED: "closed",
}


def connection_name(connection: Connection, addresses: Addresses) -> str:
    """A unique name: the addresses of both ends."""
    host, port = addresses.get(connection.peer.listener, ("", 0))
    return f"{connection.peer.address} -> {host}:{port}"


def connection_row(connection: Connection, addresses: Addresses, node: str, rates: Rates) -> Row:
    """A connection."""
    peer = connection.peer
    host, port = addresses.get(peer.listener, ("", 0))
    is_tls = peer.via in ("tls", "wss")
    octets = {"recv_oct": connection.received_bytes, "send_oct": connection.sent_bytes}
    row: Row = {
        "name": connection_name(connection, addresses),
        "node": node,
        "vhost": connection.vhost.name if connection.vhost is not None else "",
        "user": connection.login_name,
        "user_who_performed_action": connection.login_name,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "state": _state(connection),
        "host": host,
        "port": port,
        "peer_host": peer.host,
        "peer_port": peer.port,
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_bytes_max,
        "timeout": connection.heartbeat_s,
        "connected_at": connection.connected_ms,
        "client_properties": jsonable(connection.properties),
        "auth_mechanism": connection.mechanism,
        "ssl": is_tls,
        "ssl_protocol": None,
        "ssl_cipher": None,
        "ssl_hash": None,
        "ssl_key_exchange": None,
        "peer_cert_subject": _names(connection, "subject"),
        "peer_cert_issuer": _names(connection, "issuer"),
        "peer_cert_validity": _validity(connection),
        "send_pend": 0,
        **rates.detailed(connection, "octets", octets),
    }
    given = connection.properties.get("connection_name")
    if isinstance(given, str):
        row["user_provided_name"] = jsonable(given)
    return row


def _state(connection: Connection) -> str:
    return "blocked" if connection.blocked_by else _STATES[connection.state]


def _names(connection: Connection, of: str) -> str | None:
    certificate = connection.peer.certificate
    if certificate is None:
        return None
    return ",".join(f"{key}={value}" for group in certificate.get(of, ()) for key, value in group)


def _validity(connection: Connection) -> str | None:
    certificate = connection.peer.certificate
    if certificate is None:
        return None
    return f"{certificate.get('notBefore', '')} - {certificate.get('notAfter', '')}"


def channel_name(channel: Channel, addresses: Addresses) -> str:
    """A channel's name: its connection's and its number."""
    return f"{connection_name(channel.connection, addresses)} ({channel.number})"


def channel_row(channel: Channel, addresses: Addresses, node: str, rates: Rates) -> Row:
    """A channel."""
    connection, consuming = channel.connection, channel.consuming
    publishes, acks = channel.transaction.waiting if channel.transaction is not None else (0, 0)
    row: Row = {
        "name": channel_name(channel, addresses),
        "number": channel.number,
        "node": node,
        "vhost": channel.vhost.name,
        "user": connection.login_name,
        "user_who_performed_action": connection.login_name,
        "state": "running",
        "confirm": channel.publishing.confirms,
        "transactional": channel.transaction is not None,
        "consumer_count": len(consuming.consumers),
        "prefetch_count": consuming.prefetch,
        "global_prefetch_count": consuming.channel_prefetch,
        "messages_unacknowledged": consuming.unacked,
        "messages_unconfirmed": channel.publishing.unconfirmed,
        "messages_uncommitted": publishes,
        "acks_uncommitted": acks,
        "connection_details": {
            "name": connection_name(connection, addresses),
            "peer_host": connection.peer.host,
            "peer_port": connection.peer.port,
        },
    }
    return row | _stats(channel, rates)


def _stats(channel: Channel, rates: Rates) -> Row:
    counted: dict[str, int] = {}
    if channel.publishing.published:
        counted["publish"] = channel.publishing.published
    if channel.publishing.confirmed:
        counted["confirm"] = channel.publishing.confirmed
    if channel.consuming.delivered:
        counted["deliver_get"] = channel.consuming.delivered
    return {"message_stats": rates.detailed(channel, "stats", counted)} if counted else {}


def consumer_row(consumer: ChannelConsumer, addresses: Addresses, node: str) -> Row:
    """A consumer."""
    channel = consumer.owner.channel
    connection, queue = channel.connection, consumer.queue
    waits = queue.settings.single_active_consumer and next(iter(queue.consumers)) is not consumer
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost.name},
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "active": not waits,
        "activity_status": "waiting" if waits else "up",
        "arguments": jsonable(consumer.arguments),
        "channel_details": {
            "name": channel_name(channel, addresses),
            "number": channel.number,
            "node": node,
            "connection_name": connection_name(connection, addresses),
            "peer_host": connection.peer.host,
            "peer_port": connection.peer.port,
            "user": connection.login_name,
        },
    }
