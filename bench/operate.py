"""`make bench-operate`: what running the broker safely costs; prints a table, writes JSON.

Rules: those of `bench/parts.py`. `ARGS="access metrics"` runs some parts only.
"""

from __future__ import annotations

import sys

from bench.parts import run_parts

PARTS = {
    # name: its module
    "access": "bench.operate_access",
    "metrics": "bench.operate_metrics",
    "hostile": "bench.operate_hostile",
    "topics": "bench.operate_topics",
    "backup": "bench.operate_backup",
    "api": "bench.operate_api",
    "console": "bench.operate_console",
}

if __name__ == "__main__":
    sys.exit(run_parts("operate", __doc__, PARTS, sys.argv[1:]))
