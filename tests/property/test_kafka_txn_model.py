"""Whatever producers, crashes, full disks and time do: committed transactions are whole, aborted
ones invisible, and none is left hanging. A model of a few lines says which is which."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.protocols.kafka.errors import KafkaError
from onelog.protocols.kafka.transactions.state import Producer, State
from tests.support.kafka_txn import TIMEOUT_MS, Desk, desk

IDS = ("t", "u")
PARTITIONS = (("a", 0), ("a", 1), ("b", 0))

ids = st.sampled_from(IDS)
partitions = st.sampled_from(PARTITIONS)


class Init(NamedTuple):
    """A new instance of a producer; the one before lives on as a zombie."""

    id: str


class Bump(NamedTuple):
    """The newest instance asks for its next epoch (KIP-360)."""

    id: str


class Add(NamedTuple):
    id: str
    partition: tuple[str, int]
    zombie: bool


class Write(NamedTuple):
    id: str
    partition: tuple[str, int]
    zombie: bool
    added: bool = True
    """Whether the partition is added first, as clients do."""


class End(NamedTuple):
    id: str
    commit: bool
    zombie: bool
    full: bool = False
    """Whether there is no room for the markers for a while."""


class Pass(NamedTuple):
    seconds: int


class Crash(NamedTuple):
    """The coordinator's memory is lost."""


own = st.just(False)
anybody = st.booleans()


@st.composite
def transactions(draw: st.DrawFn) -> list[NamedTuple]:
    """What a client does, and perhaps something in between."""
    name = draw(ids)
    written = draw(st.lists(partitions, min_size=1, max_size=3))
    script: list[NamedTuple] = [Write(name, partition, False) for partition in written]
    script.append(End(name, draw(st.booleans()), False, draw(st.booleans())))
    if draw(st.booleans()):
        script.insert(draw(st.integers(0, len(script))), draw(disturbances))
    return script


disturbances = st.one_of(
    st.builds(Crash),
    st.builds(Init, ids),
    st.builds(Bump, ids),
    st.builds(Write, ids, partitions, anybody, anybody),
    st.builds(Write, ids, partitions, own, st.just(False)),
    st.builds(End, ids, st.booleans(), anybody),
    st.builds(Add, ids, partitions, anybody),
    st.builds(Pass, st.sampled_from([1, TIMEOUT_MS // 1000 + 1])),
)
scripts = st.lists(
    st.one_of(transactions(), disturbances.map(lambda step: [step])), min_size=4, max_size=12
).map(lambda parts: [step for part in parts for step in part])


class Model:
    """One transactional id as a client sees it: what it wrote since its last end."""

    def __init__(self) -> None:
        self.producers: list[Producer] = []
        self.open: list[tuple[tuple[str, int], str]] = []


class Run:
    """A script against the coordinator; what was acknowledged as committed is noted."""

    def __init__(self, at: Desk) -> None:
        self.at = at
        self.models = {name: Model() for name in IDS}
        self.expected: dict[tuple[str, int], set[str]] = {row: set() for row in PARTITIONS}
        self.written = 0

    def producer(self, name: str, zombie: bool) -> Producer:
        known = self.models[name].producers
        index = -2 if zombie and len(known) > 1 else -1
        return known[index] if known else Producer(4711, 0)

    async def step(self, step: NamedTuple) -> None:
        at = self.at
        if isinstance(step, Init | Bump):
            await self._init(step)
        elif isinstance(step, Add):
            producer = self.producer(step.id, step.zombie)
            await at.add(producer, step.partition, transactional_id=step.id)
        elif isinstance(step, Write):
            await self._write(step)
        elif isinstance(step, End):
            with at.without_markers() if step.full else contextlib.nullcontext():
                await self._end(step)
                await at.settle()
        elif isinstance(step, Pass):
            at.timers.pass_time(step.seconds)
        elif isinstance(step, Crash):
            await at.crash()

    async def _init(self, step: Init | Bump) -> None:
        model = self.models[step.id]
        expected = model.producers[-1] if isinstance(step, Bump) and model.producers else None
        try:
            producer = await self.at.init(step.id, expected)
        finally:
            facts = self.at.coordinator.find(step.id)
            if facts is not None and facts.state is not State.PREPARE_COMMIT:
                model.open.clear()  # whoever asks gives up what was open
        assert producer not in model.producers, "an epoch was given twice"
        model.producers.append(producer)

    async def _write(self, step: Write) -> None:
        producer = self.producer(step.id, step.zombie)
        if step.added:
            await self.at.add(producer, step.partition, transactional_id=step.id)
        self.written += 1
        value = f"{step.id}{self.written}"
        self.at.write(producer, *step.partition, value, transactional_id=step.id)
        assert producer == self.producer(step.id, False), "a zombie wrote"
        self.models[step.id].open.append((step.partition, value))

    async def _end(self, step: End) -> None:
        producer = self.producer(step.id, step.zombie)
        model, before = self.models[step.id], self.at.coordinator.find(step.id)
        await self.at.end(producer, commit=step.commit, transactional_id=step.id)
        assert producer == self.producer(step.id, False), "a zombie ended a transaction"
        if before is not None and before.state is not State.ONGOING:
            return  # asked again
        if step.commit:
            for partition, value in model.open:
                self.expected[partition].add(value)
        model.open.clear()


async def run(script: list[NamedTuple], path: Path) -> None:
    async with desk(path) as at:
        model = Run(at)
        for step in [*map(Init, IDS), *script]:
            with contextlib.suppress(KafkaError):
                await model.step(step)
            await at.settle()
            for row in PARTITIONS:  # nothing is seen that is not committed, whenever one looks
                assert set(at.committed(*row)) <= model.expected[row]
        at.timers.pass_time(TIMEOUT_MS / 1000 + 1)
        await at.settle()
        for row in PARTITIONS:
            seen = at.committed(*row)
            assert len(seen) == len(set(seen))
            assert set(seen) == model.expected[row]
            assert at.is_stable(*row), "a transaction hangs"
        for _name, facts in at.coordinator.listed():
            assert facts.state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


@settings(deadline=None, max_examples=100)
@given(scripts)
def test_committed_transactions_are_whole_and_all_others_invisible(
    script: list[NamedTuple],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(script, Path(folder) / "data"))
