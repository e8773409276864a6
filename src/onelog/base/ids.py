"""Names for the integers that must never be mixed up."""

from typing import NewType

Offset = NewType("Offset", int)
"""A record's place in its partition: dense, from 0."""

PartitionId = NewType("PartitionId", int)
"""A partition's number within its stream, from 0."""

Epoch = NewType("Epoch", int)
"""A leader epoch: grows by one each time a partition gets a new writer."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since the Unix epoch; -1 is "none"."""
