"""What the operations share: the broker and the protocols once they are open, and the process.

Rules: an operation that needs what is not open yet, or no more, is answered 503 by the error that
the property raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from onelog.admin.api.declaring import Caller
from onelog.admin.api.share import LoopShare
from onelog.admin.api.sight import Sight
from onelog.admin.contract import PipelineInfo, ServerInfo
from onelog.admin.passes import LocalPasses
from onelog.admin.view import AdminView
from onelog.base.clock import Clock, SystemClock
from onelog.base.errors import NotFound, NotOwner, Unavailable
from onelog.broker import Broker, Stream, TailCursor
from onelog.broker.showing import ProtocolDesk
from onelog.cluster.seen import ClusterDesk
from onelog.config import Loaded
from onelog.observe import Health, LoopLag, Troubles
from onelog.security.api_tokens import ApiTokens
from onelog.security.authenticator import Authenticator

QUEUES: Final = "amqp"
"""The protocol that one node of a cluster serves: it has all queues."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What there is once the broker is open."""

    broker: Broker
    authenticator: Authenticator
    tokens: ApiTokens
    protocols: Mapping[str, Callable[[], ProtocolDesk | None]]
    """Each protocol by its name; None while it is not served."""
    loaded: Loaded
    """The configuration, and where each value came from."""
    cluster: ClusterDesk | None = None
    """The cluster; None: this node is on its own."""
    pipelines: Callable[[], list[PipelineInfo]] = list
    """The pipelines of the data directory; it reads files, so it is called in a thread."""


class AdminDesk:
    """Set `open` once the broker is served, and `close` before it stops."""

    def __init__(
        self,
        health: Health,
        info: Callable[[], ServerInfo],
        troubles: Troubles,
        clock: Clock | None = None,
    ) -> None:
        self.health = health
        self.info = info
        self.troubles = troubles
        self.share = LoopShare()
        self.lag = LoopLag()
        """Measured by who runs the loop."""
        self.passes = LocalPasses(clock or SystemClock())
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        """What ends before the broker does."""
        self._closing = asyncio.Event()
        self._opened: Opened | None = None
        self._view: AdminView | None = None

    def open(self, opened: Opened) -> None:
        """The broker is served."""
        self._opened, self._view = opened, AdminView(opened.broker)
        self._closing.clear()

    async def close(self) -> None:
        """The broker is about to stop."""
        self._opened = self._view = None
        self._closing.set()
        for end in self.on_close:
            await end()

    @property
    def opened(self) -> Opened:
        """Everything that is open. Raises Unavailable."""
        if self._opened is None:
            raise Unavailable("the broker is still starting or already stopping; ask again soon")
        return self._opened

    async def until_closing(self, timeout_s: float) -> None:
        """Wait so long, or until the broker is about to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._closing.wait()

    async def close_tail(self, tail: TailCursor) -> None:
        """End a tail; nothing happens when the broker did it already."""
        if self._opened is not None:
            await self._opened.broker.cursors.close_cursor(tail)

    @property
    def is_open(self) -> bool:
        """Whether there is a broker."""
        return self._opened is not None

    @property
    def broker(self) -> Broker:
        """The door. Raises Unavailable."""
        return self.opened.broker

    @property
    def view(self) -> AdminView:
        """Streams and cursors as rows. Raises Unavailable."""
        if self._view is None:
            return AdminView(self.opened.broker)
        return self._view

    def sight(self, caller: Caller) -> Sight:
        """What a caller may see. Raises Unavailable."""
        return Sight(self.broker.authorizer, caller)

    def sees(self, sight: Sight, stream: Stream) -> bool:
        """Whether a caller sees a stream: some of its topics."""
        if sight.sees_all:
            return True
        return not stream.config.internal and any(map(sight.topic, stream.config.captures))

    def desks(self) -> dict[str, ProtocolDesk]:
        """The protocols that are served now."""
        found = ((name, find()) for name, find in self.opened.protocols.items())
        return {name: desk for name, desk in found if desk is not None}

    def desk(self, protocol: str) -> ProtocolDesk:
        """One protocol. Raises NotFound, Unavailable while it is not served, and NotOwner where
        another node serves it."""
        find = self.opened.protocols.get(protocol)
        if find is None:
            raise NotFound(f"there is no protocol {protocol!r} here")
        desk = find()
        if desk is None:
            if protocol == QUEUES:
                self._check_queues_here()
            raise Unavailable(
                f"{protocol} is not served: its listeners are off, or it could not start"
                " (GET /health says why)"
            )
        return desk

    def _check_queues_here(self) -> None:
        """Raise NotOwner where another node has the queues."""
        try:
            self.broker.shards.check_led(b"")  # the name that owns all of them
        except NotOwner as error:
            node = error.node
            whose = f"node {node} has" if node >= 0 else "the node is being elected that has"
            raise NotOwner(f"{whose} all queues of this cluster: ask it", node) from None
