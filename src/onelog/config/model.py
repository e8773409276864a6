"""Every configuration key: its name, type, bounds, default and one sentence on what it does.

Rules: a key that nothing reads does not exist. The structs here are the only list of keys: the
loader, the environment names, `onelog config init` and docs/reference/config.md come from them.
Numbers end in their unit; a key that ends in `_bytes` or `_ms` also takes a string ("10GB", "7d").
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from onelog.base.limits import BATCH_BYTES_MAX, PARTITIONS_PER_STREAM_MAX
from onelog.config.amqp import Amqp
from onelog.config.kafka import Kafka
from onelog.config.listeners import Listeners, ListenerTls
from onelog.config.mqtt import Mqtt
from onelog.config.problems import Problem
from onelog.config.section import Section

Engine = Literal["segment", "memory", "kv"]
Durability = Literal["memory", "os", "fsync"]

_DAY_MS = 24 * 3600 * 1000
_MIB = 1024 * 1024


class Node(Section, frozen=True, kw_only=True):
    """Who this node is."""

    id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Number of this node.")] = 0
    name: Annotated[
        str, Meta(min_length=1, max_length=100, description="Name of this node, for people.")
    ] = "onelog"


class Tokens(Section, frozen=True, kw_only=True):
    """Logins with signed tokens (JWT), as SASL OAUTHBEARER brings them."""

    jwks_file: Annotated[
        str, Meta(description="File with the issuer's public keys (JWKS); empty: no tokens.")
    ] = ""
    issuer: Annotated[str, Meta(description="Issuer that a token must name; empty: any.")] = ""
    audience: Annotated[str, Meta(description="Audience that a token must name; empty: any.")] = ""
    name_claim: Annotated[
        str, Meta(min_length=1, description="Claim that holds the user's name.")
    ] = "sub"


class Security(Section, frozen=True, kw_only=True):
    """Who may come in."""

    anonymous: Annotated[
        Literal["loopback", "always", "never"],
        Meta(
            description="Who may come without a name: peers of this machine on listeners that "
            "bind loopback, everybody, or nobody."
        ),
    ] = "loopback"
    certificate_users_only: Annotated[
        bool,
        Meta(description="Whether the name in a client certificate must be a user."),
    ] = False
    tokens: Tokens = Tokens()


class StreamDefaults(Section, frozen=True, kw_only=True):
    """What a stream gets when its creation does not say otherwise."""

    engine: Annotated[Engine, Meta(description="Storage engine.")] = "segment"
    durability: Annotated[
        Durability,
        Meta(
            description="When a publish is answered: in memory, handed to the operating system "
            "(survives kill -9), or on disk (survives power loss)."
        ),
    ] = "fsync"
    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_PER_STREAM_MAX, description="Number of partitions.")
    ] = 1
    retention_age_ms: Annotated[
        int, Meta(ge=-1, description='Records older than this may go; -1 or "unlimited": never.')
    ] = 7 * _DAY_MS
    retention_bytes: Annotated[
        int,
        Meta(ge=-1, description='Bytes kept per stream; -1 or "unlimited": no bound.'),
    ] = -1
    message_bytes_max: Annotated[
        int, Meta(ge=128, le=BATCH_BYTES_MAX, description="Largest message that the stream takes.")
    ] = 16 * _MIB
    segment_bytes: Annotated[
        int, Meta(ge=4096, le=1024 * _MIB, description="Size at which a segment is sealed.")
    ] = 256 * _MIB
    segment_age_ms: Annotated[
        int, Meta(ge=1000, description="Age at which a segment is sealed.")
    ] = 7 * _DAY_MS


class Defaults(Section, frozen=True, kw_only=True):
    """Defaults of things that are created later."""

    stream: StreamDefaults = StreamDefaults()


class MainStream(Section, frozen=True, kw_only=True):
    """The built-in stream `main`, home of every topic that no other stream captures.

    Read when the data directory is made; later the stream itself is changed.
    """

    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_PER_STREAM_MAX, description="Number of partitions.")
    ] = 8
    retention_age_ms: Annotated[
        int, Meta(ge=-1, description='Records older than this may go; -1 or "unlimited": never.')
    ] = 7 * _DAY_MS
    retention_bytes: Annotated[
        int, Meta(ge=-1, description='Bytes kept; -1 or "unlimited": no bound.')
    ] = 10 * 1000**3


class Log(Section, frozen=True, kw_only=True):
    """The log that people read: what the server says on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least level written.")
    ] = "info"
    format: Annotated[
        Literal["auto", "console", "json"],
        Meta(description='"auto" is console on a terminal and JSON elsewhere.'),
    ] = "auto"


class Limits(Section, frozen=True, kw_only=True):
    """Bounds of the process."""

    open_files_max: Annotated[
        int,
        Meta(
            ge=256,
            le=2**30,
            description="Open files that the process asks the system for; the hard limit caps it.",
        ),
    ] = 1_048_576
    page_cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Newest bytes of the log on disk that stay in the system's page cache; 0: "
            "the system decides. A bound helps in containers and on virtual machines whose host "
            "takes free memory back; what lies behind it is read from the disk.",
        ),
    ] = 0


class Cursors(Section, frozen=True, kw_only=True):
    """Consumers' positions."""

    checkpoint_interval_ms: Annotated[
        int,
        Meta(ge=10, le=60_000, description="How often changed cursor state is written to the log."),
    ] = 1000


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    data_dir: Annotated[
        str,
        Meta(min_length=1, description="Directory of all data, relative to where serve starts."),
    ] = "./data"
    node: Node = Node()
    listeners: Listeners = Listeners()
    security: Security = Security()
    mqtt: Mqtt = Mqtt()
    kafka: Kafka = Kafka()
    amqp: Amqp = Amqp()
    defaults: Defaults = Defaults()
    main: MainStream = MainStream()
    cursors: Cursors = Cursors()
    limits: Limits = Limits()
    log: Log = Log()


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or an address of this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def whole_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with it that no single key can say about itself."""
    listeners = config.listeners
    for name in ("admin", "amqp_management"):
        admin = getattr(listeners, name)
        if admin.enabled and not is_loopback(admin.host):
            path = f"listeners.{name}.host"
            yield Problem(
                path,
                f"{path} = {admin.host!r} would open the API to other machines, "
                "and it has no credentials yet: use 127.0.0.1, ::1 or localhost",
            )
    if listeners.amqp_management.enabled and not (
        listeners.amqp.enabled or listeners.amqp_tls.enabled
    ):
        yield Problem(
            "listeners.amqp_management.enabled",
            "listeners.amqp_management is on, and AMQP is not: turn listeners.amqp on, too",
        )
    for name in ("mqtt_tls", "mqtt_wss", "kafka_tls", "amqp_tls"):
        listener = getattr(listeners, name)
        tls: ListenerTls = listener.tls
        for key in ("cert_file", "key_file"):
            if listener.enabled and not getattr(tls, key):
                path = f"listeners.{name}.tls.{key}"
                yield Problem(
                    path, f"{path} is missing: the listener needs a certificate and its key"
                )
    for name in ("mqtt_ws", "mqtt_wss"):
        text = getattr(listeners, name).path
        if text and not text.startswith("/"):
            path = f"listeners.{name}.path"
            yield Problem(path, f"{path} = {text!r} has to begin with a /")
