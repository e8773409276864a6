"""Leader epochs: whether a client and this node agree on the leader of a partition.

Rules: the epoch that a client names is judged first (KIP-320), then whether this node leads. A
consumer may also read from a follower (KIP-392).
"""

from __future__ import annotations

from typing import Final

from onelog.broker import PartitionHandle
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.nodes import check_fresh, check_led

UNKNOWN_EPOCH: Final = -1


def check_leader(log: PartitionHandle, claimed: int) -> None:
    """Refuse a request for a leader unless this node leads, in the epoch that the client knows.
    Raises OnelogError."""
    check_epoch(log, claimed)
    check_led(log)
    check_fresh(log)


def check_epoch(log: PartitionHandle, claimed: int) -> None:
    """Refuse a request of a client whose metadata is older or newer than ours (KIP-320)."""
    if claimed in (UNKNOWN_EPOCH, log.leader_epoch):
        return
    if log.stopped is not None:
        check_led(log)  # no replica of it lies here, and its epoch is not known
    if claimed < log.leader_epoch:
        raise KafkaError(
            ErrorCode.fenced_leader_epoch,
            f"the leader epoch of {log.stream}/{log.id} is {log.leader_epoch}, not {claimed};"
            " fetch the metadata anew",
        )
    raise KafkaError(
        ErrorCode.unknown_leader_epoch,
        f"the leader epoch {claimed} of {log.stream}/{log.id} is not known here yet",
    )
