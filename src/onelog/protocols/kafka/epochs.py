"""Leader epochs: whether a client and this node agree on the leader of a partition."""

from __future__ import annotations

from typing import Final

from onelog.broker import PartitionHandle
from onelog.protocols.kafka.errors import ErrorCode, KafkaError

UNKNOWN_EPOCH: Final = -1


def check_epoch(log: PartitionHandle, claimed: int) -> None:
    """Refuse a request of a client whose metadata is older or newer than ours (KIP-320)."""
    if claimed in (UNKNOWN_EPOCH, log.leader_epoch):
        return
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
