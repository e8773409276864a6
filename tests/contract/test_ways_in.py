"""Every way into the log keeps one order of checks, quota, place and answer (`Publisher`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from onelog.base.errors import (
    InvalidName,
    MessageTooLarge,
    NotAuthorized,
    NotLeader,
    OnelogError,
    PartitionStopped,
    QuotaExceeded,
)
from onelog.broker import (
    Action,
    AllowAll,
    Broker,
    Durability,
    Kind,
    Message,
    Notice,
    Principal,
    StreamConfig,
)
from onelog.kernel import scan_batches
from onelog.log.partition import Partition
from onelog.log.progress import Role
from tests.support.brokers import client_batch, history, running, topic_rows

ANN = Principal("ann", "test")
TOPIC = "t"
STREAM = StreamConfig(
    name=TOPIC, captures=(TOPIC,), durability=Durability.OS, message_bytes_max=1_100
)


class Hooks(AllowAll):
    """Hooks that write down what they are asked, and refuse when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refuses: set[str] = set()

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        if principal == ANN and action is Action.PUBLISH:
            self.asked.append(f"hook {resource}")
        return "hook" not in self.refuses

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        assert size_bytes > 0
        if principal == ANN:
            self.asked.append(f"quota {messages}")
            if "quota" in self.refuses:
                raise QuotaExceeded(f"{principal.name} has used up its share")


# -- the ways in: each returns when the answer came


async def _answer(begin: Callable[[Callable[[OnelogError | None], None]], object]) -> None:
    answer: asyncio.Future[OnelogError | None] = asyncio.get_running_loop().create_future()
    begin(answer.set_result)
    error = await asyncio.wait_for(answer, 10)
    if error is not None:
        raise error


async def one(broker: Broker, message: Message) -> None:
    await broker.publish(message, principal=ANN)


async def many(broker: Broker, message: Message) -> None:
    await broker.publish_many([message], principal=ANN)


async def called_back(broker: Broker, message: Message) -> None:
    publish = broker.publisher.publish
    await _answer(lambda done: publish([message], Notice(done), principal=ANN))


async def in_halves(broker: Broker, message: Message) -> None:
    publisher = broker.publisher
    home = publisher.admit(message, ANN)
    await asyncio.sleep(0)
    await _answer(lambda done: publisher.put(home, message, Notice(done)))


async def once(broker: Broker, message: Message) -> None:
    publisher = broker.publisher
    home = publisher.admit(message, ANN)
    await asyncio.sleep(0)
    await _answer(lambda done: publisher.put_once(home, message, (7, 0, 0), done))


async def batch(broker: Broker, message: Message) -> None:
    stream, data = broker.streams.get(TOPIC), _batch(message)
    target, info = stream.partition(0), scan_batches(data)[0]
    appended = broker.publisher.publish_batch(stream, target, data, info, principal=ANN)
    await target.wait_visible(appended.base_offset)


async def batch_in_halves(broker: Broker, message: Message) -> None:
    stream, data = broker.streams.get(TOPIC), _batch(message)
    target = stream.partition(0)
    assert broker.publisher.admit_batch(stream, target, scan_batches(data)[0], ANN) is None
    await asyncio.sleep(0)
    broker.publisher.put_batches(target, data)


def _batch(message: Message) -> bytearray:
    return client_batch(topic_rows(message.topic, (message.value or b"").decode()))


Way = Callable[[Broker, Message], Awaitable[None]]
RECORDS: list[Way] = [one, many, called_back, in_halves, once]
WAYS: list[Way] = [*RECORDS, batch, batch_in_halves]

# -- what may be wrong, in the order in which it is found


def _stop(partition: Partition) -> None:
    partition.stop(PartitionStopped("it broke"))


def _follow(partition: Partition) -> None:
    partition.replica.become(Role.FOLLOWER, 1)


ORDER: list[tuple[str, type[OnelogError]]] = [
    ("hook", NotAuthorized),
    ("stopped", PartitionStopped),
    ("size", MessageTooLarge),
    ("quota", QuotaExceeded),
]
ASKED = {
    "hook": ["hook t"],
    "stopped": ["hook t"],
    "follows": ["hook t"],
    "size": ["hook t"],
    "quota": ["hook t", "quota 1"],
}


def arrange(hooks: Hooks, partition: Partition, *wrong: str) -> Message:
    """Make things go wrong; the message that is to be published then."""
    hooks.refuses = {*wrong}
    if "stopped" in wrong:
        _stop(partition)
    if "follows" in wrong:
        _follow(partition)
    return Message(TOPIC, b"x" * (1_100 if "size" in wrong else 10))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        *(((name,), error) for name, error in ORDER),
        (("follows",), NotLeader),
        *(
            ((first, second), error)
            for at, (first, error) in enumerate(ORDER)
            for second, _error in ORDER[at + 1 :]
        ),
        (tuple(name for name, _error in ORDER), NotAuthorized),
        (("follows", "size", "quota"), NotLeader),
    ],
)
async def test_what_is_wrong_first_refuses_and_nothing_later_is_asked_or_done(
    tmp_path: Path, way: Way, wrong: tuple[str, ...], error: type[OnelogError]
) -> None:
    hooks = Hooks()
    async with running(tmp_path, authorizer=hooks, quotas=hooks) as broker:
        partition = (await broker.streams.create(STREAM)).partition(0)
        message = arrange(hooks, partition, *wrong)
        with pytest.raises(error):
            await way(broker, message)
        assert hooks.asked == ASKED[wrong[0]]
        assert partition.end_offset == 0
        assert broker.publisher.dirty == []
        assert broker.publisher.messages == 0


@pytest.mark.parametrize("way", RECORDS)
@pytest.mark.parametrize("topic", ["", "a/+", "#", "x" * 2_000])
async def test_a_topic_that_cannot_be_is_refused_before_anybody_is_asked(
    tmp_path: Path, way: Way, topic: str
) -> None:
    hooks = Hooks()
    async with running(tmp_path, authorizer=hooks, quotas=hooks) as broker:
        with pytest.raises(InvalidName):
            await way(broker, Message(topic, b"x"))
        assert hooks.asked == []


@pytest.mark.parametrize("way", WAYS)
async def test_what_nothing_is_wrong_with_is_counted_once_and_appended_once(
    tmp_path: Path, way: Way
) -> None:
    """I1, and in the order of the calls (I5)."""
    hooks = Hooks()
    async with running(tmp_path, authorizer=hooks, quotas=hooks) as broker:
        partition = (await broker.streams.create(STREAM)).partition(0)
        broker.publisher.publish([Message(TOPIC, b"first")], None, principal=Principal("bob"))
        await way(broker, Message(TOPIC, b"second"))
        assert hooks.asked == ["hook t", "quota 1"]
        assert partition.end_offset == 2
        assert broker.publisher.messages == 2
        assert await history(broker, TOPIC) == ["t=first", "t=second"]


@pytest.mark.parametrize("fault", [_stop, _follow])
async def test_what_the_kernel_stages_is_refused_as_everything_is(
    tmp_path: Path, fault: Callable[[Partition], None]
) -> None:
    """A principal that may publish has a route while the partition takes records."""
    hooks = Hooks()
    async with running(tmp_path, authorizer=hooks) as broker:
        publisher = broker.publisher
        partition = (await broker.streams.create(STREAM)).partition(0)
        found = publisher.route(TOPIC, ANN)
        assert found is not None
        stage, value_bytes_max = found
        assert publisher.admit(Message(TOPIC, b"x" * value_bytes_max), ANN)
        with pytest.raises(MessageTooLarge):
            publisher.admit(Message(TOPIC, b"x" * (value_bytes_max + 1)), ANN)
        stage.builder.add(b"t", b"t", b"x", (), 1)
        stage.touch()
        fault(partition)  # before the pass ends
        with pytest.raises((PartitionStopped, NotLeader)):
            await _answer(lambda done: publisher.await_stage(stage, Notice(done), 1))
        assert publisher.route(TOPIC, ANN) is None
        hooks.refuses = {"hook"}
        assert publisher.route("u", ANN) is None
