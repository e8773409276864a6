"""A node on etcd, put together: the member that it runs, its metadata store, its registration.

Rules: a node on its own imports none of it. The registration has a store of its own, so that it
outlives the broker's: the lease ends after everything is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import onelog
from onelog.base.clock import SystemClock
from onelog.base.errors import ConfigError, NotFound, OutcomeUnknown, StorageError, Unavailable
from onelog.cluster.etcd_child import PROGRESS_S, ChildSettings, EtcdChild
from onelog.cluster.hosts import HostSettings
from onelog.cluster.identity import NodeIdentity
from onelog.cluster.joining import LOCAL_FILE, check_store, join
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.listening import BoundInner
from onelog.cluster.link.security import LinkSecurity, mutual_tls, read_secret
from onelog.cluster.moving import MovedMetadata, move_metadata, put_aside
from onelog.cluster.node_rows import ClusterRow
from onelog.cluster.nodes import NodeCluster, NodePlan
from onelog.cluster.registration import NodeSettings, Registration
from onelog.cluster.sight import ClusterSight
from onelog.config.cluster import EtcdKeys, initial_members, is_meta_only, own_endpoints
from onelog.config.model import Config
from onelog.metadata.etcd import EtcdSettings, EtcdStore
from onelog.metadata.local import LocalStore
from onelog.metadata.store import MetadataStore
from onelog.observe.logging import get_logger
from onelog.observe.troubles import Troubles
from onelog.storage.lock import lock_data_dir

WAITS: Final = "etcd-wanted"
"""Standing: this node cannot start before etcd answers."""
OWN_FILE: Final = "replicas.db"
"""What is true of this node alone, in its data directory."""
RETRY_S: Final = 0.5
INIT_S: Final = 60.0
"""How long `onelog cluster init` waits for etcd."""

_log = get_logger("cluster")


def etcd_settings(config: Config) -> EtcdSettings:
    """What the configuration says about etcd. Blocks: it reads the password. Raises ConfigError."""
    keys = config.cluster.etcd
    return EtcdSettings(
        endpoints=own_endpoints(keys),
        prefix=f"/onelog/{config.cluster.name}/",
        deadline_s=keys.deadline_ms / 1000,
        progress_s=PROGRESS_S if keys.spawn else keys.progress_interval_ms / 1000,
        user=keys.user,
        password=_password(keys.password_file) if keys.user else "",
        tls=_tls(keys),
    )


def _password(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cluster.etcd.password_file = {file!r} cannot be read: {error}"
        ) from None


def _tls(keys: EtcdKeys) -> Callable[[], ssl.SSLContext]:
    """Makes the context of a connection; the files are read anew each time, so that a renewed
    certificate counts without a restart."""

    def make() -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=keys.ca_file or None)
            if keys.cert_file:
                context.load_cert_chain(keys.cert_file, keys.key_file, password=lambda: b"")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise Unavailable(
                f"the files of cluster.etcd (ca_file, cert_file, key_file) cannot be used: {error}"
            ) from None
        return context

    return make


def link_security(config: Config) -> LinkSecurity:
    """How this node knows the others. Blocks: it reads files. Raises ConfigError."""
    inner, path = config.listeners.inner, "listeners.inner"
    secret = read_secret(inner.secret_file, f"{path}.secret_file") if inner.secret_file else None
    tls = inner.tls
    if not tls.cert_file:
        return LinkSecurity(secret=secret)
    accepting, dialling = mutual_tls(
        tls.cert_file, tls.key_file, tls.ca_file, SystemClock(), f"{path}.tls"
    )
    return LinkSecurity(secret=secret, accepting=accepting, dialling=dialling)


def inner_address(config: Config) -> LinkAddress:
    """What the inner listener binds."""
    inner = config.listeners.inner
    return LinkAddress(path=inner.socket) if inner.socket else LinkAddress(inner.host, inner.port)


def child_settings(config: Config) -> ChildSettings:
    """The member that this node runs."""
    keys, node = config.cluster.etcd, config.node.id
    members = initial_members(keys, node)
    return ChildSettings(
        binary=keys.binary,
        name=_member_name(node),
        token=f"onelog-{config.cluster.name}",
        data_dir=Path(config.data_dir).resolve() / "etcd",
        listen=keys.listen,
        peer=next(member.url for member in members if member.node == node),
        initial=tuple((_member_name(member.node), member.url) for member in members),
        cert_file=keys.cert_file,
        key_file=keys.key_file,
        ca_file=keys.ca_file,
    )


def _member_name(node: int) -> str:
    return f"node-{node}"


async def open_etcd(settings: EtcdSettings, troubles: Troubles) -> EtcdStore:
    """The store, as soon as etcd answers. Raises ConfigError when it never may be used."""
    place = ", ".join(settings.endpoints)
    while True:
        try:
            store = await EtcdStore.open(settings, troubles)
        except (Unavailable, OutcomeUnknown) as error:
            troubles.stand(WAITS, place, error, blocks=True)
            await asyncio.sleep(RETRY_S)
        else:
            troubles.clear(WAITS, place)
            return store


class ClusterNode:
    """This node in a cluster: `start`, `open_metadata`, `nodes`, and `close` at the end."""

    def __init__(self, config: Config, troubles: Troubles, on_taken: Callable[[], None]) -> None:
        self._config = config
        self._troubles = troubles
        self._on_taken = on_taken
        self._child: EtcdChild | None = None
        self._store: EtcdStore | None = None
        self._row: ClusterRow | None = None
        self._identity: NodeIdentity | None = None
        self._inner: BoundInner | None = None
        self._security = LinkSecurity()
        self._local: LocalStore | None = None
        self._nodes: NodeCluster | None = None
        self.is_clean = False
        """Whether the broker closed everything; the next start may count on it."""

    async def start(self) -> None:
        """Run a member of etcd, if this node has one, and bind the inner listener. Raises
        ConfigError, Conflict."""
        if not is_meta_only(self._config.node.roles):
            self._security = await asyncio.to_thread(link_security, self._config)
            address = inner_address(self._config)
            self._inner = BoundInner(address, self._security, SystemClock())
        if self._config.cluster.etcd.spawn:
            self._child = EtcdChild(child_settings(self._config), self._troubles)
            await self._child.start()

    async def open_metadata(self) -> MetadataStore:
        """The metadata store for the broker, which closes it. Waits until etcd answers. Raises
        ConfigError, StorageError when this data and this etcd do not belong together."""
        settings = await asyncio.to_thread(etcd_settings, self._config)
        self._store = await open_etcd(settings, self._troubles)
        data_dir = Path(self._config.data_dir)
        node = self._config.node
        self._row, self._identity = await join(
            self._store, data_dir, node.id, is_replaced=node.replaced
        )
        await check_store(self._store, node.id, has_store=bool(self._config.store.url))
        return await open_etcd(settings, self._troubles)

    async def nodes(self, listeners: Mapping[str, str]) -> NodeCluster:
        """This node among the others, for its broker; `listeners` is where clients reach it."""
        assert self._store is not None
        assert self._row is not None
        assert self._identity is not None
        config, data_dir = self._config, Path(self._config.data_dir)
        settings = NodeSettings(
            node=config.node.id,
            name=config.node.name,
            roles=config.node.roles,
            rack=config.node.rack,
            version=onelog.__version__,
            ttl_s=config.cluster.node_ttl_ms / 1000,
            data_dir=data_dir,
            has_store=bool(config.store.url),
        )
        registration = Registration(
            self._store, settings, self._identity, self._troubles, self._on_taken
        )
        assert self._inner is not None
        self._local = await LocalStore.open(data_dir / OWN_FILE, SystemClock())
        plan = NodePlan(
            cluster_id=self._row.id,
            settings=HostSettings(
                factor=config.cluster.factor,
                min_insync=config.cluster.min_insync,
                lag_s=config.cluster.lag_ms / 1000,
                owner=self._row.owner,
                cache_bytes=config.cluster.cache_bytes,
            ),
            inner=self._inner,
            advertised=config.listeners.inner.advertised,
            security=self._security,
            local=self._local,
            listeners=listeners,
            drain_s=config.cluster.drain_ms / 1000,
            clock=SystemClock(),
        )
        self._nodes = NodeCluster(self._store, registration, plan, self._troubles)
        return self._nodes

    def sight(self) -> ClusterSight:
        """What this node sees of the cluster, once it has joined."""
        assert self._nodes is not None
        assert self._row is not None
        assert self._store is not None
        return ClusterSight(self._config.cluster.name, self._row, self._nodes, self._store)

    async def leave(self) -> None:
        """Hand over what this node leads, while clients are still served."""
        if self._nodes is not None:
            await self._nodes.leave()

    async def close(self) -> None:
        """Leave the cluster; the member of etcd ends last."""
        try:
            if self._nodes is not None:
                await self._nodes.stop()
                await self._nodes.registration.close(is_clean=self.is_clean)
        except StorageError as error:
            _log.error("the clean stop could not be written down", error=str(error))
        finally:
            if self._inner is not None:
                await self._inner.close()
            if self._local is not None:
                await self._local.close()
            if self._store is not None:
                await self._store.close()
            if self._child is not None:
                await self._child.close()


@contextlib.asynccontextmanager
async def clustered(
    config: Config, troubles: Troubles, on_taken: Callable[[], None]
) -> AsyncIterator[ClusterNode]:
    """This node in its cluster; it leaves after the block. `on_taken`: another process is this
    node now, and this one must not go on."""
    node = ClusterNode(config, troubles, on_taken)
    try:
        await node.start()
        yield node
    finally:
        await node.close()


def init_cluster(config: Config) -> MovedMetadata:
    """Move the metadata of a stopped node on its own into etcd. It blocks. Raises NotFound when
    there is none, and what `move_metadata` raises."""
    data_dir = Path(config.data_dir)
    if config.cluster.mode != "etcd":
        raise ConfigError(
            "cluster.mode = 'single': say where etcd is first, with cluster.mode = 'etcd' and"
            " cluster.etcd.endpoints, or cluster.etcd.spawn"
        )

    async def run() -> MovedMetadata:
        clock = SystemClock()
        troubles = Troubles(clock)
        async with contextlib.AsyncExitStack() as closing:
            node = ClusterNode(config, troubles, lambda: None)
            closing.push_async_callback(node.close)
            await node.start()
            settings = await asyncio.to_thread(etcd_settings, config)
            try:
                async with asyncio.timeout(INIT_S):
                    etcd = await open_etcd(settings, troubles)
            except TimeoutError:
                told = "; ".join(row.error for row in troubles.standing())
                raise Unavailable(f"etcd does not answer: {told}") from None
            closing.push_async_callback(etcd.close)
            local = await LocalStore.open(data_dir / LOCAL_FILE, clock)
            closing.push_async_callback(local.close)
            moved = await move_metadata(local, etcd, data_dir, config.node.id)
        await asyncio.to_thread(put_aside, data_dir)
        return moved

    with lock_data_dir(data_dir):
        if not (data_dir / LOCAL_FILE).exists():
            raise NotFound(
                f"there is no {data_dir / LOCAL_FILE}: nothing has to be moved. `onelog serve`"
                " makes the cluster of a new node by itself"
            )
        return asyncio.run(run())
