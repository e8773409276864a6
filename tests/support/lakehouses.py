"""Tiered engines whose history is a table, over a folder and with a real lake process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog

from onelog.base.clock import ManualClock
from onelog.lake.jobs import LakeSettings
from onelog.lake.process_link import LakeProcess
from onelog.lake.storage import Storage
from onelog.lakehouse import LakeDefaults, Lakehouse
from onelog.objects.store import StoreSettings, open_store
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from onelog.storage.tier import TierSettings
from onelog.storage.tiered import TieredEngine
from tests.support.object_engine import object_engine, with_tiers
from tests.support.pieces import small_cache


def table_settings(table_format: Any, **words: str) -> LogSettings:
    """Small segments that become rows."""
    table = {"table": "orders", "catalog": "", "commit_ms": "0", "topic": "orders", **words}
    return LogSettings(
        segment_bytes=2_000,
        index_interval_bytes=256,
        tier=TierSettings(format=table_format, table=table),
    )


def adopted(*logs: Any) -> int:
    """Take over what all partitions of a stream lost; how many rows of manifests were made."""
    parts = [log.tier.adoption() for log in logs]
    made = logs[0].tier.adopt(parts)
    for log, part in zip(logs, parts, strict=True):
        log.tier.take_adopted(part, made[part.partition])
    return sum(map(len, made.values()))


class LakeSite:
    """A store in a folder, a catalog beside it, and brokers that come and go."""

    def __init__(
        self,
        folder: Path,
        table_format: str,
        url: str = "",
        options: Mapping[str, str] | None = None,
        table_options: Mapping[str, str] | None = None,
        *,
        has_disk: bool = True,
    ) -> None:
        """`options` are those of the store, `table_options` the same for who reads the table.
        Without a disk, brokers have the engine `object`."""
        self.has_disk = has_disk
        self.folder = folder
        self.format = table_format
        store = folder / "store"
        store.mkdir(parents=True, exist_ok=True)
        self.url = url or f"file://{store}"
        self.options = dict(options or {})
        self.table_options = dict(table_options or {})
        self.warehouse = f"{self.url}/lake"
        self.catalog = f"sqlite:///{folder}/lake.db"
        self.defaults = LakeDefaults(
            catalog=self.catalog, warehouse=self.warehouse, folder=self.warehouse
        )
        self.clock = ManualClock()
        self._open: list[tuple[TieredEngine, Lakehouse]] = []

    def lakehouse(self, faults: str = "") -> Lakehouse:
        """The lake process of a broker."""
        process = LakeProcess(
            LakeSettings(
                url=self.url,
                options=self.options,
                deadline_ms=5000,
                folder=str(self.folder / "tmp"),
                threads=4,
                faults=faults,
            )
        )
        return Lakehouse(process, self.defaults)

    def engine(self, name: str = "data", faults: str = "") -> TieredEngine:
        """A broker's engine."""
        lake = self.lakehouse(faults)
        path = self.folder / name
        beside = self.folder / f"{name}-tier"
        store = open_store(StoreSettings(url=self.url, options=self.options, deadline_ms=5000))
        if self.has_disk:
            engine = TieredEngine(
                SegmentEngine(path, self.clock),
                store,
                small_cache(beside / "cache"),
                beside / "tiers",
                self.clock,
                bringing=lake.bring,
                tables=lake,
            )
        else:
            stored = object_engine(store, path, self.clock)
            words = {"bringing": lake.bring, "tables": lake}
            engine = with_tiers(stored, store, beside, self.clock, **words)
        self._open.append((engine, lake))
        return engine

    def opened(self) -> list[Lakehouse]:
        """The lake processes of its engines."""
        return [lake for _engine, lake in self._open]

    def close(self) -> None:
        """End everything."""
        for engine, lake in self._open:
            engine.close()
            lake.close()
        self._open.clear()

    def table(self) -> Any:
        """The table in the hands of its own library."""
        storage = Storage.of(self.table_options) if self.table_options else Storage()
        if self.format == "delta":
            where = storage.for_delta() if self.table_options else None
            return deltalake.DeltaTable(f"{self.warehouse}/orders", storage_options=where)
        catalog = load_catalog(
            "onelog",
            type="sql",
            uri=self.catalog,
            warehouse=self.warehouse,
            **storage.for_iceberg(),
        )
        return catalog.load_table("onelog.orders")

    def rows(self) -> pa.Table:
        """All rows of the table."""
        table = self.table()
        if self.format == "delta":
            return pa.table(table.to_pyarrow_table())
        return table.scan().to_arrow()

    def rewrite(self, change: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> None:
        """What a foreign writer does: all rows, in another order, in files of its own."""
        table, rows = self.table(), change(self.rows())
        rows = rows.take(pc.sort_indices(rows, [("value", "descending")]))
        if self.format == "delta":
            deltalake.write_deltalake(table, rows, mode="overwrite")
        else:
            table.overwrite(rows)

    def paths(self) -> set[str]:
        """The files that the table names."""
        table = self.table()
        if self.format == "delta":
            return set(table.file_uris())
        return {task.file.file_path for task in table.scan().plan_files()}

    def vacuum(self) -> None:
        """Files that the table no longer names are gone."""
        kept = {path.rsplit("/", 1)[-1] for path in self.paths()}
        for path in (self.folder / "store" / "lake").rglob("*.parquet"):
            if path.name not in kept and "_delta_log" not in path.parts:
                path.unlink()

    def commits(self) -> int:
        """Commits that added rows."""
        table = self.table()
        if self.format == "delta":
            return sum(one["operation"] == "WRITE" for one in table.history())
        return len(table.metadata.snapshots)

    def offsets(self, partition: int = 0) -> list[int]:
        """The offsets of a partition, in order."""
        rows = self.rows()
        pairs = zip(
            rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True
        )
        return sorted(offset for number, offset in pairs if number == partition)
