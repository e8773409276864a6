"""The keys of AMQP 0-9-1: bounds of connections, channels and queues.

Rules: every number that a peer can choose has a bound.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from onelog.config.section import ConnectionLimits, Section

_MIB = 1024 * 1024


class AmqpLimits(ConnectionLimits, frozen=True, kw_only=True):
    """How much a client may ask for, and how much the broker holds for it."""

    frame_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=16 * _MIB,
            description="Bytes of one frame, as the broker offers it to clients.",
        ),
    ] = 128 * 1024
    channels: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="Channels of one connection, as the broker offers it to clients.",
        ),
    ] = 2047
    heartbeat_s: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Seconds between heartbeats, as the broker offers it to clients.",
        ),
    ] = 60
    message_bytes: Annotated[
        int, Meta(ge=1024, le=60 * _MIB, description="Bytes of one message's body.")
    ] = 16 * _MIB
    waiting_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            description="Bytes of one connection's channels that wait until an earlier method "
            "is done; beyond it the broker does not read the connection.",
        ),
    ] = 4 * _MIB
    unwritten_bytes: Annotated[
        int,
        Meta(
            ge=65_536,
            description="Bytes of one connection's publishes that wait to be durable; beyond it"
            " the broker does not read the connection until half of them are "
            "durable.",
        ),
    ] = 32 * _MIB
    queues: Annotated[int, Meta(ge=1, description="Queues of one virtual host.")] = 100_000
    ack_timeout_ms: Annotated[
        int,
        Meta(
            ge=1000,
            description="Time that a consumer has to acknowledge a message; then the broker "
            "closes its channel.",
        ),
    ] = 30 * 60 * 1000
    unacked: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages that one channel has not acknowledged; beyond it, the channel"
            " gets no more.",
        ),
    ] = 1_000_000
    login_timeout_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Time for TLS, the login and connection.open.")
    ] = 10_000


class Amqp(Section, frozen=True, kw_only=True):
    """AMQP 0-9-1."""

    vhosts: Annotated[
        str,
        Meta(description="Virtual hosts besides /, joined by commas."),
    ] = ""
    limits: AmqpLimits = AmqpLimits()
