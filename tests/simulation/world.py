"""A world: a broker that is used, dies at any moment, and comes back on what its disk kept.

Rules: a seed decides everything. A world says what its clients do (`works`), what it looks at when
the broker has come back (`begin`), and what must hold at the very end (`finish`). What a life made
dies with it: attributes that are set after the first start are forgotten when the broker dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

import msgspec

from onelog.base.clock import ManualClock
from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import EARLIEST, LOCAL, Broker, BrokerSettings, Record, StreamConfig
from onelog.broker import broker as broker_module
from onelog.kernel import ATTR_CONTROL
from onelog.log import internal, rewriting
from onelog.log.partition import Partition
from onelog.record.batch import iterate_batches
from onelog.storage.segment import SegmentEngine
from tests.simulation.disk import Disk
from tests.simulation.machine import MemoryStore, SimulatedSyncer, VirtualLoop

SETTINGS = BrokerSettings(
    main=StreamConfig(name="main", captures=("#",), partitions=1, segment_bytes=4096),
    checkpoint_interval_s=0.05,
    maintenance_interval_s=0.4,
    flush_interval_s=0.1,
)
INTERNAL_SEGMENT_BYTES = 4096
"""Of the broker's own streams: small, so that they are compacted, too."""

Work = Callable[[], Awaitable[None]]
W = TypeVar("W", bound="World")


class World:
    """The run of one seed, over several lives of its broker."""

    settings: ClassVar[BrokerSettings] = SETTINGS
    engine: ClassVar[str] = "segment"
    steps: ClassVar[tuple[int, int]] = (6, 16)
    lives: ClassVar[tuple[int, int]] = (1, 2)
    deaths: ClassVar[tuple[str, ...]] = ("stop", "kill", "power", "power")

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.folder = folder
        self.disk = Disk(folder, self.chance)
        self.rows: dict[str, Any] = {}
        self.broker: Broker
        self.calls: set[asyncio.Task[None]] = set()
        self.count = 0
        """Numbers for what has to be told apart."""
        self.sick = False
        """The disk failed: a partition refuses until the next start."""
        self.is_dark = False
        """The last life ended with the power."""
        self.doom = ""
        """How the broker dies at this very moment: of "deaths"."""
        self.failures: list[BaseException] = []
        """What was found beside the steps."""
        self._lasting: frozenset[str] | None = None

    # -- what a world says

    def works(self) -> Sequence[Work]:
        """What somebody may do next."""
        raise NotImplementedError

    async def begin(self) -> None:
        """The broker is back: make what is missing, check what it kept."""
        raise NotImplementedError

    async def finish(self) -> None:
        """The last look, at a broker that nothing disturbs any more."""
        raise NotImplementedError

    async def end(self) -> None:
        """The broker is about to be stopped in order."""

    def last_words(self) -> None:
        """The broker dies now: what has to be known of its last moment."""

    def on_engine(self, config: StreamConfig) -> StreamConfig:
        """A stream's configuration on the engine of this world."""
        return msgspec.structs.replace(config, engine=self.engine)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Listen to what the engines do to the disk."""
        with self.disk.attached():
            yield

    # -- lives

    async def run(self) -> None:
        """All lives, then a last look, sometimes also after a clean stop."""
        for _ in range(self.chance.randint(*self.lives)):
            await self.start()
            for _ in range(self.chance.randint(*self.steps)):
                await self.step()
                if self.doom:
                    break
            await self.die()
        await self.start()
        await self.finish()
        await self.end()
        await self.broker.close()
        if self.chance.random() < 0.25:
            await self.start()
            await self.end()
            await self.broker.close()

    def engines(self) -> Any:
        """Where streams are kept."""
        return {"segment": SegmentEngine(self.folder, self.clock)}

    async def start(self) -> None:
        """Open on what the last life left, and check it."""
        if self._lasting is None:
            self._lasting = frozenset(vars(self))
        store: Any = MemoryStore(self.rows)
        main = self.on_engine(self.settings.main)
        settings = msgspec.structs.replace(self.settings, main=main)
        self.broker = await Broker.open(store, self.engines(), self.clock, settings)
        self.sick = False
        stopped = [str(row.stopped) for row in self.broker.stopped_partitions()]
        assert not stopped, stopped
        await self.begin()

    async def die(self) -> None:
        """By a stop, a kill, or the power: at some moment of what is under way."""
        how, self.doom = self.doom, ""
        if not how:
            await asyncio.sleep(self.chance.choice((0, 0.03)) * self.chance.random())
            how = self.chance.choice(self.deaths)
        if how == "stop":
            await asyncio.gather(*self.calls)
            with contextlib.suppress(OnelogError):  # a partition that the disk stopped
                await self.end()
                await self.broker.close()
        else:
            self.last_words()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        self.calls.clear()
        asyncio.get_running_loop()._scheduled.clear()  # type: ignore[attr-defined]
        for name in [name for name in vars(self) if name not in (self._lasting or ())]:
            delattr(self, name)
        self.is_dark = how == "power" or self.sick
        self.leave()

    def leave(self) -> None:
        """The process is gone; without power the disk keeps what was synced, and some more."""
        if self.is_dark:
            self.disk.cut_power()

    # -- what clients do

    async def step(self) -> None:
        """One thing that somebody does."""
        work = self.chance.choice(self.works())
        with self.refusals():
            await work()
        if self.failures:
            raise self.failures[0]

    def later(self, work: Work) -> None:
        """Let something go on beside the rest."""

        async def guarded() -> None:
            with self.refusals():
                await work()

        def ended(task: asyncio.Task[None]) -> None:
            self.calls.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.failures.append(error)

        task = asyncio.get_running_loop().create_task(guarded())
        self.calls.add(task)
        task.add_done_callback(ended)

    @contextlib.contextmanager
    def refusals(self) -> Iterator[None]:
        """Somebody may be refused while the disk is sick, and only then."""
        try:
            yield
        except OnelogError as error:
            assert self.sick, f"refused although nothing is wrong: {error!r}"

    async def rest(self) -> None:
        """Nobody does anything for a moment."""
        await asyncio.sleep(self.chance.random() * 0.2)

    async def fail_disk(self) -> None:
        """Some of the next syncs fail."""
        if self.chance.random() < 0.2:
            self.sick = True
            self.disk.fails_next = self.chance.randint(1, 3)

    def next_value(self, sizes: Sequence[int] = (0, 10, 900)) -> bytes:
        """A value that nothing else has."""
        self.count += 1
        return b"%d." % self.count + bytes(self.chance.choice(sizes))


Row = tuple[bytes | None, bytes | None]
"""Key and value."""


def rows_of(partition: Partition) -> dict[int, Row]:
    """Every record that readers see by its offset, those of aborted transactions too."""
    found: dict[int, Row] = {}
    offset = partition.start_offset
    while len(data := partition.read(offset, 1 << 20)):
        for info, slices in iterate_batches(data):
            if not info.attributes & ATTR_CONTROL:
                for at in range(len(slices)):
                    if slices.offset(at) >= offset:
                        found[int(slices.offset(at))] = (slices.key(at), slices.value(at))
            offset = Offset(info.last_offset + 1)
    return found


def read_all(broker: Broker, filters: Sequence[str]) -> list[Record]:
    """Every committed record, as a cursor reads them. A read that finds nothing is not the end."""
    reader = broker.cursors.open_tail(filters, start=EARLIEST, principal=LOCAL)
    found = reader.fetch(1000)
    while reader.reading.may_go_on():
        found += reader.fetch(1000)
    return found


def number_of(value: bytes | None) -> int:
    """When a value was made, beside others."""
    return int((value or b"0.").split(b".", 1)[0])


def simulate(world: type[W], seed: int, folder: Path) -> W:
    """Run a seed; whatever it raises is a finding."""
    made = world(seed, folder)
    ids = random.Random(seed)
    problems: list[Any] = []
    SimulatedSyncer.chance = random.Random(seed + 1)
    with (
        patch.object(broker_module, "Syncer", SimulatedSyncer),
        patch.object(internal, "_SEGMENT_BYTES", INTERNAL_SEGMENT_BYTES),
        patch.object(rewriting, "_PAUSE_S_MAX", 0.0),
        patch.object(secrets, "token_hex", lambda size: ids.randbytes(size).hex()),
        made.attached(),
        asyncio.Runner(loop_factory=lambda: VirtualLoop(made.clock)) as runner,
    ):
        runner.get_loop().set_exception_handler(lambda _loop, row: problems.append(row))
        runner.run(made.run())
    for error in made.failures:
        raise error
    for problem in problems:
        raise AssertionError(str(problem)) from problem.get("exception")
    return made
