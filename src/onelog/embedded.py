"""The broker inside your own program: no socket, no other process.

    import asyncio
    from onelog import embedded
    from onelog.broker import LOCAL, Message

    async def main():
        async with embedded.open("./data") as broker:
            await broker.publish(Message("sensors/d1/t", b"21.5"), principal=LOCAL)

    asyncio.run(main())

Rules: it is the same broker as `onelog serve`, on the same data directory, under the same lock.
When `publish` returns, the message is durable; when the block ends, everything is closed cleanly.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from onelog.assembly import open_broker
from onelog.base.clock import Clock, SystemClock
from onelog.broker import Authorizer, Broker, BrokerSettings, Quotas
from onelog.storage.lock import lock_data_dir


@contextlib.asynccontextmanager
async def open(  # noqa: A001 - `embedded.open` is what a user expects
    data_dir: Path | str,
    settings: BrokerSettings | None = None,
    *,
    clock: Clock | None = None,
    authorizer: Authorizer | None = None,
    quotas: Quotas | None = None,
) -> AsyncIterator[Broker]:
    """Run a broker on `data_dir` for the length of a `async with` block."""
    path = Path(data_dir)
    with lock_data_dir(path):
        broker = await open_broker(
            path,
            settings or BrokerSettings(),
            clock or SystemClock(),
            authorizer=authorizer,
            quotas=quotas,
        )
        try:
            yield broker
        finally:
            await broker.close()
