"""Starts the protocols when the broker is open; one that fails is tried again.

Rules: it keeps no other one waiting, and stands as a trouble until it is served. What the
configuration forbids ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from onelog.base.errors import ConfigError
from onelog.broker import Broker
from onelog.observe import Troubles, get_logger
from onelog.security.authenticator import Authenticator
from onelog.serving.protocol import ProtocolServer

_log = get_logger("serving")

PROTOCOL_TROUBLE: Final = "protocol"
"""Standing: a protocol could not start. Clients are refused, or wait where it has no refusal."""
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0
"""How long a protocol that could not start waits, doubled each time."""


@contextlib.asynccontextmanager
async def served(
    protocols: dict[str, ProtocolServer],
    broker: Broker,
    authenticator: Authenticator,
    troubles: Troubles,
) -> AsyncIterator[None]:
    """Serve every protocol for the length of a block, and let everybody go at its end."""

    async def start(name: str) -> bool:
        try:
            await protocols[name].start(broker, authenticator)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  the others are served
            troubles.stand(PROTOCOL_TROUBLE, name, error, blocks=False)
            return False
        troubles.clear(PROTOCOL_TROUBLE, name)
        return True

    async def retry(name: str) -> None:
        delay_s = RETRY_FIRST_S
        while True:
            await asyncio.sleep(delay_s)
            if await start(name):
                _log.info("a protocol that had failed is served", protocol=name)
                return
            delay_s = min(2 * delay_s, RETRY_LAST_S)

    retries: list[asyncio.Task[None]] = []
    try:
        failed = [name for name in protocols if not await start(name)]
        retries += [asyncio.create_task(retry(name)) for name in failed]
        yield
    finally:
        for task in retries:
            task.cancel()
        await asyncio.gather(*retries, return_exceptions=True)
        for server in reversed(list(protocols.values())):
            await server.close()
