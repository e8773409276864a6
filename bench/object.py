"""`make bench-object`: what it costs when the log lives in an object store; prints a table, writes
JSON.

Rules: those of `bench/parts.py`. The store is SeaweedFS on this machine, so only ratios to raw
requests of the same run say anything. `ARGS="reads topics"` runs some parts only.
"""

from __future__ import annotations

import sys

from bench.parts import run_parts

PARTS = {
    # name: its module
    "reads": "bench.object_reads",
    "topics": "bench.object_topics",
    "restart": "bench.object_restart",
    "spark": "bench.object_spark",
}

if __name__ == "__main__":
    sys.exit(run_parts("object", __doc__, PARTS, sys.argv[1:]))
