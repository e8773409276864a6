"""Keeps an admin listener busy: `python -m bench.admin_load <port>` until it is ended.

What it asks for is what a console and a metrics collector ask for, all of it 50 times a second, or
as often as the listener answers: a hundred times as often as people do.
"""

from __future__ import annotations

import http.client
import itertools
import os
import sys
import time

PATHS = (
    "/metrics",
    "/api/v1/overview",
    "/api/v1/streams",
    "/api/v1/cursors",
    "/api/v1/connections",
    "/api/v1/topics",
    "/api/v1/messages?limit=20",
    "/health/ready",
)
PER_SECOND = 50


def main(port: int) -> None:
    """Ask in turns, at a steady pace."""
    # What is measured is the broker's time, not ours.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    begin = time.monotonic()
    for number, path in enumerate(itertools.cycle(PATHS)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 400:
            raise SystemExit(f"GET {path} answered {answer.status}")
        due = begin + (number + 1) / (PER_SECOND * len(PATHS))
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
