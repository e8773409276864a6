"""The keys of the cluster: where the metadata lies, and who runs etcd.

Rules: the default is one process without any service; then no key here is read. A key that would
have no effect is an error, so that nobody believes in a cluster that is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from msgspec import Meta

from onelog.base.networks import is_loopback
from onelog.config.problems import Problem
from onelog.config.section import Section

Role = Literal["meta", "engine", "broker"]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
PEER_DEFAULT: Final = "http://127.0.0.1:2380"
"""Where a member that is alone waits for others."""


class EtcdKeys(Section, frozen=True, kw_only=True):
    """The etcd that keeps the metadata of a cluster."""

    endpoints: Annotated[
        tuple[str, ...],
        Meta(
            description="Where its members listen for clients, each as http://HOST:PORT or"
            " https://HOST:PORT. Name all of them. Empty with `spawn`: the own member alone."
        ),
    ] = ()
    spawn: Annotated[
        bool,
        Meta(
            description="Whether this node runs a member itself, as a child process with its data"
            " in `data_dir`/etcd."
        ),
    ] = False
    binary: Annotated[
        str,
        Meta(
            min_length=1,
            description="The program that `spawn` starts: a path, or a name that is looked for as"
            " the shell does. Debian has it in the package etcd-server.",
        ),
    ] = "etcd"
    listen: Annotated[
        str,
        Meta(description="Where the own member listens for clients, as an endpoint."),
    ] = "http://127.0.0.1:2379"
    initial: Annotated[
        tuple[str, ...],
        Meta(
            description="The members that etcd is made with, one on each node that has `spawn`:"
            " `node.id`=URL, where other members reach it. The same on all of them: 1, 3 or 5."
            f" Empty: the own member alone, at {PEER_DEFAULT}."
        ),
    ] = ()
    insecure: Annotated[
        bool,
        Meta(
            description="Allow a member of `spawn` without TLS that other machines can reach, and"
            " a password that crosses the network in plain text. Whoever reaches such an etcd can"
            " change everything in it."
        ),
    ] = False
    user: Annotated[str, Meta(description="Name for etcd's own login; empty: none.")] = ""
    password_file: Annotated[str, Meta(description="File with the password of `user`.")] = ""
    ca_file: Annotated[
        str,
        Meta(
            description="PEM file: the authorities that sign certificates of etcd; empty: those of"
            " the system."
        ),
    ] = ""
    cert_file: Annotated[
        str, Meta(description="PEM file: the certificate that this node shows; empty: none.")
    ] = ""
    key_file: Annotated[str, Meta(description="PEM file: the key of `cert_file`.")] = ""
    deadline_ms: Annotated[
        int,
        Meta(ge=500, le=60_000, description="How long a request to etcd may take."),
    ] = 5_000
    progress_interval_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=3_600_000,
            description="What your etcd has as --experimental-watch-progress-notify-interval. A"
            " watch that shows nothing for three of them is opened anew. A member of `spawn` has"
            " two seconds, whatever is set here.",
        ),
    ] = 600_000


class Cluster(Section, frozen=True, kw_only=True):
    """Whether this node is part of a cluster."""

    mode: Annotated[
        Literal["single", "etcd"],
        Meta(
            description="`single`: the metadata is a file in `data_dir`, and no service is needed."
            " `etcd`: it lies in etcd, where nodes register."
        ),
    ] = "single"
    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=100,
            pattern=_NAME,
            description="Name of the cluster: its keys in etcd begin with /onelog/NAME/.",
        ),
    ] = "main"
    node_ttl_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=600_000,
            description="How long a node that gives no sign counts as there. etcd rounds up to"
            " whole seconds, and to two with its own defaults.",
        ),
    ] = 6_000
    factor: Annotated[
        int,
        Meta(
            ge=1,
            le=9,
            description="On how many nodes each partition lies, for streams that say nothing else."
            " While fewer nodes are there, it lies on those; 1: records end with their node.",
        ),
    ] = 3
    min_insync: Annotated[
        int,
        Meta(
            ge=1,
            le=9,
            description="How many replicas must have a record before it is answered, for streams"
            " that say nothing else. With fewer, publishers are refused. A new cluster waits for so"
            " many nodes before it makes its streams.",
        ),
    ] = 2
    lag_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="A replica that has not caught up for so long is no longer waited for.",
        ),
    ] = 5_000
    cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="How much copies of partitions that lie on other nodes only may take here,"
            " together: they are made for subscriptions that need them, and go a minute after the"
            " last. Beyond it, new subscriptions that need more of them are refused.",
        ),
    ] = 20_000_000_000
    drain_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="How long a stop waits for other nodes to lead what this node leads.",
        ),
    ] = 5_000
    etcd: EtcdKeys = EtcdKeys()


class InitialMember(NamedTuple):
    """A member that etcd is made with."""

    node: int
    url: str


def initial_members(keys: EtcdKeys, node: int) -> tuple[InitialMember, ...]:
    """The members that etcd is made with. Raises ValueError."""
    if not keys.initial:
        return (InitialMember(node, PEER_DEFAULT),)
    found = []
    for text in keys.initial:
        number, equals, url = text.partition("=")
        if not equals or not number.strip().isdecimal() or not _is_url(url.strip()):
            raise ValueError(f"{text!r} is no member: write it as 1=http://10.0.0.1:2380")
        found.append(InitialMember(int(number), url.strip()))
    return tuple(found)


def is_meta_only(roles: tuple[Role, ...]) -> bool:
    """Whether a node only runs a member of etcd."""
    return set(roles) == {"meta"}


def own_endpoints(keys: EtcdKeys) -> tuple[str, ...]:
    """Where etcd is asked."""
    return keys.endpoints or (keys.listen,)


def cluster_problems(
    cluster: Cluster, node: int, roles: tuple[Role, ...], metadata_url: str
) -> Iterator[Problem]:
    """Errors in these keys that concern several of them."""
    missing = [role for role in ("engine", "broker") if role not in roles]
    if is_meta_only(roles):
        if not (cluster.mode == "etcd" and cluster.etcd.spawn):
            yield Problem(
                "node.roles",
                "node.roles = ['meta'] is a node that only runs a member of etcd: set cluster.mode"
                " = 'etcd' and cluster.etcd.spawn = true, or add engine and broker",
            )
    elif missing:
        yield Problem(
            "node.roles",
            f"node.roles lacks {' and '.join(missing)}: a node that keeps data without serving it,"
            " or serves without keeping any, is not possible yet. Write engine and broker, or"
            " ['meta'] for a node that only runs a member of etcd; leave node.roles out for the"
            " default",
        )
    keys = cluster.etcd
    if cluster.mode == "single":
        for name in ("endpoints", "spawn", "initial", "user"):
            if getattr(keys, name):
                path = f"cluster.etcd.{name}"
                yield Problem(
                    path,
                    f"{path} has no effect with cluster.mode = 'single': set cluster.mode = 'etcd',"
                    f" or leave {path} out",
                )
        return
    if metadata_url:
        yield Problem(
            "metadata.url",
            f"metadata.url = {metadata_url!r} and cluster.mode = 'etcd' name two places for the"
            " metadata: leave one of them out",
        )
    if cluster.min_insync > cluster.factor:
        yield Problem(
            "cluster.min_insync",
            f"cluster.min_insync = {cluster.min_insync} is more than cluster.factor ="
            f" {cluster.factor}: no record could ever be answered",
        )
    yield from _endpoint_problems(keys)
    yield from _login_problems(keys)
    if keys.spawn:
        yield from _spawn_problems(keys, node, roles)


def _endpoint_problems(keys: EtcdKeys) -> Iterator[Problem]:
    path = "cluster.etcd.endpoints"
    if not keys.endpoints and not keys.spawn:
        yield Problem(
            path,
            f"{path} is empty: name the members of your etcd, such as ['http://127.0.0.1:2379'], or"
            " set cluster.etcd.spawn = true to let this node run one",
        )
    for url in keys.endpoints:
        if not _is_url(url):
            yield Problem(path, f"{path}: {url!r} is none: write http://HOST:PORT")
    if not _is_url(keys.listen):
        yield Problem(
            "cluster.etcd.listen",
            f"cluster.etcd.listen = {keys.listen!r} is no address: write http://HOST:PORT",
        )
    if bool(keys.cert_file) != bool(keys.key_file):
        path = f"cluster.etcd.{'key_file' if keys.cert_file else 'cert_file'}"
        yield Problem(path, f"{path} is missing: a certificate goes with its key")


def _login_problems(keys: EtcdKeys) -> Iterator[Problem]:
    if keys.user and not keys.password_file:
        path = "cluster.etcd.password_file"
        yield Problem(path, f"{path} is missing: cluster.etcd.user = {keys.user!r} needs one")
    if keys.password_file and not keys.user:
        path = "cluster.etcd.user"
        yield Problem(path, f"{path} is missing: cluster.etcd.password_file has no use without it")
    open_ones = [url for url in keys.endpoints if _is_open(url)]
    if keys.user and open_ones and not keys.insecure:
        yield Problem(
            "cluster.etcd.endpoints",
            f"cluster.etcd.endpoints: the password would cross the network to {open_ones[0]} in"
            " plain text: use https://, or set cluster.etcd.insecure = true",
        )


def _spawn_problems(keys: EtcdKeys, node: int, roles: tuple[Role, ...]) -> Iterator[Problem]:
    if "meta" not in roles:
        yield Problem(
            "node.roles",
            "node.roles lacks meta, but cluster.etcd.spawn = true lets this node keep metadata: add"
            " meta, or leave spawn out",
        )
    path = "cluster.etcd.initial"
    try:
        members = initial_members(keys, node)
    except ValueError as error:
        yield Problem(path, f"{path}: {error}")
        return
    numbers = [member.node for member in members]
    if len(set(numbers)) != len(numbers):
        yield Problem(path, f"{path} names a node twice: each has one member")
    elif node not in numbers:
        yield Problem(
            path,
            f"{path} has no member for this node (node.id = {node}): add it, or leave"
            " cluster.etcd.spawn out here",
        )
    if len(numbers) % 2 == 0:
        yield Problem(
            path,
            f"{path} has {len(numbers)} members: use an odd number, for one more of them makes"
            " nothing safer",
        )
    own = next((member.url for member in members if member.node == node), "")
    for name, url in (("listen", keys.listen), ("initial", own)):
        if _is_open(url) and not keys.insecure:
            yield Problem(
                f"cluster.etcd.{name}",
                f"cluster.etcd.{name}: {url} would open etcd to other machines, and whoever reaches"
                " it can change everything in it: use https:// with cert_file, key_file and"
                " ca_file, or set cluster.etcd.insecure = true on a network that you trust",
            )
        if url.startswith("https:") and not (keys.cert_file and keys.ca_file):
            yield Problem(
                f"cluster.etcd.{name}",
                f"cluster.etcd.{name}: {url} needs cluster.etcd.cert_file, key_file and ca_file",
            )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_port = parts.port is not None
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and is_bare


def _is_open(url: str) -> bool:
    """Whether an address without TLS is for other machines."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
