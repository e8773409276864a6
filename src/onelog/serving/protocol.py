"""What the process asks of a protocol, and what it gives to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from onelog.admin.contract import ServerInfo
from onelog.base.clock import Clock
from onelog.broker import Broker
from onelog.broker.showing import ProtocolDesk
from onelog.config import Config
from onelog.net import Listener
from onelog.observe import Health, Sample, Troubles
from onelog.security.authenticator import Authenticator


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What there is before the broker is open."""

    config: Config
    clock: Clock
    health: Health
    troubles: Troubles
    info: Callable[[], ServerInfo]


class ProtocolServer(Protocol):
    """All listeners of one protocol, and what is behind them."""

    @property
    def listeners(self) -> list[tuple[Listener, str]]:
        """What is bound, and the address as clients write it."""
        ...

    def desk(self) -> ProtocolDesk | None:
        """What operators see and change; None while it is not served."""
        ...

    def bind(self) -> None:
        """Take every port, or none."""
        ...

    async def start(self, broker: Broker, authenticator: Authenticator) -> None:
        """Accept connections: the broker is open."""
        ...

    async def close(self) -> None:
        """Let everybody go. Idempotent."""
        ...

    def samples(self) -> Iterable[Sample]:
        """Numbers for the metrics."""
        ...
