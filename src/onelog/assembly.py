"""The assembly: a broker put together over the engines and the metadata store that exist.

Rules: the only module that names concrete engines and stores. The data directory's lock is held
by the caller for as long as the broker lives.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from onelog.base.clock import Clock
from onelog.broker import Authorizer, Broker, BrokerSettings, Quotas
from onelog.metadata.local import LocalStore
from onelog.storage.engine import Engine
from onelog.storage.kv import KvEngine
from onelog.storage.lazy import LazyEngine
from onelog.storage.memory import MemoryEngine
from onelog.storage.segment import SegmentEngine


async def open_broker(
    data_dir: Path,
    settings: BrokerSettings,
    clock: Clock,
    *,
    authorizer: Authorizer | None = None,
    quotas: Quotas | None = None,
) -> Broker:
    """Open the broker on a data directory, recovering what is there."""
    store = await LocalStore.open(data_dir / "metadata.db", clock)
    kv_root = data_dir / "kv"
    engines: dict[str, Engine] = {
        "segment": await asyncio.to_thread(SegmentEngine, data_dir / "segment", clock),
        "memory": MemoryEngine(clock),
        "kv": LazyEngine(kv_root, lambda: KvEngine(kv_root, clock)),
    }
    return await Broker.open(store, engines, clock, settings, authorizer=authorizer, quotas=quotas)
