"""A broker's engine that takes rewritten rows over, until a fault point ends the process."""

from __future__ import annotations

import sys
from pathlib import Path

from onelog.base import faults
from tests.support.lakehouses import LakeSite, adopted, table_settings
from tests.support.tiers import KEY


def main(folder: str, table_format: str, point: str) -> None:
    """Adopt, and die at the point."""
    site = LakeSite(Path(folder), table_format)
    log = site.engine().open(KEY, table_settings(table_format))
    faults.arm(point, faults.die())
    adopted(log)


if __name__ == "__main__":
    main(*sys.argv[1:])
