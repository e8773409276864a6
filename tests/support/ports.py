"""Ports that a test gives to a process which it starts later, or stops and starts again.

Rules: they lie below those that the system hands out by itself, so that no client's end takes one
while its server is away. The process of the tests holds a name for each, of which the system knows
only one: no other process of the same machine takes the port, and the name goes with its holder.
"""

from __future__ import annotations

import itertools
import random
import socket
from typing import Final

FIRST: Final = 12_000
LAST: Final = 32_000
"""Linux hands out ports from 32,768 on."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens at, and that nobody else is given."""
    start = random.randrange(FIRST, LAST)
    places = itertools.chain(range(start, LAST), range(FIRST, start))
    return list(itertools.islice(filter(_take, places), count))


def _take(port: int) -> bool:
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0onelog-tests-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        name.close()
        return False
    name.detach()  # held for as long as this process lives
    return True
