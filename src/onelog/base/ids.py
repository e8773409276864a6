"""Names for the integers that must never be mixed up."""

from typing import NewType

Offset = NewType("Offset", int)
"""A record's place in its partition: dense, from 0."""

PartitionId = NewType("PartitionId", int)
"""A partition's number within its stream, from 0."""

Epoch = NewType("Epoch", int)
"""A leader epoch: grows by one each time a partition gets a new writer."""

ProducerId = NewType("ProducerId", int)
"""An idempotent producer's id; -1 is "none"."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since the Unix epoch; -1 is "none"."""

NO_PRODUCER = ProducerId(-1)
NO_TIMESTAMP = TimestampMs(-1)
