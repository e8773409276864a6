"""Every configuration key: its name, type, bounds, default and one sentence on what it does.

Rules: a key that nothing reads does not exist. The structs here are the only list of keys: the
loader, the environment names, `onelog config init` and docs/reference/config.md come from them.
Numbers end in their unit; a key that ends in `_bytes` or `_ms` also takes a string ("10GB", "7d").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from onelog.base.errors import ConfigError
from onelog.base.networks import is_loopback, parse_networks
from onelog.config.amqp import Amqp
from onelog.config.cluster import Cluster, Role, cluster_problems
from onelog.config.kafka import Kafka
from onelog.config.lake import Lake, lake_problems
from onelog.config.listeners import AdminListener, Listeners, ListenerTls, inner_problems
from onelog.config.mqtt import Mqtt
from onelog.config.object_engine import MetadataKeys, ObjectKeys, object_problems
from onelog.config.problems import Problem
from onelog.config.section import Section
from onelog.config.store import Store, store_problems
from onelog.config.streams import Defaults, MainStream, stream_problems

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]

_DAY_MS = 24 * 3600 * 1000
_MIB = 1024 * 1024


class Node(Section, frozen=True, kw_only=True):
    """The identity of this node."""

    id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Number of this node.")] = 0
    name: Annotated[
        str, Meta(min_length=1, max_length=100, description="Name of this node, shown to people.")
    ] = "onelog"
    rack: Annotated[
        str,
        Meta(
            max_length=100,
            description="Where this node stands: what fails together has the same rack. The node"
            " registers with it.",
        ),
    ] = ""
    roles: Annotated[
        tuple[Role, ...],
        Meta(
            min_length=1,
            description="What this node does in a cluster: run a member of etcd (meta, with"
            " `cluster.etcd.spawn`), keep data (engine), serve clients (broker). A node with meta"
            " alone only runs its member; engine and broker go together.",
        ),
    ] = ("meta", "engine", "broker")
    replaced: Annotated[
        bool,
        Meta(
            description="Whether an empty `data_dir` takes the place of the one that this node had"
            " in its cluster. Everything is copied from the other nodes; what only this node had is"
            " lost. Set it for one start."
        ),
    ] = False


class Tokens(Section, frozen=True, kw_only=True):
    """Logins with signed tokens (JWT), as in SASL OAUTHBEARER."""

    discovery: Annotated[
        str,
        Meta(
            description="URL or file of an OpenID Connect discovery document, which names the"
            " issuer and the URL of its keys."
        ),
    ] = ""
    jwks_file: Annotated[
        str, Meta(description="Instead of `discovery`: file with the issuer's public keys (JWKS).")
    ] = ""
    jwks_url: Annotated[
        str, Meta(description="Instead of `discovery`: URL of the issuer's public keys (JWKS).")
    ] = ""
    ca_file: Annotated[
        str,
        Meta(
            description="PEM file: the authorities that sign the certificate of these URLs; empty:"
            " those of the system."
        ),
    ] = ""
    refresh_interval_ms: Annotated[
        int, Meta(ge=1000, le=7 * _DAY_MS, description="How often keys are fetched from a URL.")
    ] = 3_600_000
    issuer: Annotated[
        str,
        Meta(description="Issuer that a token must name; empty: that of the discovery, or any."),
    ] = ""
    audience: Annotated[str, Meta(description="Audience that a token must name; empty: any.")] = ""
    algorithms: Annotated[
        tuple[Algorithm, ...], Meta(min_length=1, description="Signature algorithms accepted.")
    ] = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
    leeway_ms: Annotated[
        int, Meta(ge=0, le=300_000, description="How far the issuer's clock may be off.")
    ] = 10_000
    name_claim: Annotated[
        str, Meta(min_length=1, description="Claim that holds the user's name.")
    ] = "sub"
    claims: Annotated[
        tuple[str, ...],
        Meta(description="Claims that access rules may name, as `claim:NAME=VALUE`."),
    ] = ()
    groups_claim: Annotated[
        str,
        Meta(
            description="Claim whose values are groups for access rules, such as groups or"
            " realm_access.roles; empty: none."
        ),
    ] = ""
    roles_claim: Annotated[
        str,
        Meta(description="Claim whose values give roles of the admin API; empty: none does."),
    ] = ""
    viewers: Annotated[
        tuple[str, ...], Meta(description="Values of `roles_claim` that make a viewer.")
    ] = ()
    operators: Annotated[
        tuple[str, ...], Meta(description="Values of `roles_claim` that make an operator.")
    ] = ()
    admins: Annotated[
        tuple[str, ...], Meta(description="Values of `roles_claim` that make an admin.")
    ] = ()
    client_id: Annotated[
        str,
        Meta(
            description="Id of the web console at the issuer; set it to let people log in there"
            " (authorization code with PKCE); needs `discovery`."
        ),
    ] = ""
    client_secret_file: Annotated[
        str, Meta(description="File with the secret of `client_id`; empty: a public client.")
    ] = ""
    console_url: Annotated[
        str,
        Meta(
            description="URL of the admin listener as browsers see it; `/oidc/callback` below it is"
            " the redirect URI to register."
        ),
    ] = ""


class LoginBans(Section, frozen=True, kw_only=True):
    """What happens to addresses whose logins fail."""

    failures: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Failed logins from one address, within the window, after which the"
            " address is banned; 0: no address is banned, and no answer is delayed. An IPv6 address"
            " counts by its /64.",
        ),
    ] = 10
    window_ms: Annotated[
        int, Meta(ge=1000, le=_DAY_MS, description="Time within which failed logins are counted.")
    ] = 60_000
    ban_ms: Annotated[
        int, Meta(ge=1000, le=365 * _DAY_MS, description="How long an address is banned.")
    ] = 600_000
    delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=60_000,
            description="Delay of the answer to the first failed login of an address; each further"
            " failed login doubles it.",
        ),
    ] = 100
    delay_max_ms: Annotated[int, Meta(ge=0, le=60_000, description="The longest delay.")] = 4_000
    exempt: Annotated[
        str,
        Meta(
            description="Networks whose logins are not counted, joined by commas. Name your load"
            " balancer here, unless it reports the clients' addresses by the PROXY protocol."
        ),
    ] = "127.0.0.0/8, ::1/128"


class QuotaPacing(Section, frozen=True, kw_only=True):
    """How quotas are applied. The quotas themselves are set while the broker runs."""

    burst_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=3_600_000,
            description="A client that was quiet may do at once what its rate gives it in this"
            " time.",
        ),
    ] = 1000
    patience_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=_DAY_MS,
            description="How long an MQTT client that is over its quota is held back before the"
            " broker disconnects it (0x97). Kafka and AMQP clients are held back for as long as it"
            " takes.",
        ),
    ] = 30_000


class Security(Section, frozen=True, kw_only=True):
    """Which clients may connect."""

    anonymous: Annotated[
        Literal["loopback", "always", "never"],
        Meta(
            description="Which clients may connect without a user name: clients on this machine"
            " by listeners that bind loopback (loopback), all (always), or none "
            "(never)."
        ),
    ] = "loopback"
    certificate_users_only: Annotated[
        bool,
        Meta(description="Whether the name in a client certificate must be the name of a user."),
    ] = False
    tokens: Tokens = Tokens()
    bans: LoginBans = LoginBans()
    quotas: QuotaPacing = QuotaPacing()


class Log(Section, frozen=True, kw_only=True):
    """The server's own log on stderr, for people."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest level that is written."),
    ] = "info"
    format: Annotated[
        Literal["auto", "console", "json"],
        Meta(description='"auto" is console on a terminal and JSON elsewhere.'),
    ] = "auto"


class Audit(Section, frozen=True, kw_only=True):
    """The audit trail `~audit`: administrative changes and failed logins."""

    retention_age_ms: Annotated[
        int,
        Meta(
            ge=-1,
            description='Retention removes records older than this; -1 or "unlimited": never.',
        ),
    ] = 90 * _DAY_MS
    retention_bytes: Annotated[
        int, Meta(ge=-1, description='Bytes that the trail keeps; -1 or "unlimited": no bound.')
    ] = 1000**3


class Tracing(Section, frozen=True, kw_only=True):
    """Spans for OpenTelemetry, of messages that carry a trace (`traceparent`)."""

    endpoint: Annotated[
        str,
        Meta(
            description="URL of a collector that takes OTLP over HTTP, such as "
            "http://127.0.0.1:4318/v1/traces; empty: no spans. Needs the extra `onelog[otel]`."
        ),
    ] = ""


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
            description="How many of the newest bytes of the log stay in the system's page "
            "cache; 0: the system decides. A bound helps in containers, and on "
            "virtual machines whose host takes free memory back. Older bytes are "
            "read from the disk.",
        ),
    ] = 0


class Net(Section, frozen=True, kw_only=True):
    """How connections are served."""

    backend: Annotated[
        Literal["auto", "loop", "epoll", "io_uring"],
        Meta(
            description="What reads and writes plain TCP connections: the broker's own set of"
            " sockets (epoll), the event loop (loop), or the better one that works here"
            " (auto). io_uring is epoll whose sends go by a"
            " ring; where the system refuses rings, as most containers do, it is epoll. TLS,"
            " WebSocket, PROXY headers and HTTP always have the event loop."
        ),
    ] = "auto"


class Cursors(Section, frozen=True, kw_only=True):
    """The state of consumers."""

    checkpoint_interval_ms: Annotated[
        int,
        Meta(ge=10, le=60_000, description="How often changed cursor state is written to the log."),
    ] = 1000


class Internal(Section, frozen=True, kw_only=True):
    """The streams that the broker keeps its own state in."""

    partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Partitions of each internal stream that keeps state by the name of a "
            "client, group or cursor. It is fixed when the data directory is made; the broker "
            "does not start with another number.",
        ),
    ] = 1


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    data_dir: Annotated[
        str,
        Meta(
            min_length=1,
            description="Directory of all data, relative to the working directory of `onelog "
            "serve`.",
        ),
    ] = "./data"
    node: Node = Node()
    cluster: Cluster = Cluster()
    listeners: Listeners = Listeners()
    net: Net = Net()
    security: Security = Security()
    mqtt: Mqtt = Mqtt()
    kafka: Kafka = Kafka()
    amqp: Amqp = Amqp()
    defaults: Defaults = Defaults()
    main: MainStream = MainStream()
    cursors: Cursors = Cursors()
    internal: Internal = Internal()
    store: Store = Store()
    lake: Lake = Lake()
    object: ObjectKeys = ObjectKeys()
    metadata: MetadataKeys = MetadataKeys()
    limits: Limits = Limits()
    log: Log = Log()
    audit: Audit = Audit()
    tracing: Tracing = Tracing()


def _admin_problems(admin: AdminListener) -> Iterator[Problem]:
    has_tls = bool(admin.tls.cert_file or admin.tls.key_file)
    if admin.enabled and not (is_loopback(admin.host) or has_tls or admin.insecure):
        path = "listeners.admin.host"
        yield Problem(
            path,
            f"{path} = {admin.host!r} opens the admin API to other machines, and passwords would"
            " cross the network in plain text: set listeners.admin.tls.cert_file and key_file, or"
            " listeners.admin.insecure = true if a proxy in front encrypts",
        )
    for key in ("cert_file", "key_file"):
        if admin.enabled and has_tls and not getattr(admin.tls, key):
            path = f"listeners.admin.tls.{key}"
            yield Problem(path, f"{path} is missing: TLS needs a certificate and its key")


def _ban_problems(bans: LoginBans) -> Iterator[Problem]:
    path = "security.bans.exempt"
    try:
        parse_networks(path, filter(None, (word.strip() for word in bans.exempt.split(","))))
    except ConfigError as error:
        yield Problem(path, str(error))


def _token_problems(tokens: Tokens) -> Iterator[Problem]:
    sources = [key for key in ("discovery", "jwks_file", "jwks_url") if getattr(tokens, key)]
    if len(sources) > 1:
        path = f"security.tokens.{sources[1]}"
        yield Problem(path, f"{path} and {sources[0]} are both set: keys have one source")
    if tokens.client_id and not (tokens.discovery and tokens.console_url):
        path = "security.tokens.client_id"
        yield Problem(path, f"{path} needs security.tokens.discovery and console_url, too")
    if tokens.console_url and not tokens.console_url.startswith(("http://", "https://")):
        path = "security.tokens.console_url"
        yield Problem(path, f"{path} = {tokens.console_url!r} has to begin with https://")


def whole_problems(config: Config) -> Iterator[Problem]:
    """Errors that concern several keys together."""
    listeners = config.listeners
    management = listeners.amqp_management
    if management.enabled and not is_loopback(management.host):
        path = "listeners.amqp_management.host"
        yield Problem(
            path,
            f"{path} = {management.host!r} would open the management API to other machines,"
            " which is not possible yet: use 127.0.0.1, ::1 or localhost",
        )
    yield from cluster_problems(
        config.cluster, config.node.id, config.node.roles, config.metadata.url
    )
    yield from inner_problems(listeners.inner)
    yield from _admin_problems(listeners.admin)
    yield from _ban_problems(config.security.bans)
    yield from _token_problems(config.security.tokens)
    yield from store_problems(config.store)
    yield from lake_problems(config.lake)
    yield from object_problems(
        config.object,
        config.metadata,
        config.defaults.stream,
        has_store=bool(config.store.url),
    )
    yield from stream_problems(config.defaults.stream, has_store=bool(config.store.url))
    endpoint = config.tracing.endpoint
    if endpoint and not endpoint.startswith(("http://", "https://")):
        yield Problem(
            "tracing.endpoint",
            f"tracing.endpoint = {endpoint!r} has to begin with http:// or https://",
        )
    if listeners.amqp_management.enabled and not (
        listeners.amqp.enabled or listeners.amqp_tls.enabled
    ):
        yield Problem(
            "listeners.amqp_management.enabled",
            "listeners.amqp_management is enabled, but AMQP is not: enable listeners.amqp, too",
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
