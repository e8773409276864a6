"""The keys of listeners: addresses, TLS, and what stands before the protocol.

Rules: a listener binds loopback by default. A listener with TLS is off until it has a certificate;
one that web pages can reach is off until a user enables it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from onelog.base.networks import is_loopback
from onelog.config.ports import DEFAULT_PORTS
from onelog.config.problems import Problem
from onelog.config.section import Section

Enabled = Annotated[bool, Meta(description="Whether the listener starts.")]
Host = Annotated[
    str, Meta(min_length=1, description="Address to bind; 0.0.0.0 or :: binds all addresses.")
]
Port = Annotated[int, Meta(ge=0, le=65535, description="TCP port; 0 takes any free port.")]


class ServerTls(Section, frozen=True, kw_only=True):
    """The TLS of the listener above. Changed files take effect without a restart."""

    cert_file: Annotated[
        str,
        Meta(
            description="PEM file: the certificate, and the intermediate certificates up to the"
            " root."
        ),
    ] = ""
    key_file: Annotated[
        str, Meta(description="PEM file: the key of the certificate, without a password.")
    ] = ""
    version_min: Annotated[
        Literal["1.2", "1.3"], Meta(description="Lowest TLS version that is accepted.")
    ] = "1.2"


class ListenerTls(ServerTls, frozen=True, kw_only=True):
    """The TLS of the listener above. Changed files take effect without a restart."""

    client_ca_file: Annotated[
        str, Meta(description="PEM file: the authorities that may sign client certificates.")
    ] = ""
    client_cert: Annotated[
        Literal["none", "optional", "required"],
        Meta(description="Whether clients show a certificate; its common name is the user."),
    ] = "none"


class HttpListener(Section, frozen=True, kw_only=True):
    """An HTTP listener."""

    enabled: Enabled = True
    host: Host = "127.0.0.1"
    port: Port = 0
    connections_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Requests answered at once; more get a 503.")
    ] = 100


class AdminListener(HttpListener, frozen=True, kw_only=True):
    """The HTTP listener for health, metrics and the admin API. Off loopback it needs TLS."""

    port: Port = DEFAULT_PORTS["admin"]
    insecure: Annotated[
        bool,
        Meta(
            description="Whether other machines may connect without TLS: passwords and tokens"
            " cross the network in plain text, unless a proxy in front encrypts."
        ),
    ] = False
    tls: ServerTls = ServerTls()


class AmqpManagementListener(HttpListener, frozen=True, kw_only=True):
    """RabbitMQ's management HTTP API, for its command line and for exporters. Loopback only."""

    enabled: Enabled = False
    host: Annotated[
        str, Meta(min_length=1, description="Address to bind. Only loopback is allowed.")
    ] = "127.0.0.1"
    port: Port = DEFAULT_PORTS["amqp_management"]
    connections_max: Annotated[
        int, Meta(ge=1, le=1000, description="Requests answered at once; more get a 503.")
    ] = 20


class StreamListener(Section, frozen=True, kw_only=True):
    """A listener of a messaging protocol."""

    enabled: Enabled = True
    host: Host = "127.0.0.1"
    port: Port = 0
    proxy_protocol: Annotated[
        bool,
        Meta(description="Whether every connection begins with a PROXY protocol v2 header."),
    ] = False
    proxy_trusted: Annotated[
        str,
        Meta(
            description="Networks of the proxies, joined by commas, such as 10.0.0.0/8; empty: "
            "every peer that can connect is trusted as a proxy."
        ),
    ] = ""
    advertised: Annotated[
        str,
        Meta(
            description="host:port that the broker gives to clients as its address. Empty: Kafka "
            "gives the address that the client connected to; nodes of a cluster that send MQTT and "
            "AMQP clients to this one name what is bound, and nothing if that is every address."
        ),
    ] = ""


class MqttListener(StreamListener, frozen=True, kw_only=True):
    """MQTT over TCP."""

    port: Port = DEFAULT_PORTS["mqtt"]


class MqttTlsListener(StreamListener, frozen=True, kw_only=True):
    """MQTT over TLS."""

    enabled: Enabled = False
    port: Port = DEFAULT_PORTS["mqtt_tls"]
    tls: ListenerTls = ListenerTls()


class MqttWebSocketListener(StreamListener, frozen=True, kw_only=True):
    """MQTT over WebSocket. Off by default: web pages can reach it, and its port is Kafka
    Connect's."""

    enabled: Enabled = False
    port: Port = DEFAULT_PORTS["mqtt_ws"]
    path: Annotated[str, Meta(description="Request path that is served; empty: every path.")] = (
        "/mqtt"
    )
    origins: Annotated[
        str,
        Meta(
            description="Origins of web pages that may connect, joined by commas, such as "
            "https://example.org; *: all; empty: only pages that were loaded from "
            "the listener's own address. Programs other than browsers are not "
            "checked."
        ),
    ] = ""


class MqttSecureWebSocketListener(MqttWebSocketListener, frozen=True, kw_only=True):
    """MQTT over WebSocket over TLS."""

    port: Port = DEFAULT_PORTS["mqtt_wss"]
    tls: ListenerTls = ListenerTls()


class KafkaListener(StreamListener, frozen=True, kw_only=True):
    """The Kafka protocol over TCP."""

    port: Port = DEFAULT_PORTS["kafka"]


class KafkaTlsListener(KafkaListener, frozen=True, kw_only=True):
    """The Kafka protocol over TLS."""

    enabled: Enabled = False
    port: Port = DEFAULT_PORTS["kafka_tls"]
    tls: ListenerTls = ListenerTls()


class AmqpListener(StreamListener, frozen=True, kw_only=True):
    """AMQP 0-9-1 over TCP."""

    port: Port = DEFAULT_PORTS["amqp"]


class AmqpTlsListener(StreamListener, frozen=True, kw_only=True):
    """AMQP 0-9-1 over TLS."""

    enabled: Enabled = False
    port: Port = DEFAULT_PORTS["amqp_tls"]
    tls: ListenerTls = ListenerTls()


class InnerTls(Section, frozen=True, kw_only=True):
    """The certificates of this node for other nodes. Changed files take effect without a
    restart."""

    cert_file: Annotated[
        str, Meta(description="PEM file: the certificate; its common name is node-ID.")
    ] = ""
    key_file: Annotated[
        str, Meta(description="PEM file: the key of the certificate, without a password.")
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            description="PEM file: the authority that signs nodes of this cluster, and only them."
        ),
    ] = ""


class InnerListener(Section, frozen=True, kw_only=True):
    """Where the other nodes of a cluster connect. It is served with `cluster.mode` = etcd. Another
    address than loopback needs `tls` or `secret_file`."""

    host: Host = "127.0.0.1"
    port: Port = 0
    socket: Annotated[
        str,
        Meta(
            description="Path of a Unix socket instead of an address, for nodes on one machine;"
            " empty: none."
        ),
    ] = ""
    advertised: Annotated[
        str,
        Meta(
            description="host:port or unix:PATH that other nodes connect to; empty: what is bound."
        ),
    ] = ""
    secret_file: Annotated[
        str,
        Meta(
            description="File with a secret that all nodes share, at least 16 bytes; empty: none."
        ),
    ] = ""
    tls: InnerTls = InnerTls()


class Listeners(Section, frozen=True, kw_only=True):
    """All listeners."""

    admin: AdminListener = AdminListener()
    inner: InnerListener = InnerListener()
    mqtt: MqttListener = MqttListener()
    mqtt_tls: MqttTlsListener = MqttTlsListener()
    mqtt_ws: MqttWebSocketListener = MqttWebSocketListener()
    mqtt_wss: MqttSecureWebSocketListener = MqttSecureWebSocketListener()
    kafka: KafkaListener = KafkaListener()
    kafka_tls: KafkaTlsListener = KafkaTlsListener()
    amqp: AmqpListener = AmqpListener()
    amqp_tls: AmqpTlsListener = AmqpTlsListener()
    amqp_management: AmqpManagementListener = AmqpManagementListener()


def inner_problems(inner: InnerListener) -> Iterator[Problem]:
    """Errors in these keys that concern several of them."""
    tls, path = inner.tls, "listeners.inner"
    given = [name for name in ("cert_file", "key_file", "ca_file") if getattr(tls, name)]
    if given and len(given) < 3:
        missing = next(name for name in ("cert_file", "key_file", "ca_file") if name not in given)
        yield Problem(
            f"{path}.tls.{missing}",
            f"{path}.tls.{missing} is missing: nodes need a certificate, its key and the authority",
        )
    is_open = not given and not inner.secret_file
    if is_open and not inner.socket and not is_loopback(inner.host):
        yield Problem(
            f"{path}.host",
            f"{path}.host = {inner.host!r} is not of this machine: links between machines need"
            f" {path}.tls (see `onelog cluster certs`) or {path}.secret_file",
        )


def reached_urls(listeners: Listeners, bound: Mapping[str, str]) -> dict[str, str]:
    """Where clients reach the bound listeners: at the advertised address, if a listener has one."""
    found = {}
    for name, url in bound.items():
        scheme, _, address = url.partition("://")
        advertised = getattr(getattr(listeners, name, None), "advertised", "")
        found[name] = f"{scheme}://{advertised or address}"
    return found
