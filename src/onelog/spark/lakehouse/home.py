"""The place of a table that has only a name: in a lakehouse, a directory with a catalog.

Rules: options of the user are never changed. A pipeline of OneLog names the directory itself;
definitions that Spark runs (`spark-pipeline.yml`) get it from the environment, so that they need no
path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onelog.spark.options import SERVERS

LAKEHOUSE: Final = "ONELOG_LAKEHOUSE"
"""The variable of the environment that names the directory."""
NAMESPACE: Final = "onelog"


def table_name(kind: str, name: str, lakehouse: Path) -> str:
    """A table's whole name, in its catalog or on the disk."""
    if kind == "iceberg":
        return name if "." in name else f"{NAMESPACE}.{name}"
    if "://" in name or Path(name).is_absolute():
        return name
    return str(lakehouse / name)


def catalog_options(lakehouse: Path) -> dict[str, str]:
    """The options of Iceberg's catalog in a file of the lakehouse."""
    return {
        "catalog": f"sqlite:///{lakehouse / 'catalog.db'}",
        "warehouse": str(lakehouse / "tables"),
    }


def at_home(
    options: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of a table, with what the environment says where they say nothing."""
    known = os.environ if environment is None else environment
    found = {name.lower(): text for name, text in options.items()}
    if "deadlettertopic" in found and known.get(SERVERS):
        found.setdefault("dead.servers", known[SERVERS])
    if not known.get(LAKEHOUSE):
        return found
    lakehouse, kind = Path(known[LAKEHOUSE]), found.get("tableformat", "").lower()
    for option in ("table", "deadlettertable"):
        if found.get(option):
            found[option] = table_name(kind, found[option], lakehouse)
    if kind == "iceberg" and "catalog" not in found:
        found = catalog_options(lakehouse) | found
    return found
