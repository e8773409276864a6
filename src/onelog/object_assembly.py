"""The engine `object` and metadata in the store, put together for the assembly.

Rules: a broker without such streams imports none of it, and asks the store for no chain.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ConfigError, InvalidRequest
from onelog.broker import Broker, BrokerSettings
from onelog.broker.objects import SweptChain
from onelog.config.model import Config
from onelog.log.stream_rows import names_in_engine
from onelog.metadata.local import HISTORY_REVISIONS, LocalStore
from onelog.metadata.store import MetadataStore
from onelog.objects.chain import Chain
from onelog.objects.names import DATA
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Engine
from onelog.storage.lazy import LazyEngine

if TYPE_CHECKING:
    from onelog.storage.cold import RunCache
    from onelog.storage.object import ObjectEngine, ObjectSettings
    from onelog.storage.tiered import TieredEngine


METADATA_COPY: Final = "metadata-copy.db"
"""The file of metadata that lies in the object store."""


def named_store(settings: StoreSettings | None) -> ObjectStore | None:
    """The object store of the configuration; it is not asked anything before it is needed."""
    if settings is None:
        return None
    try:
        return open_store(settings)
    except InvalidRequest as error:
        raise ConfigError(f"store.url, store.options: {error}") from error


class StoredMetadata(LocalStore):
    """The embedded store, whose changes lie in the object store."""

    chain: SweptChain


async def open_stored_metadata(
    settings: BrokerSettings, config: Config, clock: Clock, troubles: Troubles
) -> StoredMetadata:
    """Open the metadata that lies in the object store; its file here is a copy. Raises ConfigError
    when there is other metadata in the data directory."""
    from onelog.metadata.chained import ChainedDatabase  # noqa: PLC0415 - only where it is chosen
    from onelog.storage.object import ChainWatch  # noqa: PLC0415

    data_dir, node = Path(config.data_dir), config.node.id
    own = data_dir / "metadata.db"
    if await asyncio.to_thread(own.exists):
        raise ConfigError(
            f"metadata.url = 'store', but {own} holds metadata: choose an empty data directory,"
            " or leave metadata.url empty"
        )
    objects = _chain_store(settings, config)
    loop, path = asyncio.get_running_loop(), data_dir / METADATA_COPY
    chain = f"{node}-meta"

    swept: list[SweptChain] = []

    def opened(made: Chain) -> None:
        ChainWatch(made, f"{objects.url} (metadata)", troubles, loop)
        swept.append(SweptChain(objects, made.name, lambda listed: made.needed(listed, ())))

    make = partial(ChainedDatabase, path, HISTORY_REVISIONS, objects, chain, node, clock, opened)
    store = await StoredMetadata.open_made(path, clock, make)
    (store.chain,) = swept
    return store


def _chain_store(settings: BrokerSettings, config: Config) -> ObjectStore:
    """The store that chains are written to."""
    assert settings.store is not None, "the configuration was checked"
    wanted = settings.store
    if config.object.chain_url:
        wanted = msgspec.structs.replace(wanted, url=config.object.chain_url)
    found = named_store(wanted)
    assert found is not None
    return found


class ObjectAssembly:
    """The engine `object`, which is opened when a stream needs it."""

    def __init__(
        self,
        store: ObjectStore,
        cache: RunCache,
        settings: BrokerSettings,
        config: Config,
        clock: Clock,
        tiers: TieredEngine,
    ) -> None:
        """`tiers` has what tiers of all engines share."""
        self._tiers = tiers
        self._store = store
        self._cache = cache
        self._settings = settings
        self._config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._broker: Broker | None = None
        self._engine: ObjectEngine | None = None
        self._swept: list[SweptChain] = []
        """Chains that sweeps look at, too."""
        self._chains: ObjectStore | None = None
        """Where the chain lies, if elsewhere."""
        self._must_exist = ""

    async def lazy(self, metadata: MetadataStore) -> Engine:
        """The engine; the metadata says whether its chain must exist already."""
        if isinstance(metadata, StoredMetadata):
            self._swept.append(metadata.chain)
        named, begun = await names_in_engine(metadata, "object")
        if begun:
            self._must_exist = (
                f"the metadata has streams of the engine object that held messages"
                f" ({', '.join(begun[:5])}{' …' if len(begun) > 5 else ''})"
            )
        return LazyEngine(lambda: bool(named), self._open, lies_in_store=True)

    def _open(self) -> Engine:
        """In a thread: open the chain."""
        from onelog.storage.object import ObjectEngine  # noqa: PLC0415 - only with such streams

        config, settings = self._config, self._settings
        self._chains = _chain_store(settings, config) if config.object.chain_url else None
        self._engine = engine = ObjectEngine(
            self._store,
            self._cache,
            object_settings(config),
            self._clock,
            chain_store=self._chains,
            must_exist=self._must_exist,
            plans=self._tiers.plans,
        )
        with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
            self._loop.call_soon_threadsafe(self._opened)
        return self._tiers.beside(engine)

    def chain(self, engine: ObjectEngine) -> SweptChain:
        """What sweeps of the engine's chain need to know."""
        store, name = self._chains or self._store, engine.core.chain.name
        return SweptChain(store, name, engine.needed_of_chain)

    def show(self, broker: Broker) -> None:
        """Let the broker's register, metrics and sweeps know the engine, once it is open."""
        self._broker = broker
        for chain in self._swept:
            broker.objects.keep_chain(chain)
        self._opened()

    def _opened(self) -> None:
        broker, engine = self._broker, self._engine
        if broker is None or engine is None:
            return
        from onelog.storage.object import ChainWatch, engine_samples  # noqa: PLC0415

        self._broker = None
        watch = ChainWatch(
            engine.core.chain, self._store.url, broker.troubles, self._loop, engine.upkeep
        )
        watch.changed()
        broker.objects.keepers[DATA] = engine.needed
        broker.objects.keep_chain(self.chain(engine))
        broker.objects.more_samples.append(lambda: engine_samples(engine))


def object_settings(config: Config) -> ObjectSettings:
    """What the configuration says about the engine `object`."""
    from onelog.storage.object import ObjectSettings  # noqa: PLC0415

    chosen = config.object
    return ObjectSettings(
        chain=str(config.node.id),
        node=config.node.id,
        linger_ms=chosen.linger_ms,
        batch_bytes=chosen.batch_bytes,
        inflight=chosen.inflight,
        buffer_bytes=chosen.buffer_bytes,
        settle_bytes=chosen.settle_bytes,
        settle_ms=chosen.settle_ms,
        join_bytes=chosen.join_bytes,
        grace_ms=config.store.grace_ms,
    )
