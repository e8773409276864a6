"""`make bench-object`: what it costs when the log lives in an object store; prints a table, writes
JSON.

Rules: those of `bench/parts.py`. The store is SeaweedFS on this machine, so only ratios to raw
requests of the same run say anything. All parts together take less than ten minutes on two cores;
`ARGS="reads topics"` runs some parts only.
"""

from __future__ import annotations

import sys

from bench.parts import run_parts

PARTS = {
    # name: its module
    "latency": "bench.object_latency",
    "reads": "bench.object_reads",
    "answers": "bench.object_answers",
    "catchup": "bench.object_catchup",
    "tables": "bench.object_tables",
    "spark": "bench.object_spark",
    "restart": "bench.object_restart",
    "recovery": "bench.object_recovery",
    "memory": "bench.object_memory",
    "topics": "bench.object_topics",
    "requests": "bench.object_requests",
}

if __name__ == "__main__":
    sys.exit(run_parts("object", __doc__, PARTS, sys.argv[1:]))
