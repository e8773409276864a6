"""Whatever tasks, drivers, crashes, full disks and time do: each batch of a query is there once and
whole, or not at all, and nothing hangs. A model of a few lines says which."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.protocols.kafka.errors import KafkaError
from onelog.protocols.kafka.transactions import linking
from onelog.protocols.kafka.transactions.state import Producer
from tests.support.kafka_txn import TIMEOUT_MS, Desk, desk

PARTITIONS = (("a", 0), ("a", 1), ("b", 0))
TASKS = 3


class Stage(NamedTuple):
    """A task writes for the batch that the query is at; perhaps it failed, and nobody knows."""

    task: int
    lost: bool


class Decide(NamedTuple):
    """The driver links what it knows of, or aborts it; perhaps its answer is lost."""

    commit: bool
    answered: bool
    full: bool
    """Whether there is no room for the markers for a while."""


class Restart(NamedTuple):
    """The driver died: it runs the batch again that it has no answer for."""


class Crash(NamedTuple):
    """The coordinator's memory is lost."""


class Pass(NamedTuple):
    seconds: int


steps = st.one_of(
    st.builds(Stage, st.integers(0, TASKS - 1), st.booleans()),
    st.builds(Stage, st.integers(0, TASKS - 1), st.just(False)),
    st.builds(Decide, st.sampled_from([True, True, False]), st.booleans(), st.booleans()),
    st.builds(Restart),
    st.builds(Crash),
    st.builds(Pass, st.sampled_from([1, TIMEOUT_MS // 1000 + 1])),
)


class Driver:
    """A query as Spark runs it: batch after batch, each until it was told that it is done."""

    def __init__(self, at: Desk) -> None:
        self.at = at
        self.batch = 0
        self.attempt = 0
        self.members: dict[str, Producer] = {}
        self.values: dict[str, list[tuple[tuple[str, int], str]]] = {}
        self.linked: dict[int, list[tuple[tuple[str, int], str]]] = {}

    async def step(self, step: NamedTuple) -> None:
        if isinstance(step, Stage):
            await self._stage(step)
        elif isinstance(step, Decide):
            with self.at.without_markers() if step.full else contextlib.nullcontext():
                await self._decide(step)
        elif isinstance(step, Restart):
            self._begin()
        elif isinstance(step, Crash):
            await self.at.crash()
        elif isinstance(step, Pass):
            self.at.timers.pass_time(step.seconds)

    def _begin(self) -> None:
        self.members, self.values = {}, {}

    async def _stage(self, step: Stage) -> None:
        self.attempt += 1
        name = f"~link/q/{self.batch}/{step.task}-{self.attempt}"
        place = PARTITIONS[step.task]
        value = f"{self.batch}.{step.task}.{self.attempt}"
        producer = await self.at.stage(name, value, topic=place[0], number=place[1])
        if not step.lost:
            self.members[name], self.values[name] = producer, [(place, value)]

    async def _decide(self, step: Decide) -> None:
        rows = [row for name in self.members for row in self.values[name]]
        try:
            outcome = await self.at.link(self.batch, self.members, commit=step.commit)
        except KafkaError:
            self._begin()  # a member timed out: the batch is run again
            return
        if outcome == "linked":
            assert self.batch not in self.linked, "a batch was linked twice"
            self.linked[self.batch] = rows
        elif outcome == "already":
            assert self.batch in self.linked, "a batch was dropped"
        self._begin()
        if step.commit and step.answered:
            self.batch += 1

    def expected(self, place: tuple[str, int]) -> list[str]:
        found = [row for rows in self.linked.values() for row in rows]
        return sorted(value for where, value in found if where == place)


async def run(script: list[NamedTuple], path: Path) -> None:
    async with desk(path) as at:
        driver = Driver(at)
        for step in script:
            await driver.step(step)
            await at.settle()
            for place in PARTITIONS:
                assert set(at.committed(*place)) <= set(driver.expected(place))
        at.timers.pass_time(TIMEOUT_MS / 1000 + 1)
        await at.settle()
        for place in PARTITIONS:
            assert sorted(at.committed(*place)) == driver.expected(place)
            assert at.is_stable(*place), "a transaction hangs"
        assert list(at.coordinator.listed()) == [], "a member is left behind"


@settings(deadline=None, max_examples=100)
@given(st.lists(steps, min_size=4, max_size=16))
def test_a_batch_is_there_once_and_whole_or_not_at_all(script: list[NamedTuple]) -> None:
    waits, linking.VISIBLE_WAIT_S = linking.VISIBLE_WAIT_S, 0.001
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(run(script, Path(folder) / "data"))
    finally:
        linking.VISIBLE_WAIT_S = waits
