"""Calls the leadership of AMQP's streams to the node that has the queues.

Rules: the owner of the queues is the only node that publishes to exchanges, so it has to lead their
streams. It asks the controller to make it the preferred leader of each, and to elect it, as soon as
it is in sync. While another node leads a stream, publishes to that exchange are refused. Home
streams of topics (`amq.topic`) stay where they are. A node that is drained asks for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from onelog.base.errors import NotLeader, OnelogError
from onelog.broker.hanging import hang
from onelog.queues.addresses import STREAM_PREFIX

if TYPE_CHECKING:
    from onelog.broker import Broker, PartitionHandle, Stream

LEADING: Final = "amqp-leading"
"""Incidents: the leadership of a stream could not be called here; it is tried again."""
RETRY_S: Final = 1.0
_LOOK_S: Final = 0.02
_LOOKS: Final = 250
"""Looks for the leadership of a new stream, so that its first publish is not refused."""
_LOOKS_AT_START: Final = 50
"""Looks for the leadership of all streams, before clients are served."""


class Leading:
    """Make one, then `open` it once the queues are open."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._undo = ExitStack()

    async def open(self) -> None:
        """Look now, and whenever leaders or streams change. Returns when all is led here, or a
        moment later."""
        hang(self._undo, self._broker.cluster.on_change, self._look)
        hang(self._undo, self._broker.streams.on_change, self._look)
        self._look()
        streams = self._broker.streams.streams()
        logs = [
            log for row in streams if row.name.startswith(STREAM_PREFIX) for log in row.partitions
        ]
        await self._until_led(logs, _LOOKS_AT_START)

    def _look(self) -> None:
        if self._task is None and self._elsewhere():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=LEADING)

    def _elsewhere(self) -> list[tuple[Stream, PartitionHandle]]:
        """Partitions that this node should lead, could lead and does not."""
        cluster, found = self._broker.cluster, []
        if any(place.id == cluster.node and place.is_draining for place in cluster.nodes()):
            return []
        for stream in self._broker.streams.streams():
            if not stream.name.startswith(STREAM_PREFIX):
                continue
            for partition in stream.partitions:
                places = cluster.replicas(stream.record.id, partition)
                is_moving = places.adding or places.removing
                if cluster.node != places.leader and cluster.node in places.isr and not is_moving:
                    found.append((stream, partition))
        return found

    async def _run(self) -> None:
        try:
            while elsewhere := self._elsewhere():
                for stream, partition in elsewhere:
                    await self._call(stream, partition)
                await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _call(self, stream: Stream, partition: PartitionHandle) -> None:
        cluster, number = self._broker.cluster, partition.id
        replicas = cluster.replicas(stream.record.id, partition).replicas
        others = tuple(node for node in replicas if node != cluster.node)
        try:
            if replicas[0] != cluster.node:
                await cluster.reassign(stream.record.id, number, (cluster.node, *others))
            await cluster.elect(stream.record.id, number)
        except OnelogError as error:
            self._broker.troubles.note(LEADING, f"{stream.name}/{number}", error)

    async def settled(self, stream: Stream) -> None:
        """Wait a while until a new stream is led, and by this node if that can be had."""
        await self._broker.cluster.until_led(stream.record.id, len(stream.partitions))
        self._look()
        await self._until_led(stream.partitions, _LOOKS)

    async def _until_led(self, logs: Sequence[PartitionHandle], looks: int) -> None:
        for _ in range(looks):
            if not any(isinstance(log.refusal, NotLeader) for log in logs):
                return
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Ask for nothing more. Idempotent."""
        self._undo.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
