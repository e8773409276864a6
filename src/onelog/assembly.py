"""The assembly: a broker put together over the engines and the metadata store that exist.

Rules: the only module that names concrete engines and stores. The data directory's lock is held
by the caller for as long as the broker lives.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.backup.repository import Progress
from onelog.backup.restored import Restored, RestoreRequest
from onelog.base.clock import Clock, SystemClock
from onelog.base.commands import Commands, failed
from onelog.base.errors import ConfigError, StorageError, Unavailable
from onelog.broker import (
    MAIN,
    Authorizer,
    Broker,
    BrokerSettings,
    ClusterNodes,
    ColdFormat,
    Durability,
    NamedViews,
    Quotas,
    Retention,
    StreamConfig,
    TierLimits,
    audit_reading,
    backup_commands,
    stream_commands,
    view_commands,
)
from onelog.broker.audited import command_event, keep_event
from onelog.broker.objects import CacheSettings
from onelog.cluster.identity import FILE as NODE_FILE
from onelog.config.model import Config, Security
from onelog.config.model import Tokens as TokenKeys
from onelog.config.store import Store as StoreKeys
from onelog.config.store import StorePrices, store_options
from onelog.log.replay import STATE_NAME
from onelog.log.store_restore import StoreRestore
from onelog.metadata.local import LocalStore
from onelog.metadata.store import MetadataStore
from onelog.net.binding import words
from onelog.object_assembly import METADATA_COPY, ObjectAssembly, named_store, open_stored_metadata
from onelog.objects.counts import Prices
from onelog.objects.store import StoreSettings
from onelog.objects.sweeping import store_now_ms
from onelog.observe.troubles import Troubles
from onelog.queues.addresses import STREAM_PREFIX
from onelog.restoring import restore
from onelog.security import ban_commands, token_commands
from onelog.security import commands as user_commands
from onelog.security.access import commands as access_commands
from onelog.security.access.listing import AccessList
from onelog.security.api_tokens import ApiTokens
from onelog.security.authenticator import SecuritySettings
from onelog.security.bans import BanSettings
from onelog.security.hashing import HashThreads
from onelog.security.quotas import commands as quota_commands
from onelog.security.quotas.table import ClientQuotas
from onelog.security.table import UserTable
from onelog.security.tokens import TokenSettings
from onelog.security.users import Users
from onelog.storage.engine import Engine
from onelog.storage.lazy import LazyEngine
from onelog.storage.lock import lock_data_dir
from onelog.storage.memory import MemoryEngine
from onelog.storage.segment import SegmentEngine

if TYPE_CHECKING:
    from onelog.lakehouse import Lakehouse
    from onelog.objects.store import ObjectStore
    from onelog.storage.cold import RunCache
    from onelog.storage.tiered import StoredPartition, TieredEngine

_HELPER_BYTES_MIN: Final = 8 * 1024 * 1024
"""Smaller compactions are done before a helper process has started."""


async def open_store(data_dir: Path, clock: Clock) -> MetadataStore:
    """Open the metadata store of a data directory; StorageError when it is gone and data is not."""
    path = data_dir / "metadata.db"
    await asyncio.to_thread(_check_store, path)
    return await LocalStore.open(path, clock)


async def open_metadata(
    config: Config, settings: BrokerSettings, clock: Clock, troubles: Troubles
) -> MetadataStore:
    """Open the metadata store that the configuration names."""
    if config.metadata.url:
        return await open_stored_metadata(settings, config, clock, troubles)
    return await open_store(Path(config.data_dir), clock)


def _check_store(path: Path) -> None:
    """Data without the store that names it is not a new broker (I9): the store is made first."""
    if path.exists() and path.stat().st_size:
        return
    data = [path.parent / "segment", path.parent / "kv"]
    if any(next(root.glob(what), None) for root, what in zip(data, ("*/*", "*"), strict=True)):
        raise StorageError(
            f"{path} is missing, and beside it there is data that it must name: streams and"
            " users. Restore it from a backup, then start again; to begin anew, choose an"
            " empty data directory"
        )


def run_offline(data_dir: Path, command: bytes) -> bytes:
    """Run a command on users, views or rules in the data directory of a stopped server; the answer.

    Raises DataDirLocked when a server runs there: it takes commands over its control socket.
    """

    async def run() -> bytes:
        if await asyncio.to_thread(_lies_elsewhere, data_dir):
            return await _needs_server(data_dir, command)
        clock, threads = SystemClock(), HashThreads()
        store = await open_store(data_dir, clock)
        try:
            users = Users(store, threads, clock)
            commands = Commands(
                {
                    user_commands.SUBJECT: partial(user_commands.run_command, users),
                    token_commands.SUBJECT: partial(_run_on_tokens, store, clock),
                    view_commands.SUBJECT: partial(_run_on_views, NamedViews(store, clock)),
                    stream_commands.SUBJECT: partial(_needs_server, data_dir),
                    backup_commands.SUBJECT: partial(_needs_server, data_dir),
                    audit_reading.SUBJECT: partial(_needs_server, data_dir),
                    access_commands.SUBJECT: partial(_run_on_access, store, clock),
                    quota_commands.SUBJECT: partial(_run_on_quotas, store, clock),
                    ban_commands.SUBJECT: partial(_has_no_bans, data_dir),
                }
            )
            answer = await commands.run(command)
            event = command_event(command, answer, "offline", os.geteuid())
            if event is not None:
                noted = msgspec.structs.replace(event, time_ms=clock.now_ms())
                await keep_event(store, noted)
            return answer
        finally:
            await threads.close()
            await store.close()

    with lock_data_dir(data_dir):
        return asyncio.run(run())


def _lies_elsewhere(data_dir: Path) -> bool:
    """Whether the metadata is in the object store or in etcd."""
    is_node = (data_dir / NODE_FILE).exists() and not (data_dir / "metadata.db").exists()
    return is_node or (data_dir / METADATA_COPY).exists()


def security_settings(chosen: Security) -> SecuritySettings:
    """What the configuration says about logins."""
    bans = chosen.bans
    return SecuritySettings(
        anonymous=chosen.anonymous,
        certificate_users_only=chosen.certificate_users_only,
        tokens=_token_settings(chosen.tokens),
        bans=BanSettings(
            failures=bans.failures,
            window_s=bans.window_ms / 1000,
            ban_s=bans.ban_ms / 1000,
            delay_s=bans.delay_ms / 1000,
            delay_max_s=bans.delay_max_ms / 1000,
            exempt=words(bans.exempt),
        ),
    )


def _token_settings(chosen: TokenKeys) -> TokenSettings:
    """What the configuration says about signed tokens."""
    return TokenSettings(
        jwks_file=chosen.jwks_file,
        jwks_url=chosen.jwks_url,
        discovery=chosen.discovery,
        issuer=chosen.issuer,
        ca_file=chosen.ca_file,
        refresh_ms=chosen.refresh_interval_ms,
        audience=chosen.audience,
        algorithms=chosen.algorithms,
        leeway_ms=chosen.leeway_ms,
        name_claim=chosen.name_claim,
        claims=chosen.claims,
        groups_claim=chosen.groups_claim,
        roles_claim=chosen.roles_claim,
        viewers=chosen.viewers,
        operators=chosen.operators,
        admins=chosen.admins,
    )


async def _run_on_tokens(store: MetadataStore, clock: Clock, command: bytes) -> bytes:
    tokens = ApiTokens(store, clock, Troubles(clock))
    await tokens.open()
    try:
        return await token_commands.run_token_command(tokens, command)
    finally:
        await tokens.close()


async def _run_on_views(views: NamedViews, command: bytes) -> bytes:
    await views.open()
    try:
        return await view_commands.run_view_command(views, command)
    finally:
        await views.close()


async def _run_on_access(store: MetadataStore, clock: Clock, command: bytes) -> bytes:
    access, users = AccessList(store, clock), UserTable(store, Troubles(clock))
    access.groups_of, access.is_administrator = users.groups_of, users.is_administrator
    try:
        await access.open()
        await users.open()
        return await access_commands.run_access_command(access, command)
    finally:
        await users.close()
        await access.close()


async def _run_on_quotas(store: MetadataStore, clock: Clock, command: bytes) -> bytes:
    quotas = ClientQuotas(store, clock, Troubles(clock))
    await quotas.open()
    try:
        return await quota_commands.run_quota_command(quotas, command)
    finally:
        await quotas.close()


async def _has_no_bans(data_dir: Path, _command: bytes) -> bytes:
    return failed(
        Unavailable(
            f"no server runs on {str(data_dir)!r}, so nobody is banned there: a server forgets its"
            " bans when it stops"
        )
    )


async def _needs_server(data_dir: Path, _command: bytes) -> bytes:
    return failed(
        Unavailable(
            f"no server runs on {str(data_dir)!r}: start it with `onelog serve`; streams are made"
            " and changed, backups are made, and the audit trail is read, while it runs; so is"
            " everything else if metadata.url = 'store' or cluster.mode = 'etcd'"
        )
    )


def restore_backup(request: RestoreRequest, progress: Progress) -> Restored:
    """Restore a backup into an empty data directory. It blocks."""
    return restore(request, _restored_engines, progress)


def _restored_engines(data_dir: Path) -> Mapping[str, Engine]:
    clock, kv_root = SystemClock(), data_dir / "kv"
    return {
        "segment": SegmentEngine(data_dir / "segment", clock),
        "kv": LazyEngine(kv_root.exists, lambda: _open_kv(kv_root, clock)),
    }


async def open_broker(  # noqa: PLR0913 - each is named by the caller
    data_dir: Path,
    settings: BrokerSettings,
    clock: Clock,
    *,
    store: MetadataStore | None = None,
    authorizer: Authorizer | None = None,
    quotas: Quotas | None = None,
    troubles: Troubles | None = None,
    config: Config | None = None,
    nodes: ClusterNodes | None = None,
) -> Broker:
    """Open the broker on a data directory, recovering what is there; it closes the store."""
    if store is None:
        store = await open_store(data_dir, clock)
    kv_root = data_dir / "kv"
    objects = named_store(settings.store)
    segment = await asyncio.to_thread(
        SegmentEngine, data_dir / "segment", clock, page_cache_bytes=settings.page_cache_bytes
    )
    tiers = cache = None
    if objects is None:
        await _check_history(data_dir)
    else:
        cache = await asyncio.to_thread(_run_cache, data_dir, settings)
        lake = _lakehouse(data_dir, settings, config)
        tiers = await asyncio.to_thread(_tiered, segment, objects, cache, data_dir, clock, lake)
    engines: dict[str, Engine] = {
        "segment": segment if tiers is None else tiers,
        "memory": MemoryEngine(clock),
        "kv": LazyEngine(kv_root.exists, lambda: _open_kv(kv_root, clock)),
    }
    engine = None
    if objects is not None and cache is not None and tiers is not None:
        engine = ObjectAssembly(objects, cache, settings, config or Config(), clock, tiers)
        engines["object"] = await engine.lazy(store)
    broker = await Broker.open(
        store,
        engines,
        clock,
        settings,
        authorizer=authorizer,
        quotas=quotas,
        troubles=troubles,
        scratch=data_dir / "backup.tmp",
        nodes=nodes,
    )
    broker.objects.store = objects
    if tiers is not None:
        broker.objects.keepers.update(tiers.keepers())
        broker.maintenance.tiering.buriers.append(tiers.deleted.bury)
    if objects is not None:
        assert tiers is not None
        broker.objects.restoring = _restoring(broker, objects, segment, tiers)
        broker.objects.sweep_daily()
    if engine is not None:
        engine.show(broker)
    return broker


def _restoring(
    broker: Broker, objects: ObjectStore, segment: SegmentEngine, tiers: TieredEngine
) -> StoreRestore:
    """What makes streams of the store anew."""
    from onelog.storage.tiered import restoring  # noqa: PLC0415

    def stored() -> Iterator[StoredPartition]:
        """What was deleted here is not there: its objects go soon."""
        deleted = set(tiers.deleted.keys())
        return (part for part in restoring.stored_partitions(objects) if part.key not in deleted)

    return StoreRestore(
        broker.streams,
        stored,
        lambda part: restoring.restore_partition(objects, segment, part, STATE_NAME),
        store_now_ms=lambda: store_now_ms(objects),
        house=tiers.house,
    )


async def _check_history(data_dir: Path) -> None:
    """History that lies in a store is not gone because the configuration names no store (I9)."""

    def look() -> Path | None:
        if not any((data_dir / name).exists() for name in ("cold", "tiers")):
            return None  # there never was a store
        return next((data_dir / "segment").glob("*/*/cold.[01]"), None)

    found = await asyncio.to_thread(look)
    if found is not None:
        raise ConfigError(
            f"store.url is empty, but {found.parent} has history in an object store: name that"
            " store again. To do without it, bring the history back first (`onelog stream"
            " bring-back`)"
        )


def _run_cache(data_dir: Path, settings: BrokerSettings) -> RunCache:
    """The cache of cold bytes, for tiers and for the engine `object`."""
    from onelog.storage import cold  # noqa: PLC0415

    chosen = settings.store_cache
    return cold.RunCache(
        chosen.directory or data_dir / "cold",
        cache_bytes=chosen.cache_bytes,
        index_bytes=chosen.index_bytes,
        couriers=settings.store_couriers,
    )


def _lakehouse(data_dir: Path, settings: BrokerSettings, config: Config | None) -> Lakehouse | None:
    """Who writes tables; None: nobody does here."""
    from onelog.lakehouse import open_lakehouse  # noqa: PLC0415

    assert settings.store is not None
    return open_lakehouse(data_dir, settings.store, (config or Config()).lake)


def _tiered(
    inner: SegmentEngine,
    objects: ObjectStore,
    cache: RunCache,
    data_dir: Path,
    clock: Clock,
    lake: Lakehouse | None,
) -> TieredEngine:
    """The segment engine with tiers: what a broker without a store never imports."""
    from onelog.storage.tiered import TieredEngine  # noqa: PLC0415

    bringing = None if lake is None else lake.bring
    return TieredEngine(
        inner, objects, cache, data_dir / "tiers", clock, bringing=bringing, tables=lake
    )


def broker_settings(config: Config) -> BrokerSettings:
    """What the configuration says to the broker."""
    defaults, main = config.defaults.stream, config.main
    settings = BrokerSettings(
        node=config.node.id,
        main=StreamConfig(
            name=MAIN,
            captures=("#",),
            partitions=main.partitions,
            engine=defaults.engine,
            durability=Durability(defaults.durability),
            retention=Retention(age_ms=main.retention_age_ms, bytes=main.retention_bytes),
            message_bytes_max=defaults.message_bytes_max,
            segment_bytes=defaults.segment_bytes,
            segment_age_ms=defaults.segment_age_ms,
            tier=stream_commands.default_tier(defaults),
        ),
        helper_bytes_min=_HELPER_BYTES_MIN,
        checkpoint_interval_s=config.cursors.checkpoint_interval_ms / 1000,
        internal_partitions=config.internal.partitions,
        elected=config.cluster.mode == "etcd",
        page_cache_bytes=config.limits.page_cache_bytes,
        traced=bool(config.tracing.endpoint),
        quota_burst_s=config.security.quotas.burst_ms / 1000,
        quota_patience_s=config.security.quotas.patience_ms / 1000,
        reserved=(STREAM_PREFIX,),
        tier_catalog=config.lake.catalog,
    )
    return with_store(settings, config.store)


def with_store(settings: BrokerSettings, chosen: StoreKeys) -> BrokerSettings:
    """The settings of a broker with what the configuration says about its object store."""
    if not chosen.url:
        return settings
    return msgspec.structs.replace(
        settings,
        store=StoreSettings(
            url=chosen.url, options=store_options(chosen), deadline_ms=chosen.deadline_ms
        ),
        store_couriers=chosen.couriers,
        store_prices=_prices(chosen.prices),
        store_cache=CacheSettings(
            directory=Path(chosen.cache_dir) if chosen.cache_dir else None,
            cache_bytes=chosen.cache_bytes,
            index_bytes=chosen.index_bytes,
        ),
        tier_limits=TierLimits(
            upload_bytes_per_s=chosen.upload_bytes_per_s, grace_ms=chosen.grace_ms
        ),
        tier_formats=tier_formats(chosen.url),
    )


def tier_formats(url: str) -> tuple[ColdFormat, ...]:
    """The formats that this broker can write into a store."""
    from onelog.lakehouse import has_libraries  # noqa: PLC0415

    if url.startswith("memory://") or not has_libraries():
        return (ColdFormat.LOG,)
    return (ColdFormat.LOG, ColdFormat.ICEBERG, ColdFormat.DELTA)


def _prices(chosen: StorePrices) -> Prices:
    """What the configuration says about its prices."""
    return Prices(
        put=chosen.put,
        get=chosen.get,
        list=chosen.list,
        delete=chosen.delete,
        sent_gb=chosen.sent_gb,
        received_gb=chosen.received_gb,
    )


def _open_kv(root: Path, clock: Clock) -> Engine:
    """RocksDB is an extra: a broker without streams of this engine needs no library for it."""
    try:
        from onelog.storage.kv import KvEngine  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "rocksdict":
            raise
        raise ConfigError(
            f"a stream has the engine kv (its data: {root}), which is RocksDB, and its library"
            f" rocksdict is not installed: {sys.executable} -m pip install 'onelog[rocksdb]', then"
            " start the broker again; streams of the engines segment and memory need no library"
        ) from error
    return KvEngine(root, clock)
