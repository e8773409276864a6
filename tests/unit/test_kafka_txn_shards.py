"""Transactions of a cluster: owners that change, partitions and coordinators of other nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onelog.base.errors import Fenced, NotLeader, NotOwner, Timeout, Unavailable
from onelog.broker.node_calls import CallHandler, NodeCalls
from onelog.log.producers import Producers
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.transactions.links import name_of
from onelog.protocols.kafka.transactions.participants import END_GROUP, END_PARTITION, Order
from onelog.protocols.kafka.transactions.state import Producer, State
from onelog.protocols.kafka.transactions.verifying import VERIFY, check_granted, check_unbroken
from onelog.record.batch import Marker
from tests.support.elections import ELECTED, depose, lose, name_in, win
from tests.support.kafka_hub import Desk, batch, desk, rows_of
from tests.support.kafka_nodes import FakeCluster, clustered
from tests.support.kafka_nodes import depose as depose_log
from tests.support.kafka_nodes import lead as lead_log
from tests.support.turns import passes_until

E = ErrorCode
MINE, OTHER = 1, 2
As = Callable[[str, Any], AbstractAsyncContextManager[None]]


class Loop:
    """Node 1 is this node, too, for the length of a call: it then leads what `as_other` says."""

    def __init__(self, as_other: As) -> None:
        self.handlers: dict[str, CallHandler] = {}
        self.asked: list[str] = []
        self.as_other = as_other
        self.is_away = False
        self.loses_answer = False
        self.before_answer: Callable[[], None] = lambda: None

    async def call(
        self, node: int, method: str, argument: Any, answer: type[Any], timeout_s: float
    ) -> Any:
        assert node == 1
        assert timeout_s > 0
        if self.is_away:
            raise Unavailable("no link")
        self.asked.append(method)
        data = msgspec.Raw(msgspec.msgpack.encode(argument))
        async with self.as_other(method, argument):
            body = msgspec.msgpack.encode(await self.handlers[method](0, data))
        self.before_answer()
        if self.loses_answer:
            raise Timeout("the link broke")
        return msgspec.msgpack.decode(body, type=answer)

    def serve(self, method: str, handler: CallHandler | None) -> None:
        if handler is not None:
            self.handlers[method] = handler


class Two:
    """A node, and its other half."""

    def __init__(self, made: Desk, cluster: FakeCluster, calls: Loop) -> None:
        self.made = made
        self.broker = made.broker
        self.hub = made.hub
        self.cluster = cluster
        self.calls = calls

    def name(self, shard: int = MINE, prefix: str = "t") -> str:
        return name_in(self.broker, shard, prefix)

    async def begin(self, name: str, *places: tuple[str, int], groups: tuple[str, ...] = ()):
        producer = await self.hub.transactions.init_producer(name, 60_000)
        if places or groups:
            await self.hub.transactions.add(name, producer, frozenset(places), frozenset(groups))
        return producer

    async def produce(self, name: str, producer: Producer, number: int = 0) -> int:
        """What a client hears for a batch of its transaction."""
        client = self.made.client()
        data = batch(b"v", producer=(*producer, 0), attributes=0x10)
        client.send(client.produce(data, partition=number, transactional_id=name))
        ((_, answer),) = await client.wait_for(1)
        ((_number, code, _base),) = rows_of(answer)
        return code


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    calls: Loop

    @contextlib.asynccontextmanager
    async def as_other(method: str, argument: Any) -> AsyncIterator[None]:
        if method == END_PARTITION:
            log = made.log(argument.place.number)
            lead_log(log, argument.leader_epoch)
            yield
            depose_log(log, argument.leader_epoch)
            return
        name = argument.group if method == END_GROUP else argument.transactional_id
        shard = made.broker.shards.of(name_of(name.encode()))
        await win(made.broker, shard)
        yield
        await lose(made.broker, shard)

    calls = Loop(as_other)

    def with_calls(broker: Any) -> NodeCalls:
        broker.calls = calls
        return calls

    async with desk(tmp_path, settings=ELECTED, prepare=with_calls) as made:
        await made.broker.shards.lead(MINE)
        with clustered(made.broker) as cluster:
            for nth in range(40):
                for prefix in ("t", "g"):
                    name = f"{prefix}{nth}".encode()
                    if made.broker.shards.of(name) != MINE:
                        cluster.owners[name] = 1
            yield Two(made, cluster, calls)


# -- owners


async def test_an_id_of_another_node_is_not_coordinated_here(two: Two) -> None:
    name, hub = two.name(3), two.hub
    with pytest.raises(NotOwner):
        await hub.transactions.init_producer(name, 60_000)
    for call in (
        lambda: hub.transactions.add(name, Producer(1, 0), frozenset()),
        lambda: hub.transactions.end(name, Producer(1, 0), commit=True),
    ):
        with pytest.raises(NotOwner):
            await call()
    with pytest.raises(NotOwner):
        hub.transactions.find(name)
    with pytest.raises(NotOwner):
        hub.transactions.check_query(two.name(3, "q"))


async def test_the_next_owner_goes_on_with_a_transaction_and_ends_what_was_decided(
    two: Two,
) -> None:
    name, log = two.name(), two.made.log()
    producer = await two.begin(name, ("t", 0))
    assert await two.produce(name, producer) == 0
    await lose(two.broker, MINE)
    assert not list(two.hub.transactions.listed())
    await win(two.broker, MINE)
    facts = two.hub.transactions.find(name)
    assert facts is not None
    assert facts.state is State.ONGOING
    depose_log(log, 5)  # the markers wait
    two.cluster.lead(log, 1, 6)
    two.calls.is_away = True
    await two.hub.transactions.end(name, producer, commit=True)
    await asyncio.sleep(0)
    await lose(two.broker, MINE)
    assert log.open_transactions()
    lead_log(log, 7)
    await win(two.broker, MINE)
    await passes_until(lambda: not log.open_transactions())
    (seen,) = log.producers_seen()
    epoch = two.hub.transactions.decider(name).epoch
    assert seen.coordinator_epoch == epoch > 0
    with pytest.raises(Fenced):
        log.end_transaction(Marker.ABORT, producer.id, producer.epoch, epoch - 1)


async def test_the_next_owner_ends_a_transaction_in_a_topic_that_it_hears_of_late(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, log, topics = two.name(), two.made.log(), two.hub.topics
    producer = await two.begin(name, ("t", 0))
    assert await two.produce(name, producer) == 0
    two.calls.is_away = True
    depose_log(log, 5)  # the markers wait
    two.cluster.lead(log, 1, 6)
    await two.hub.transactions.end(name, producer, commit=True)
    await lose(two.broker, MINE)
    lead_log(log, 7)
    late = topics._streams.pop("t")  # the next owner: the stream was made a moment ago
    tries: list[bool] = []

    async def refresh() -> None:
        tries.append(True)
        topics._streams["t"] = late

    monkeypatch.setattr(two.broker.streams, "refresh", refresh)
    await win(two.broker, MINE)
    await passes_until(lambda: not log.open_transactions())
    assert tries == [True]


async def test_a_catalog_that_asks_the_store_has_what_its_watch_has_not_brought(two: Two) -> None:
    streams = two.broker.streams
    record = streams.get("t").record
    fresh = msgspec.structs.replace(
        record,
        id="late-id",
        fixed_topic="late",
        config=msgspec.structs.replace(record.config, name="late", captures=("late",)),
    )
    streams._changes._is_open = False  # the watch brings nothing
    await two.broker.store.put("streams/late", msgspec.json.encode(fresh))
    assert streams.find("late") is None
    await two.hub.participants.know({("late", 0)})
    assert two.hub.participants.find_log("late", 0) is not None


async def test_a_step_that_is_not_durable_when_the_owner_changes_is_asked_again_elsewhere(
    two: Two,
) -> None:
    name = two.name()
    producer = await two.begin(name, ("t", 0))
    depose(two.broker, MINE)
    with pytest.raises(NotOwner):
        await two.hub.transactions.end(name, producer, commit=True)
    await two.broker.shards.lose(MINE)
    await win(two.broker, MINE)
    facts = two.hub.transactions.find(name)
    assert facts is not None
    assert facts.state is State.ONGOING


async def test_a_snapshot_keeps_the_epoch_of_the_coordinator(two: Two) -> None:
    log = two.made.log()
    log.end_transaction(Marker.ABORT, 7, 0, 4)
    log.end_transaction(Marker.ABORT, 7, 0)  # no coordinator wrote it: none is fenced
    (entry,) = Producers.decode(log.producers.encode()).entries()
    assert entry.coordinator_epoch == 4


# -- ends elsewhere


async def test_a_partition_of_another_node_gets_its_marker_from_there(two: Two) -> None:
    name, log = two.name(), two.made.log()
    producer = await two.begin(name, ("t", 0), ("t", 1))
    assert await two.produce(name, producer) == 0
    assert await two.produce(name, producer, 1) == 0
    depose_log(log, 3)
    two.cluster.lead(log, 1, 4)
    await two.hub.transactions.end(name, producer, commit=True)
    await passes_until(lambda: not log.open_transactions())
    assert two.calls.asked == [END_PARTITION]
    await passes_until(lambda: two.hub.transactions.find(name).state is State.COMPLETE_COMMIT)
    assert not two.made.log(1).open_transactions()


async def test_an_outcome_is_asked_for_again_until_the_answer_comes(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.protocols.kafka.transactions.endings.PAUSE_MIN_S", 0.01)
    name, log = two.name(), two.made.log()
    producer = await two.begin(name, ("t", 0))
    assert await two.produce(name, producer) == 0
    depose_log(log, 3)
    two.cluster.lead(log, 1, 4)
    two.calls.loses_answer = True  # the marker is written, and nobody knows
    await two.hub.transactions.end(name, producer, commit=False)
    await passes_until(lambda: bool(two.calls.asked))
    assert two.hub.transactions.find(name).state is State.PREPARE_ABORT
    two.calls.loses_answer = False
    await passes_until(lambda: two.hub.transactions.find(name).state is State.COMPLETE_ABORT)
    assert len(two.calls.asked) >= 2


async def test_offsets_of_a_group_of_another_node_end_there(two: Two) -> None:
    name, group = two.name(), two.name(OTHER, "g")
    await win(two.broker, OTHER)
    producer = await two.begin(name, groups=(group,))
    await two.hub.groups.offsets.stage(group, *producer, {("t", 0): (9, -1, "")}, 0)
    await lose(two.broker, OTHER)
    await two.hub.transactions.end(name, producer, commit=True)
    await passes_until(lambda: two.hub.transactions.find(name).state is State.COMPLETE_COMMIT)
    assert two.calls.asked == [END_GROUP]
    await win(two.broker, OTHER)
    offsets = two.hub.groups.offsets.find(group)
    assert offsets is not None
    assert offsets.find("t", 0).offset == 9
    assert not offsets.pending


async def test_the_end_of_an_earlier_owner_does_not_touch_offsets_of_a_later_one(
    two: Two,
) -> None:
    group = two.name(MINE, "g")
    await two.hub.groups.offsets.stage(group, 7, 0, {("t", 0): (9, -1, "")}, 5)
    with pytest.raises(Fenced):
        two.hub.groups.complete(group, 7, True, 4)
    await two.hub.groups.complete(group, 7, True, 5)


def test_a_question_that_comes_late_is_refused() -> None:
    order = Order()
    order.take(1, 3, 10)
    order.take(1, 3, 11)
    order.take(2, 0, 1)
    for epoch, number in ((3, 10), (2, 99)):
        with pytest.raises(Fenced):
            order.take(1, epoch, number)
    order.note(1, 4)
    with pytest.raises(Fenced):
        order.take(1, 3, 12)
    order.take(1, 4, 1)


async def test_a_restarted_node_numbers_its_questions_above_those_before(two: Two) -> None:
    before = [two.hub.participants._next() for _ in range(3)]
    assert before == sorted(set(before))
    two.cluster.places[0] = two.cluster.places[0]._replace(epoch=11)
    two.hub.participants._number = 0
    assert two.hub.participants._next() > before[-1]


async def test_a_marker_for_another_epoch_of_the_leader_is_refused(two: Two) -> None:
    log = two.made.log()
    place = two.hub.participants.place_of(log)
    handler = two.calls.handlers[END_PARTITION]
    asked = (1, 0, 1, place, int(log.leader_epoch) + 1, True, (7, 0))
    with pytest.raises(NotLeader):
        await handler(0, msgspec.Raw(msgspec.msgpack.encode(asked)))


# -- verification elsewhere


async def test_a_batch_of_a_transaction_of_another_node_is_verified_there_once(two: Two) -> None:
    name = two.name(OTHER)
    await win(two.broker, OTHER)
    producer = await two.begin(name, ("t", 0))
    await lose(two.broker, OTHER)
    assert await two.produce(name, producer) == 0
    assert two.calls.asked == [VERIFY]
    assert await two.produce(name, producer, 1) == E.invalid_txn_state, "it was not added"
    client = two.made.client()
    second = batch(b"w", producer=(*producer, 1), attributes=0x10)
    client.send(client.produce(second, transactional_id=name))
    ((_, answer),) = await client.wait_for(1)
    assert rows_of(answer)[0][1] == 0
    assert two.calls.asked == [VERIFY, VERIFY], "an open transaction needs no question"
    assert not len(two.hub.participants.guards)


async def test_a_batch_that_cannot_be_verified_now_is_sent_again(two: Two) -> None:
    name = two.name(OTHER)
    for change in (
        lambda: setattr(two.calls, "is_away", True),
        lambda: two.cluster.owners.update({name.encode(): -1}),
    ):
        change()
        assert await two.produce(name, Producer(5, 0)) == E.not_enough_replicas
    assert not two.made.log().end_offset


async def test_a_batch_verified_before_the_end_is_not_written_after_it(two: Two) -> None:
    """KIP-890: the marker came while the coordinator's answer was under way."""
    name, log = two.name(OTHER), two.made.log()
    await win(two.broker, OTHER)
    producer = await two.begin(name, ("t", 0))
    await lose(two.broker, OTHER)

    def end() -> None:
        two.hub.participants.end_here(log, Marker.ABORT, producer, 9)

    two.calls.before_answer = end
    assert await two.produce(name, producer) == E.invalid_txn_state
    assert not log.open_transactions()
    assert log.end_offset == 1


async def test_a_grant_does_not_outlive_the_leader(two: Two) -> None:
    name, log = two.name(OTHER), two.made.log()
    await win(two.broker, OTHER)
    producer = await two.begin(name, ("t", 0), groups=("g",))
    await lose(two.broker, OTHER)
    target = two.hub.topics.get("t").partition(0)
    grants = await two.hub.verifier.ask_for(name, [("t", target, producer)], abortable=True)
    outside = E.transaction_abortable
    check_granted(grants, producer, "t", target, outside)
    lead_log(log, int(log.leader_epoch) + 2)
    with pytest.raises(KafkaError) as refused:
        check_granted(grants, producer, "t", target, outside)
    assert refused.value.code is E.not_enough_replicas
    with pytest.raises(KafkaError) as refused:
        check_granted({}, producer, "t", target, outside)
    assert refused.value.code is outside
    two.hub.verifier.give_back(grants.values())
    grant = await two.hub.verifier.ask_for_group(name, producer, "g", abortable=True)
    assert grant.refusal is None
    two.hub.participants.guards.ended(("g", producer.id))
    with pytest.raises(KafkaError) as refused:
        check_unbroken(grant, grant.guard.epoch, outside)
    assert refused.value.code is outside
    two.hub.verifier.give_back([grant])
