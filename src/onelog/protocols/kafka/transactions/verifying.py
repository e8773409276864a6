"""Verification by another node: whether a write belongs to a transaction that is coordinated there
(KIP-890).

Rules:
- A node that coordinates a transactional id itself verifies in the step of the loop that writes.
  Otherwise the owner is asked first, once for all partitions of a request.
- A partition that has the producer's transaction open, with the same epoch, needs no question: the
  transaction's first batch was verified, and the end of the transaction comes to this partition.
- A guard (`guards.py`) is taken before the question. When the transaction ends here before the
  write, the write is refused.
- An owner that does not answer, or does not know yet, verifies nothing: clients send again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from onelog.base.errors import NotOwner, OnelogError, StateLoading, StateUnknown
from onelog.broker import NO_NODE
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.transactions.links import name_of
from onelog.protocols.kafka.transactions.state import Producer

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub
    from onelog.protocols.kafka.topics import TopicPartition
    from onelog.protocols.kafka.transactions.guards import Guard

VERIFY: Final = "kafka.verify"
ASK_S: Final = 5.0
_LATER: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.request_timed_out,
    }
)
"""What the owner says when it cannot verify now."""
AGAIN: Final = ErrorCode.not_enough_replicas
"""Kafka's code for a transaction that cannot be verified now: producers send again."""

Place = tuple[str, int]
"""Topic and partition."""


class VerifyWish(msgspec.Struct, frozen=True, array_like=True):
    """A question to the coordinator of a transactional id."""

    transactional_id: str
    asking: tuple[Producer, ...]
    places: tuple[Place, ...]
    """Topics and partitions, each for the producer of the same number."""
    group: str | None
    """Instead of places: a group, with the only producer."""
    abortable: bool


class Verdicts(msgspec.Struct, frozen=True, array_like=True):
    """The coordinator's answer."""

    shard: int
    epoch: int
    """Of the coordinator."""
    refusals: tuple[tuple[int, str] | None, ...]
    """For each place: the code and text of the error; None: the write belongs to it."""


class Grant(NamedTuple):
    """What the coordinator said of one place, and what watches the place since."""

    guard: Guard
    producer: Producer
    refusal: KafkaError | None
    epoch: int
    """Of the coordinator."""


class Verifier:
    """Asks the owners of transactional ids, and answers for those that this node owns."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        hub.broker.calls.serve(VERIFY, self._asked)

    def close(self) -> None:
        """Answer nobody any more."""
        self._hub.broker.calls.serve(VERIFY, None)

    def is_coordinated_here(self, transactional_id: str) -> bool:
        """Whether this node verifies alone. It does, too, where it cannot: that is its answer."""
        try:
            return self._hub.transactions.owns(transactional_id)
        except OnelogError:
            return True

    # -- asking

    async def ask_for(
        self,
        transactional_id: str,
        wishes: Iterable[tuple[str, TopicPartition, Producer]],
        *,
        abortable: bool,
    ) -> dict[Place, Grant]:
        """Ask the owner for the partitions that need it. The caller gives the guards back."""
        guards = self._hub.participants.guards
        asked: list[tuple[Place, Producer, Guard]] = []
        for topic, target, producer in wishes:
            log = target.log
            if not log.is_in_transaction(*producer):
                guard = guards.take((log, producer.id), int(log.leader_epoch))
                asked.append(((topic, target.number), producer, guard))
        if not asked:
            return {}
        try:
            wish = VerifyWish(
                transactional_id,
                tuple(producer for _place, producer, _guard in asked),
                tuple(place for place, _producer, _guard in asked),
                None,
                abortable,
            )
            epoch, refusals = await self._ask(wish, len(asked))
        except BaseException:
            for _place, _producer, guard in asked:
                guards.give_back(guard)
            raise
        return {
            place: Grant(guard, producer, refusal, epoch)
            for (place, producer, guard), refusal in zip(asked, refusals, strict=True)
        }

    async def ask_for_group(
        self, transactional_id: str, producer: Producer, group: str, *, abortable: bool
    ) -> Grant:
        """Ask the owner for the offsets of a group. The caller gives the guard back."""
        hub = self._hub
        guards = hub.participants.guards
        guard = guards.take((group, producer.id), hub.groups.epoch(group))
        try:
            wish = VerifyWish(transactional_id, (producer,), (), group, abortable)
            epoch, (refusal,) = await self._ask(wish, 1)
        except BaseException:
            guards.give_back(guard)
            raise
        return Grant(guard, producer, refusal, epoch)

    async def _ask(self, wish: VerifyWish, count: int) -> tuple[int, list[KafkaError | None]]:
        hub = self._hub
        name = wish.transactional_id
        owner = hub.broker.cluster.owner(name_of(name.encode()))
        try:
            if owner in (NO_NODE, hub.node_id):
                raise NotOwner(f"the transactional id {name} has no coordinator now")
            found = await hub.broker.calls.call(owner, VERIFY, wish, Verdicts, ASK_S)
        except OnelogError as error:
            return -1, [
                KafkaError(AGAIN, f"the transaction of {name} is not verified: {error}")
            ] * (count)
        hub.participants.order.note(found.shard, found.epoch)
        return found.epoch, [
            None if row is None else KafkaError(ErrorCode(row[0]), row[1]) for row in found.refusals
        ]

    def give_back(self, grants: Iterable[Grant]) -> None:
        """The writes are done, or given up."""
        for grant in grants:
            self._hub.participants.guards.give_back(grant.guard)

    # -- being asked

    async def _asked(self, _node: int, argument: msgspec.Raw) -> Verdicts:
        wish = msgspec.msgpack.decode(argument, type=VerifyWish)
        coordinator, name = self._hub.transactions, wish.transactional_id
        coordinator.check(name)
        refusals: list[tuple[int, str] | None] = []
        for number, producer in enumerate(wish.asking):
            try:
                if wish.group is not None:
                    coordinator.verify_group(name, producer, wish.group, abortable=wish.abortable)
                else:
                    coordinator.verify(
                        name, *producer, *wish.places[number], abortable=wish.abortable
                    )
                refusals.append(None)
            except OnelogError as error:
                refusals.append((int(_code(error)), str(error)))
        return Verdicts(*coordinator.decider(name), tuple(refusals))


def _code(error: OnelogError) -> ErrorCode:
    code = code_of(error)
    return AGAIN if code in _LATER else code


def verify_here(
    hub: Hub,
    transactional_id: str | None,
    producer: Producer,
    topic: str,
    partition: int,
    *,
    abortable: bool,
) -> None:
    """Verify a batch of an id that this node coordinates, in the step that appends it. Raises
    KafkaError."""
    try:
        hub.transactions.verify(transactional_id, *producer, topic, partition, abortable=abortable)
    except (StateUnknown, StateLoading, NotOwner) as error:
        raise KafkaError(AGAIN, str(error)) from None


def check_granted(
    grants: dict[Place, Grant],
    producer: Producer,
    topic: str,
    target: TopicPartition,
    outside: ErrorCode,
) -> None:
    """Refuse a batch that the owner has not let into its transaction, in the step that appends
    it. Raises KafkaError."""
    log = target.log
    if log.is_in_transaction(*producer):
        return
    grant = grants.get((topic, target.number))
    if grant is None or grant.producer != producer:
        # Its transaction was open when the request began, and has ended since.
        raise KafkaError(outside, f"the transaction of producer {producer.id} is over here")
    if grant.refusal is not None:
        raise grant.refusal
    check_unbroken(grant, int(log.leader_epoch), outside)


def check_unbroken(grant: Grant, epoch: int, outside: ErrorCode) -> None:
    """Refuse a write whose transaction has ended since it was verified. Raises KafkaError."""
    if grant.guard.epoch != epoch:
        raise KafkaError(AGAIN, "another node led here meanwhile: verify the transaction again")
    if grant.guard.is_broken:
        raise KafkaError(
            outside, f"the transaction of producer {grant.producer.id} ended meanwhile"
        )
