"""The module of each table format; its libraries are imported at the first use."""

from __future__ import annotations

from importlib import import_module

import pyarrow as pa

from onelog.lake.options import Format, TableOptions
from onelog.lake.tables import LakeTable

OPENERS: dict[Format, tuple[str, str]] = {
    Format.ICEBERG: ("onelog.lake.iceberg", "open_iceberg"),
    Format.DELTA: ("onelog.lake.delta", "open_delta"),
    Format.PARQUET: ("onelog.lake.parquet", "open_parquet"),
}


def open_table(options: TableOptions, rows: pa.Schema | None = None) -> LakeTable:
    """The table of some options; with the schema of rows to come it is made ready for them."""
    module, name = OPENERS[options.format]
    with options.storage.explained(options.place):
        opened: LakeTable = getattr(import_module(module), name)(options, rows)
    return opened
