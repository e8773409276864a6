"""Objects that outlive a task in its Python worker: frozen modules, and a connection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from onelog.kafka_client import Access, Client

_idle: dict[Access, Client] = {}
_settled = False


def settle_worker() -> None:
    """Once in a process: what is loaded by now is not looked through after every task."""
    global _settled  # noqa: PLW0603 - a fact of the process
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()


@contextmanager
def borrowed(access: Access) -> Iterator[Client]:
    """A client of this process, given back unless something went wrong."""
    client = _idle.pop(access, None) or Client(access)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _idle[access] = client
