"""A broker that dies in any state of a transaction: committed ones are whole, aborted ones
invisible, and none is left hanging (I4)."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from kio.schema.errors import ErrorCode

from tests.fault.kafka_child import KafkaChild
from tests.support.kafka_txn_clients import DEADLINE_S, fill, producer, read
from tests.support.kafka_txn_talk import Talk

E = ErrorCode
DIED_AT_POINT = 137
TIMEOUT_MS = 3000
ASK_S = 0.005
"""Between two questions, so that the broker has time for its work."""
TOPIC, NAME, GROUP = "t", "txn", "g"


@contextmanager
def serving(child: KafkaChild, faults: str = "") -> Iterator[Talk]:
    """The broker, perhaps with a point where it dies, and a connection to it."""
    assert child.start(faults)
    try:
        with Talk(child.port) as talk:
            yield talk
    finally:
        child.kill()


@pytest.fixture
def child(tmp_path: Path) -> KafkaChild:
    return KafkaChild(tmp_path / "data")


def transact(talk: Talk, *, commit: bool, value: bytes) -> bool:
    """One whole transaction over two partitions and a group; whether its end was answered."""
    while (answer := talk.init(NAME, TIMEOUT_MS)).error_code is E.concurrent_transactions:
        time.sleep(ASK_S)
    who = (answer.producer_id, answer.producer_epoch)
    assert set(talk.add(NAME, who, **{TOPIC: [0, 1]}).values()) == {E.none}
    for partition in (0, 1):
        assert talk.produce(NAME, who, TOPIC, value, partition=partition) is E.none
    assert talk.add_offsets(NAME, who, GROUP) is E.none
    assert talk.commit_offset(NAME, who, GROUP, TOPIC, int(value)) is E.none
    assert talk.end(NAME, who, commit=commit) is E.none
    return True


def stable(talk: Talk) -> bool:
    """Whether nothing holds the readers of committed records back."""
    return all(
        talk.latest(TOPIC, committed=True, partition=number)
        == talk.latest(TOPIC, committed=False, partition=number)
        for number in (0, 1)
    )


def until_stable(talk: Talk) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not stable(talk):
        assert time.monotonic() < deadline, "a transaction hangs"
        time.sleep(ASK_S)


POINTS = {
    "kafka.txn.begun": False,
    "kafka.txn.added": False,
    "kafka.txn.added=exit:1": False,
    "kafka.txn.decided": True,
    "kafka.txn.prepared": True,
    "kafka.txn.marker": True,
    "kafka.txn.marker=exit:1": True,
    "kafka.txn.marked": True,
}
"""Where the broker dies, and whether the transaction was decided by then."""


@pytest.mark.fault
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("point", POINTS)
def test_a_broker_that_dies_in_a_transaction_ends_it_as_it_was_decided(
    child: KafkaChild, point: str, commit: bool
):
    with serving(child) as talk:
        talk.topic(TOPIC)
        transact(talk, commit=True, value=b"1")
        until_complete(talk)
    spec = point if "=" in point else f"{point}=exit"
    answered = False
    assert child.start(spec)
    with Talk(child.port) as talk, suppress(ConnectionError):
        answered = transact(talk, commit=commit, value=b"2")
        until_complete(talk)
    assert child.wait() == DIED_AT_POINT, f"{point} was not reached"
    whole = commit and POINTS[point]
    assert whole or not (answered and commit)
    with serving(child) as talk:
        until_stable(talk)
        assert sorted(read(child.port, TOPIC)) == (["1", "1", "2", "2"] if whole else ["1", "1"])
        assert talk.offset(GROUP, TOPIC) == (2 if whole else 1)
        transact(talk, commit=True, value=b"3")  # the producer goes on
        until_stable(talk)
        assert sorted(read(child.port, TOPIC))[-2:] == ["3", "3"]


def until_complete(talk: Talk) -> None:
    while not talk.state(NAME).transaction_state.startswith("Complete"):
        time.sleep(ASK_S)


@pytest.mark.fault
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_broker_that_dies_again_while_it_ends_a_transaction_ends_it_the_next_time(
    child: KafkaChild, commit: bool
):
    with suppress(ConnectionError), serving(child, "kafka.txn.prepared=exit") as talk:
        talk.topic(TOPIC)
        transact(talk, commit=commit, value=b"2")
        until_complete(talk)
    for point in ("prepared=exit", "marker=exit", "marker=exit", "marked=exit"):
        child.start(f"kafka.txn.{point}")  # it may die before it can be spoken to
        assert child.wait() == DIED_AT_POINT
    with serving(child) as talk:
        until_stable(talk)
        assert read(child.port, TOPIC) == (["2", "2"] if commit else [])
        assert talk.offset(GROUP, TOPIC) == (2 if commit else -1)
        assert talk.latest(TOPIC, committed=False) == 2, "a marker was written twice"


@pytest.mark.fault
def test_a_client_goes_on_with_its_transaction_over_the_death_of_the_broker(child: KafkaChild):
    with serving(child) as talk:
        talk.topic(TOPIC)
        who = talk.producer(NAME)
        talk.add(NAME, who, **{TOPIC: [0, 1]})
        assert talk.produce(NAME, who, TOPIC, b"before") is E.none
    with serving(child) as talk:
        assert talk.produce(NAME, who, TOPIC, b"after", sequence=1) is E.none
        assert talk.produce(NAME, who, TOPIC, b"after", sequence=1) is E.none  # sent again
        talk.ended(NAME, who)
        assert read(child.port, TOPIC) == ["before", "after"]


# -- under load


class Load:
    """Transactions over all partitions, one after the other; what became of each is noted."""

    def __init__(self, port: int, name: str, seed: int) -> None:
        self.port, self.name = port, name
        self.chance = random.Random(seed)
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.unknown: set[str] = set()
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        numbers = itertools.count()
        try:
            while not self.stopping.is_set():
                # A producer that can do no more is replaced, as an application would do it.
                with suppress(KafkaException):
                    writer = producer(self.port, self.name, **{"transaction.timeout.ms": 10_000})
                    while not self.stopping.is_set():
                        self._transact(writer, f"{self.name}.{next(numbers)}")
        except BaseException as error:  # noqa: BLE001 - told by `finish`
            self.failure = error

    def _transact(self, writer: Producer, value: str) -> None:
        commit = self.chance.random() < 0.7
        self.unknown.add(value)
        try:
            writer.begin_transaction()
            for partition in range(4):
                writer.produce(TOPIC, value, partition=partition)
            if commit:
                writer.commit_transaction(DEADLINE_S)
                outcome = self.committed
            else:
                writer.flush(DEADLINE_S)
                writer.abort_transaction(DEADLINE_S)
                outcome = self.aborted
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            writer.abort_transaction(DEADLINE_S)
            outcome = self.aborted
        self.unknown.discard(value)
        outcome.add(value)

    def finish(self) -> None:
        self.stopping.set()
        self.thread.join(2 * DEADLINE_S)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(4, marks=pytest.mark.fault, id="short"),
        pytest.param(40, marks=pytest.mark.fault_long, id="long"),
    ],
)
def test_transactions_under_load_are_whole_over_kill_9(child: KafkaChild, kills: int):
    seed = int(os.environ.get("ONELOG_SEED") or random.randrange(1 << 30))
    print(f"ONELOG_SEED={seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    assert child.start()
    try:
        fill(child.port, TOPIC, ["0"])
        loads = [Load(child.port, f"p{number}", seed + number) for number in range(3)]
        for _ in range(kills):
            time.sleep(0.3 + chance.random())  # the moment of the kill is the input
            child.kill()
            assert child.start()
        deadline = time.monotonic() + DEADLINE_S
        while not all(load.committed for load in loads) and time.monotonic() < deadline:
            time.sleep(0.5)
        for load in loads:
            load.finish()
        with Talk(child.port) as talk:
            until_stable(talk)
        found = Counter(read(child.port, TOPIC))
        assert found.pop("0") == 1
        assert set(found.values()) == {4}, "a transaction is torn, or there twice"
        for load in loads:
            assert load.committed, "there was no load"
            assert load.committed <= found.keys(), "a committed transaction is lost"
            assert not load.aborted & found.keys(), "an aborted transaction is seen"
        assert found.keys() <= set().union(*(load.committed | load.unknown for load in loads))
    finally:
        child.kill()
