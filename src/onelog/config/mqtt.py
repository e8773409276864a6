"""The keys of MQTT: rules for topics, and the bounds of connections and sessions.

Rules: every number that a peer can choose has a bound, and the defaults are safe for a broker that
faces the internet.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from onelog.base.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX
from onelog.config.mqtt_rules import AutoSubscription, RewriteRule
from onelog.config.section import Section

PACKET_BYTES_MAX: Final = 268_435_455
"""The largest length that a packet can declare (MQTT5 1.5.5)."""


class MqttLimits(Section, frozen=True, kw_only=True):
    """How much a client may ask for, and how much the broker holds for it."""

    packet_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=PACKET_BYTES_MAX,
            description="Bytes of one packet; CONNACK announces it to MQTT 5 clients.",
        ),
    ] = 1024 * 1024
    connect_packet_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=PACKET_BYTES_MAX,
            description="Bytes of one packet before CONNECT is accepted (CONNECT with its will).",
        ),
    ] = 64 * 1024
    topic_bytes: Annotated[
        int, Meta(ge=1, le=TOPIC_BYTES_MAX, description="UTF-8 bytes of a topic or filter.")
    ] = TOPIC_BYTES_MAX
    topic_levels: Annotated[
        int, Meta(ge=1, le=TOPIC_LEVELS_MAX, description="Levels of a topic or filter.")
    ] = TOPIC_LEVELS_MAX
    client_id_bytes: Annotated[
        int, Meta(ge=23, le=65_535, description="UTF-8 bytes of a client identifier.")
    ] = 256
    subscriptions_per_client: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Subscriptions that one session holds.")
    ] = 1000
    inflight: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="Messages of QoS 1 and 2 sent to a client and not yet acknowledged.",
        ),
    ] = 100
    receive_maximum: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="Publishes of QoS 1 and 2 that a client may have unanswered at once.",
        ),
    ] = 1000
    queued: Annotated[
        int,
        Meta(
            ge=0,
            description="Messages that may wait for a client when it connects again; the oldest"
            " beyond it are skipped. 0: all messages in the log.",
        ),
    ] = 0
    outbox_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            description="Bytes that wait in memory for a slow client; beyond it, its session "
            "reads the log later.",
        ),
    ] = 1024 * 1024
    topic_alias_maximum: Annotated[
        int,
        Meta(ge=0, le=65_535, description="Topic aliases per connection and direction; 0: none."),
    ] = 32
    connections: Annotated[int, Meta(ge=1, description="Connections in total.")] = 100_000
    connections_per_ip: Annotated[
        int, Meta(ge=0, description="Connections from one address; 0: as many as in total.")
    ] = 0
    connects_per_second: Annotated[
        int,
        Meta(
            ge=0,
            description="New connections per second over all addresses; more are closed at once."
            " 0: no bound.",
        ),
    ] = 10_000
    connect_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="Time from the accepted socket to the accepted CONNECT, including TLS.",
        ),
    ] = 10_000
    keep_alive_max_s: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Longest keep-alive. An MQTT 5 client that asks for a longer one, or "
            "for none, gets this one. 0: no bound.",
        ),
    ] = 0
    session_expiry_max_s: Annotated[
        int,
        Meta(
            ge=0,
            le=0xFFFF_FFFF,
            description="Longest life of a session without a connection.",
        ),
    ] = 7 * 24 * 3600
    kept_sessions: Annotated[
        int,
        Meta(
            ge=1,
            description="Sessions that outlive their connection, in total; a client that would "
            "begin one more is refused.",
        ),
    ] = 1_000_000
    share_groups: Annotated[
        int,
        Meta(
            ge=1,
            description="Groups of shared subscriptions, in total, with members or without; a "
            "subscription that would begin one more is refused.",
        ),
    ] = 100_000
    will_bytes: Annotated[int, Meta(ge=0, le=65_535, description="Bytes of a will's payload.")] = (
        65_535
    )
    retained_messages: Annotated[
        int, Meta(ge=0, description="Topics that hold a retained message, in total.")
    ] = 1_000_000
    write_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long a client may read no byte although bytes wait for it; then "
            "the broker closes the connection.",
        ),
    ] = 30_000


class MqttShares(Section, frozen=True, kw_only=True):
    """Shared subscriptions: `$share/<group>/<filter>`."""

    strategy: Annotated[
        Literal["round_robin", "least_in_flight", "sticky", "hash_topic", "hash_client"],
        Meta(description="Which member of a group gets the next message."),
    ] = "round_robin"
    groups: Annotated[
        str,
        Meta(
            description="Groups with a strategy of their own, joined by commas, such as "
            "workers=sticky, billing=hash_topic."
        ),
    ] = ""
    idle_expiry_ms: Annotated[
        int,
        Meta(ge=0, description="How long a group without members keeps its backlog; 0: for ever."),
    ] = 7 * 24 * 3600 * 1000


class MqttDelayed(Section, frozen=True, kw_only=True):
    """Delayed publishes: `$delayed/<seconds or @epoch>/<topic>`."""

    delay_max_s: Annotated[int, Meta(ge=0, description="Longest delay.")] = 366 * 24 * 3600
    pending_max: Annotated[int, Meta(ge=0, description="Delayed messages that wait, in total.")] = (
        1_000_000
    )


class MqttSystem(Section, frozen=True, kw_only=True):
    """The `$SYS` topics."""

    interval_ms: Annotated[
        int, Meta(ge=100, description="How often the broker publishes new values.")
    ] = 10_000


class Mqtt(Section, frozen=True, kw_only=True):
    """MQTT, apart from its listeners."""

    rewrite: Annotated[
        tuple[RewriteRule, ...],
        Meta(
            description="Rules that rewrite topics; the first matching rule counts: filter, to,"
            ' pattern (a regular expression), applies ("all", "publish" or '
            '"subscribe").'
        ),
    ] = ()
    auto_subscribe: Annotated[
        tuple[AutoSubscription, ...],
        Meta(
            description="Subscriptions that every client gets: filter (with %c for the client id, "
            "%u for the user), qos, no_local, retain_as_published, retain_handling."
        ),
    ] = ()
    redirect_to: Annotated[
        str,
        Meta(
            description="Another server that clients are redirected to, such as "
            "mqtt.example:1883; empty: this server serves them."
        ),
    ] = ""
    redirect_permanent: Annotated[
        bool, Meta(description="Whether the redirection is permanent (0x9D instead of 0x9C).")
    ] = False
    limits: MqttLimits = MqttLimits()
    shares: MqttShares = MqttShares()
    delayed: MqttDelayed = MqttDelayed()
    system: MqttSystem = MqttSystem()
