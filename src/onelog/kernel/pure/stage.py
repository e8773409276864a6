"""Stages interpreted: where records of a pass are staged, and where a topic's publishes go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onelog.kernel.pure.build import BatchBuilder
    from onelog.kernel.pure.ends import PartitionEnd


class Stage:
    """A partition's builder. It is on the shared list of dirty stages while records are staged."""

    __slots__ = ("_spare", "builder", "dirty", "end", "number", "owner")

    def __init__(
        self,
        owner: Any,
        builder: BatchBuilder,
        dirty: list[Stage],
        end: PartitionEnd | None = None,
    ) -> None:
        self.owner = owner
        self.end = end
        """The partition, if a tick may append to it without its owner."""
        self.builder = builder
        self._spare: BatchBuilder | None = None
        self.dirty = dirty
        self.number = -1
        """Its index in the list of dirty stages; -1: it is not there."""

    def touch(self) -> None:
        """Put the stage on the list."""
        if self.number < 0:
            self.number = len(self.dirty)
            self.dirty.append(self)

    def take(self) -> BatchBuilder:
        """Leave the list. Returns the builder to write; later records go to another one."""
        full = self.builder
        self.builder, self._spare = self._spare or full.another(), None
        self.number = -1
        return full

    def give_back(self, builder: BatchBuilder) -> None:
        """A builder from `take` is empty again."""
        if self.builder.count:
            self._spare = builder  # more was staged while it was written
        else:
            self.builder, self._spare = builder, self.builder


class MqttRoute:
    """Where a topic's plain publishes go."""

    __slots__ = ("stage", "topic", "value_bytes_max")

    def __init__(self, topic: bytes, stage: Stage, value_bytes_max: int) -> None:
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max
