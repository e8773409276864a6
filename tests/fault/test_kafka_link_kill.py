"""A broker that dies at any point of a link: the whole batch is there, once, or nothing of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.fault.kafka_child import KafkaChild
from tests.fault.test_kafka_txn_kill import DIED_AT_POINT, serving, until_stable
from tests.support.kafka_txn_clients import read
from tests.support.kafka_txn_talk import Talk

E = ErrorCode
TOPIC, QUERY = "t", "q"
TASKS = 3

POINTS = {
    "kafka.txn.begun": False,
    "kafka.txn.added=exit:2": False,
    "kafka.txn.linking": False,
    "kafka.txn.linked": True,
    "kafka.txn.prepared": True,
    "kafka.txn.prepared=exit:2": True,
    "kafka.txn.marker": True,
    "kafka.txn.marker=exit:3": True,
    "kafka.txn.marked": True,
    "kafka.txn.marked=exit:2": True,
    "kafka.txn.forgotten": True,
    "kafka.txn.forgotten=exit:2": True,
}
"""Where the broker dies, and whether the batch was linked by then."""


@pytest.fixture
def child(tmp_path: Path) -> KafkaChild:
    return KafkaChild(tmp_path / "data")


def names(batch: int) -> list[str]:
    return [f"~link/{QUERY}/{batch}/{task}" for task in range(TASKS)]


def run_batch(talk: Talk, batch: int) -> str:
    """What Spark does: every task stages two records, then the driver links."""
    value = b"%d" % batch
    members = {
        name: talk.stage(name, TOPIC, value, at, at + 1) for at, name in enumerate(names(batch))
    }
    answer = talk.link(QUERY, batch, members)
    assert answer["error"] == 0, answer
    outcome: str = answer["outcome"]
    return outcome


def rows(*batches: int) -> list[str]:
    return sorted(str(batch) for batch in batches for _ in range(2 * TASKS))


@pytest.mark.fault
@pytest.mark.parametrize("point", POINTS)
def test_a_broker_that_dies_in_a_link_has_the_batch_once_or_not_at_all(
    child: KafkaChild, point: str
):
    with serving(child) as talk:
        talk.topic(TOPIC)
        assert run_batch(talk, 0) == "linked"
    assert child.start(point if "=" in point else f"{point}=exit")
    answered = None
    with Talk(child.port) as talk, suppress(ConnectionError):
        answered = run_batch(talk, 1)
        while True:
            talk.state("until it dies")
    assert child.wait() == DIED_AT_POINT, f"{point} was not reached"
    linked = POINTS[point]
    assert answered in ((None, "linked") if linked else (None,))
    with serving(child) as talk:
        if linked:
            until_stable(talk)
            assert sorted(read(child.port, TOPIC)) == rows(0, 1)
        assert run_batch(talk, 1) == ("already" if linked else "linked")
        until_stable(talk)
        assert sorted(read(child.port, TOPIC)) == rows(0, 1)
        assert run_batch(talk, 2) == "linked"
        assert sorted(read(child.port, TOPIC)) == rows(0, 1, 2)
        found = [talk.state(name).error_code for batch in range(3) for name in names(batch)]
        assert set(found) == {E.transactional_id_not_found}, "a member is left behind"


@pytest.mark.fault
def test_a_broker_that_dies_again_and_again_while_it_ends_a_link_ends_it(child: KafkaChild):
    with suppress(ConnectionError), serving(child, "kafka.txn.prepared=exit") as talk:
        talk.topic(TOPIC)
        run_batch(talk, 0)
    for point in ("prepared", "marker", "marker=exit:1", "marked", "forgotten", "forgotten"):
        child.start(f"kafka.txn.{point}" if "=" in point else f"kafka.txn.{point}=exit")
        assert child.wait() == DIED_AT_POINT
    with serving(child) as talk:
        until_stable(talk)
        assert sorted(read(child.port, TOPIC)) == rows(0)
        assert run_batch(talk, 0) == "already"
        assert sorted(read(child.port, TOPIC)) == rows(0)


@pytest.mark.fault
def test_a_broker_restart_between_stage_and_link_loses_nothing(child: KafkaChild):
    with serving(child) as talk:
        talk.topic(TOPIC)
        members = {name: talk.stage(name, TOPIC, b"0", 0, 1) for name in names(0)}
    with serving(child) as talk:
        assert read(child.port, TOPIC) == []
        assert talk.link(QUERY, 0, members)["outcome"] == "linked"
        assert read(child.port, TOPIC) == ["0"] * 2 * TASKS
