"""The streams of one virtual host: made before the first message needs them.

Rules: an exchange has a stream of its own with one partition, so that its messages have one order
whatever their keys, as in RabbitMQ. Messages of `amq.topic` of the default virtual host go to the
home streams of their topics. Messages of the default exchange lie in one stream for all queues: a
queue's messages have one topic, hence one partition and one order. Messages that a durable queue
has not consumed stay, however many: a publisher that fills the disk is blocked, and no confirmed
message is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onelog.base.errors import AlreadyExists, Conflict
from onelog.base.limits import BATCH_BYTES_MAX
from onelog.broker import Durability, PartitionHandle, Retention, StreamConfig
from onelog.queues.addresses import (
    AUDIT_STREAM,
    QUEUES_STREAM,
    address_of,
    capture_of,
    queues_capture,
)

if TYPE_CHECKING:
    from onelog.queues.hub import QueueHub

QUEUES_PARTITIONS: Final = 1
"""One write and one sync serve all queues that were published to in a pass."""
RECORD_BYTES: Final = 4096
"""Bytes of a record beside body and properties: its topic and its encoding."""
_ANY_BYTES: Final = 2**63 - 1


class Streams:
    """Makes the streams of a virtual host, and knows which exist."""

    def __init__(self, hub: QueueHub, vhost: str) -> None:
        self._hub = hub
        self._vhost = vhost
        self._ready: set[str] = set()
        self._lock = asyncio.Lock()

    def make_ready(self, exchange: str) -> Coroutine[Any, Any, None] | None:
        """Wait for this before a publish to an exchange; None: its stream exists."""
        return None if self.is_ready(exchange) else self.make(exchange)

    def is_ready(self, exchange: str) -> bool:
        """Whether the stream of an exchange exists."""
        return exchange in self._ready

    async def make(self, exchange: str) -> None:
        """Make sure that the stream of an exchange exists."""
        async with self._lock:
            if exchange in self._ready:
                return
            if not exchange:
                await self._capture_queues()
            else:
                chosen = capture_of(self._vhost, exchange)
                if chosen is not None and chosen[0] != AUDIT_STREAM:  # the server makes that one
                    await self._create_own(*chosen)
            self._ready.add(exchange)

    async def _create_own(self, name: str, capture: str) -> None:
        await self._create(name, (capture,), 1, consumed=False)
        if capture not in self._hub.broker.streams.get(name).config.captures:
            # An older version let others have the name. Messages would go where no queue looks.
            raise Conflict(
                f"the stream {name!r} holds other topics; delete it, or use another name"
            )

    async def _capture_queues(self) -> None:
        wanted = queues_capture(self._vhost)
        catalog = self._hub.broker.streams
        await self._create(QUEUES_STREAM, (wanted,), QUEUES_PARTITIONS, consumed=True)
        found = catalog.get(QUEUES_STREAM)
        if wanted not in found.config.captures:
            captures = (*found.config.captures, wanted)
            await catalog.alter(msgspec.structs.replace(found.config, captures=captures))

    async def _create(
        self, name: str, captures: tuple[str, ...], partitions: int, *, consumed: bool
    ) -> None:
        catalog = self._hub.broker.streams
        found = catalog.find(name)
        if found is not None:
            if found.config.message_bytes_max < self._message_bytes_max:
                # The limit was raised since the stream was made.
                wanted = {"message_bytes_max": self._message_bytes_max}
                await catalog.alter(msgspec.structs.replace(found.config, **wanted))
            return
        defaults = self._hub.config.defaults.stream
        try:
            await catalog.create(
                StreamConfig(
                    name=name,
                    captures=captures,
                    partitions=partitions,
                    engine=defaults.engine,
                    durability=Durability(defaults.durability),
                    retention=Retention(
                        age_ms=defaults.retention_age_ms,
                        bytes=defaults.retention_bytes,
                        consumed=consumed,
                        pin_bytes_max=_ANY_BYTES,
                    ),
                    message_bytes_max=self._message_bytes_max,
                    segment_bytes=defaults.segment_bytes,
                    segment_age_ms=defaults.segment_age_ms,
                )
            )
        except AlreadyExists:
            return  # another connection has made it
        if self._hub.leading is not None:
            await self._hub.leading.settled(catalog.get(name))

    @property
    def _message_bytes_max(self) -> int:
        """Room for a body of the largest size, with its properties and its topic."""
        config = self._hub.config
        limits = config.amqp.limits
        needed = limits.message_bytes + limits.frame_bytes + RECORD_BYTES
        return max(config.defaults.stream.message_bytes_max, min(needed, BATCH_BYTES_MAX))

    def exchange_gone(self, exchange: str) -> None:
        """An exchange was deleted: its messages stay as long as retention says."""
        self._ready.discard(exchange)

    @contextlib.asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """No stream of this virtual host is made during the block."""
        async with self._lock:
            yield


async def drop_unused(hub: QueueHub, partition: PartitionHandle) -> None:
    """Retention took records: delete the stream of a deleted exchange with its last record."""
    catalog = hub.broker.streams
    stream = catalog.find(partition.stream)
    if stream is None or len(stream.config.captures) != 1:
        return
    address = address_of(stream.config.captures[0])
    if capture_of(address.vhost, address.exchange) != (stream.name, stream.config.captures[0]):
        return  # not a stream of an exchange
    vhost = hub.vhosts.find(address.vhost)
    async with contextlib.nullcontext() if vhost is None else vhost.streams.unchanged():
        is_gone = vhost is None or vhost.router.find(address.exchange) is None
        if is_gone and partition.start_offset == partition.end_offset:
            await catalog.delete(stream.name)
